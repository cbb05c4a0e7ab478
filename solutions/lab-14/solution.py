"""lab-14: the reference solution."""

import math
from collections.abc import Sequence

from mini_kv.course.given.second_home import Entry, Pool, SecondHome, digest_of

Quantized = tuple[list[int], float]
"""A vector in int8 and its scale."""


def quantize(values: Sequence[float]) -> Quantized:
    """Return a vector as whole numbers from -127 to 127 and the scale that undoes it."""
    scale = max(abs(value) for value in values) / 127
    if scale == 0:
        return [0] * len(values), 0.0
    return [round(value / scale) for value in values], scale


def attend(query: Sequence[float], keys: Sequence[Quantized], values: Sequence[Quantized]) -> list[float]:
    """Return what a query reads from tokens whose keys and values are in int8, each with a scale of its own."""
    scores = []
    for numbers, scale in keys:
        product = sum(q * number for q, number in zip(query, numbers, strict=True))
        scores.append(product * scale / math.sqrt(len(query)))
    largest = max(scores)
    weights = [math.exp(score - largest) for score in scores]
    total = sum(weights)
    result = [0.0] * len(values[0][0])
    for weight, (numbers, scale) in zip(weights, values, strict=True):
        for i, number in enumerate(numbers):
            result[i] += weight / total * number * scale
    return result


def store(home: SecondHome, key: str, payload: bytes) -> bool:
    """Take a content in, as the most recently used; return whether it is there now."""
    if key in home.entries:
        home.entries[key] = home.entries.pop(key)
        return True
    if len(home.entries) >= home.capacity:
        victim = next((old for old, entry in home.entries.items() if entry.num_leases == 0), None)
        if victim is None:
            return False
        del home.entries[victim]
    home.entries[key] = Entry(payload, digest_of(key, payload))
    return True


def lease(home: SecondHome, key: str) -> bytes | None:
    """Return a content that is there, as the most recently used, and keep it from leaving until `release`."""
    entry = home.entries.get(key)
    if entry is None:
        return None
    if digest_of(key, entry.payload) != entry.digest:
        del home.entries[key]
        home.num_damaged += 1
        return None
    home.entries[key] = home.entries.pop(key)
    entry.num_leases += 1
    return entry.payload


def release(home: SecondHome, key: str) -> None:
    """End one lease. Raises `ValueError`, and changes nothing, if there is none on this key."""
    entry = home.entries.get(key)
    if entry is None or entry.num_leases == 0:
        raise ValueError(f"{key} is not leased")
    entry.num_leases -= 1


def promote(home: SecondHome, pool: Pool, keys: Sequence[str]) -> list[int]:
    """Bring the longest beginning of these contents up, into free blocks; return the blocks, first content first."""
    found: list[tuple[str, bytes]] = []
    for key in keys[: len(pool.free_queue)]:
        payload = lease(home, key)
        if payload is None:
            break
        found.append((key, payload))
    going_down: list[tuple[str, bytes]] = []
    table = []
    for key, payload in found:
        block_id = pool.free_queue.pop(0)
        block = pool.blocks[block_id]
        if block.key is not None:
            going_down.append((block.key, block.payload))
        block.key, block.payload = key, payload
        release(home, key)
        del home.entries[key]
        table.append(block_id)
    for key, payload in going_down:
        store(home, key, payload)
    return table


def crossover(
    seconds_per_token: float, seconds_per_byte: float, seconds_at_once: float, bytes_per_token: int
) -> int | None:
    """Return the least number of tokens that take less time to reload than to compute; `None` if there is none."""
    gain = seconds_per_token - bytes_per_token * seconds_per_byte
    if gain <= 0:
        return None
    return math.floor(seconds_at_once / gain) + 1

"""lab-14: another way. Numbers are made whole vectors first; the softmax is carried from token to token."""

import math
from collections.abc import Sequence

from mini_kv.course.given.second_home import Entry, Pool, SecondHome, digest_of

Quantized = tuple[list[int], float]
"""A vector in int8 and its scale."""


def quantize(values: Sequence[float]) -> Quantized:
    """Return a vector as whole numbers from -127 to 127 and the scale that undoes it."""
    farthest = 0.0
    for value in values:
        farthest = max(farthest, value, -value)
    scale = farthest / 127
    divisor = scale or 1.0
    return [max(-127, min(127, math.floor(value / divisor + 0.5))) for value in values], scale


def _whole(vector: Quantized) -> list[float]:
    numbers, scale = vector
    return [number * scale for number in numbers]


def attend(query: Sequence[float], keys: Sequence[Quantized], values: Sequence[Quantized]) -> list[float]:
    """Return what a query reads from tokens whose keys and values are in int8, each with a scale of its own."""
    largest, total = -math.inf, 0.0
    result = [0.0] * len(values[0][0])
    for key, value in zip(map(_whole, keys), map(_whole, values), strict=True):
        score = sum(q * k for q, k in zip(query, key, strict=True)) / len(query) ** 0.5
        new = max(largest, score)
        shrink, weight = math.exp(largest - new), math.exp(score - new)
        total = total * shrink + weight
        result = [old * shrink + weight * number for old, number in zip(result, value, strict=True)]
        largest = new
    return [number / total for number in result]


def _to_the_end(home: SecondHome, key: str) -> Entry:
    entry = home.entries.pop(key)
    home.entries[key] = entry
    return entry


def store(home: SecondHome, key: str, payload: bytes) -> bool:
    """Take a content in, as the most recently used; return whether it is there now."""
    if key in home.entries:
        _to_the_end(home, key)
        return True
    if len(home.entries) == home.capacity:
        may_go = [old for old in home.entries if not home.entries[old].num_leases]
        if not may_go:
            return False
        home.entries.pop(may_go[0])
    home.entries[key] = Entry(payload, digest_of(key, payload))
    return True


def lease(home: SecondHome, key: str) -> bytes | None:
    """Return a content that is there, as the most recently used, and keep it from leaving until `release`."""
    if key not in home.entries:
        return None
    entry = _to_the_end(home, key)
    if entry.digest == digest_of(key, entry.payload):
        entry.num_leases += 1
        return entry.payload
    home.entries.pop(key)
    home.num_damaged += 1
    return None


def release(home: SecondHome, key: str) -> None:
    """End one lease. Raises `ValueError`, and changes nothing, if there is none on this key."""
    if key not in home.entries or home.entries[key].num_leases < 1:
        raise ValueError(f"no lease on {key}")
    home.entries[key].num_leases -= 1


def promote(home: SecondHome, pool: Pool, keys: Sequence[str]) -> list[int]:
    """Bring the longest beginning of these contents up, into free blocks; return the blocks, first content first."""
    payloads: dict[str, bytes] = {}
    for key in keys:
        payload = lease(home, key) if len(payloads) < len(pool.free_queue) else None
        if payload is None:
            break
        payloads[key] = payload
    table, pool.free_queue[:] = pool.free_queue[: len(payloads)], pool.free_queue[len(payloads) :]
    for block_id, (key, payload) in zip(table, payloads.items(), strict=True):
        block = pool.blocks[block_id]
        old_key, old_payload = block.key, block.payload
        block.key, block.payload = key, payload
        home.entries.pop(key)
        if old_key is not None:
            store(home, old_key, old_payload)
    return table


def crossover(
    seconds_per_token: float, seconds_per_byte: float, seconds_at_once: float, bytes_per_token: int
) -> int | None:
    """Return the least number of tokens that take less time to reload than to compute; `None` if there is none."""
    if seconds_per_token <= seconds_per_byte * bytes_per_token:
        return None
    num_tokens = max(1, int(seconds_at_once / (seconds_per_token - seconds_per_byte * bytes_per_token)))
    while seconds_at_once + num_tokens * bytes_per_token * seconds_per_byte >= num_tokens * seconds_per_token:
        num_tokens += 1
    return num_tokens

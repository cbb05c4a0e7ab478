"""lab-14: another way. The order is made anew at each use; all that comes up leaves the home first."""

import math
from collections.abc import Sequence

from mini_kv.course.given.second_home import Entry, Pool, SecondHome, digest_of

Quantized = tuple[list[int], float]
"""A vector in int8 and its scale."""


def quantize(values: Sequence[float]) -> Quantized:
    """Return a vector as whole numbers from -127 to 127 and the scale that undoes it."""
    scale = max(*values, -min(values)) / 127
    return ([round(value / scale) for value in values] if scale else [0 for _ in values]), scale


def attend(query: Sequence[float], keys: Sequence[Quantized], values: Sequence[Quantized]) -> list[float]:
    """Return what a query reads from tokens whose keys and values are in int8, each with a scale of its own."""
    root = math.sqrt(len(query))
    scores = [scale * sum(query[i] * number for i, number in enumerate(numbers)) / root for numbers, scale in keys]
    weights = [math.exp(score - max(scores)) for score in scores]
    parts = [weight / sum(weights) * scale for weight, (_, scale) in zip(weights, values, strict=True)]
    columns = zip(*(numbers for numbers, _ in values), strict=True)
    return [sum(part * number for part, number in zip(parts, column, strict=True)) for column in columns]


def _use(home: SecondHome, key: str) -> None:
    last = home.entries[key]
    others = {other: entry for other, entry in home.entries.items() if other != key}
    home.entries.clear()
    home.entries.update(others | {key: last})


def store(home: SecondHome, key: str, payload: bytes) -> bool:
    """Take a content in, as the most recently used; return whether it is there now."""
    if key not in home.entries:
        for old in list(home.entries):
            if len(home.entries) < home.capacity:
                break
            if home.entries[old].num_leases == 0:
                del home.entries[old]
        if len(home.entries) >= home.capacity:
            return False
        home.entries[key] = Entry(payload, digest_of(key, payload))
    _use(home, key)
    return True


def lease(home: SecondHome, key: str) -> bytes | None:
    """Return a content that is there, as the most recently used, and keep it from leaving until `release`."""
    if key in home.entries and home.entries[key].digest != digest_of(key, home.entries[key].payload):
        del home.entries[key]
        home.num_damaged += 1
    if key not in home.entries:
        return None
    _use(home, key)
    home.entries[key].num_leases += 1
    return home.entries[key].payload


def release(home: SecondHome, key: str) -> None:
    """End one lease. Raises `ValueError`, and changes nothing, if there is none on this key."""
    leased = [other for other, entry in home.entries.items() if entry.num_leases]
    if key not in leased:
        raise ValueError(f"{key}: no lease")
    home.entries[key].num_leases -= 1


def promote(home: SecondHome, pool: Pool, keys: Sequence[str]) -> list[int]:
    """Bring the longest beginning of these contents up, into free blocks; return the blocks, first content first."""
    coming: list[tuple[str, bytes]] = []
    while len(coming) < min(len(keys), len(pool.free_queue)):
        payload = lease(home, keys[len(coming)])
        if payload is None:
            break
        coming.append((keys[len(coming)], payload))
    for key, _ in coming:
        release(home, key)
        del home.entries[key]
    table = [pool.free_queue.pop(0) for _ in coming]
    for block_id in table:
        block = pool.blocks[block_id]
        if block.key is not None:
            store(home, block.key, block.payload)
    for block_id, (key, payload) in zip(table, coming, strict=True):
        pool.blocks[block_id].key, pool.blocks[block_id].payload = key, payload
    return table


def crossover(
    seconds_per_token: float, seconds_per_byte: float, seconds_at_once: float, bytes_per_token: int
) -> int | None:
    """Return the least number of tokens that take less time to reload than to compute; `None` if there is none."""
    to_reload = bytes_per_token * seconds_per_byte
    if to_reload >= seconds_per_token:
        return None
    return math.ceil(math.nextafter(seconds_at_once / (seconds_per_token - to_reload), math.inf))

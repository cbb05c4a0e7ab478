"""The functions of lab-14 by mini_kv's own tier: `MemoryTier` decides what is used, leased and evicted.

Both work on one `SecondHome`, so each function can be the learner's or mini_kv's. Imports no torch.
"""

from collections.abc import Sequence

from mini_kv.course.given.second_home import Entry, Pool, SecondHome, digest_of
from mini_kv.tiers.memory_tier import MemoryTier
from mini_kv.tiers.reload_cost import ReloadCost


def store(home: SecondHome, key: str, payload: bytes) -> bool:
    """Take a content in, as the most recently used. Return whether it is there now."""
    tier, new = _tier_of(home, len(payload)), Entry(payload, digest_of(key, payload))
    if tier.store(key.encode(), new.digest + payload) is None:
        return False
    _put_in_order(home, {key: new, **home.entries}, tier)
    return True


def lease(home: SecondHome, key: str) -> bytes | None:
    """Return a content that is there and undamaged, as the most recently used, and keep it until `release`."""
    entry = home.entries.get(key)
    if entry is None:
        return None
    tier = _tier_of(home, len(entry.payload))
    tier.lookup(key.encode())
    is_right = digest_of(key, entry.payload) == entry.digest
    if is_right:
        entry.num_leases += 1
    else:
        home.num_damaged += 1
        tier.discard(key.encode())
    _put_in_order(home, dict(home.entries), tier)
    return entry.payload if is_right else None


def release(home: SecondHome, key: str) -> None:
    """End one lease. Raises `ValueError` if there is none on this key."""
    entry = home.entries.get(key)
    if entry is None or entry.num_leases == 0:
        raise ValueError(f"{key} is not leased")
    entry.num_leases -= 1


def promote(home: SecondHome, pool: Pool, keys: Sequence[str]) -> list[int]:
    """Move the longest beginning of these contents into free blocks. Return the blocks."""
    payloads: list[bytes] = []
    for key in keys[: len(pool.free_queue)]:
        payload = lease(home, key)
        if payload is None:
            break
        payloads.append(payload)
    for key, _ in zip(keys, payloads, strict=False):
        release(home, key)
        del home.entries[key]
    table = [pool.free_queue.pop(0) for _ in payloads]
    for block_id, key, payload in zip(table, keys, payloads, strict=False):
        block = pool.blocks[block_id]
        if block.key is not None:
            store(home, block.key, block.payload)
        block.key, block.payload = key, payload
    return table


def crossover(
    seconds_per_token: float, seconds_per_byte: float, seconds_at_once: float, bytes_per_token: int
) -> int | None:
    """Return the least number of tokens that take less time to reload than to compute, or `None`."""
    return ReloadCost(seconds_per_token, seconds_per_byte, seconds_at_once).crossover_tokens(bytes_per_token)


def _tier_of(home: SecondHome, num_bytes: int) -> MemoryTier:
    """Return a tier with the entries and leases of the home. `num_bytes`: of each payload."""
    tier = MemoryTier(home.capacity * len(digest_of("", b"") + bytes(num_bytes)))
    for key, entry in home.entries.items():
        tier.store(key.encode(), entry.digest + entry.payload)
    for key, entry in home.entries.items():
        held = tier.lookup(key.encode())
        if held is not None and entry.num_leases == 0:
            tier.release(held)
    return tier


def _put_in_order(home: SecondHome, entries: dict[str, Entry], tier: MemoryTier) -> None:
    """Keep of these entries what the tier has, in its order."""
    home.entries.clear()
    home.entries.update((key.decode(), entries[key.decode()]) for key in tier.in_order())

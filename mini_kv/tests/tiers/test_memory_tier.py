"""The tier in memory: who leaves, who may not, and what a lease is worth."""

import random

import pytest

from mini_kv.core.errors import ConfigError
from mini_kv.tiers.memory_tier import Lease, MemoryTier


def filled(*keys: bytes, capacity_bytes: int = 30) -> MemoryTier:
    """Return a tier with entries of ten bytes."""
    memory = MemoryTier(capacity_bytes)
    for key in keys:
        assert memory.store(key, key * 10) == []
    return memory


def test_the_least_recently_used_leaves() -> None:
    """A hit refreshes, and so does a second store. (B15: an "LRU" that was a FIFO, since no hit touched it.)"""
    memory = filled(b"a", b"b", b"c")
    lease = memory.lookup(b"a")
    assert lease is not None
    memory.release(lease)
    assert memory.store(b"d", b"d" * 10) == [(b"b", b"b" * 10)]
    assert memory.store(b"c", b"c" * 10) == []
    assert memory.store(b"e", b"e" * 20) == [(b"a", b"a" * 10), (b"d", b"d" * 10)]
    assert (memory.in_order(), memory.num_bytes) == ([b"c", b"e"], 30)


def test_what_is_leased_stays() -> None:
    """(B23: evicted between lookup and load.) The next in line goes in its place, or the newcomer is refused."""
    memory = filled(b"a", b"b", b"c")
    a, b = memory.lookup(b"a"), memory.lookup(b"b")
    assert a is not None and b is not None
    assert memory.store(b"d", b"d" * 10) == [(b"c", b"c" * 10)]
    assert memory.store(b"e", b"e" * 20) is None
    assert memory.in_order() == [b"a", b"b", b"d"]
    assert memory.load(a) == b"a" * 10
    memory.release(a)
    assert memory.store(b"e", b"e" * 20) == [(b"a", b"a" * 10), (b"d", b"d" * 10)]


def test_two_leases_on_one_entry() -> None:
    """(B23: a pin that leaks.) The entry stays until the second is over; ending one twice does not end the other."""
    memory = filled(b"a", capacity_bytes=10)
    first, second = memory.lookup(b"a"), memory.lookup(b"a")
    assert first is not None and second is not None
    memory.release(first)
    memory.release(first)
    assert memory.store(b"b", b"b" * 10) is None
    memory.release(second)
    assert memory.store(b"b", b"b" * 10) == [(b"a", b"a" * 10)]


def test_a_lease_on_what_was_taken_is_worth_nothing() -> None:
    """The block has another owner; and an entry that comes later under the same key is another entry."""
    memory = filled(b"a")
    mine, theirs = memory.lookup(b"a"), memory.lookup(b"a")
    assert mine is not None and theirs is not None
    memory.take(mine)
    assert (len(memory), memory.num_bytes, memory.load(theirs)) == (0, 0, None)
    memory.store(b"a", b"A" * 10)
    assert memory.load(theirs) is None
    memory.take(theirs)
    assert memory.in_order() == [b"a"]


def test_what_cannot_work_is_refused() -> None:
    """An entry larger than all there is, and a tier without room."""
    assert filled(b"a").store(b"b", b"b" * 31) is None
    with pytest.raises(ConfigError, match="capacity_bytes is 0, it must be at least 1"):
        MemoryTier(0)


@pytest.mark.parametrize("seed", range(4))
def test_random_lives(seed: int) -> None:
    """Against a list of entries and a list of leases, 5,000 operations each."""
    rng = random.Random(seed)
    memory = MemoryTier(50)
    entries: list[tuple[bytes, bytes]] = []
    leases: list[Lease] = []
    for _ in range(5_000):
        key = bytes([rng.randrange(8)])
        match rng.randrange(5):
            case 0 | 1:
                envelope = bytes([rng.randrange(256)]) * rng.randrange(1, 25)
                expected = slow_store(entries, {lease.key for lease in leases}, key, envelope)
                assert memory.store(key, envelope) == expected
            case 2:
                lease = memory.lookup(key)
                assert (lease is not None) == (key in dict(entries))
                if lease is not None:
                    leases.append(lease)
                    entries.append(entries.pop([k for k, _ in entries].index(key)))
            case 3 | 4 if leases:
                lease = leases.pop(rng.randrange(len(leases)))
                if rng.random() < 0.5:
                    memory.release(lease)
                else:
                    entries = [entry for entry in entries if entry != (lease.key, memory.load(lease))]
                    memory.take(lease)
        assert list(memory._entries.items()) == entries
        assert memory.num_bytes == sum(len(envelope) for _, envelope in entries) <= 50


def slow_store(
    entries: list[tuple[bytes, bytes]], leased: set[bytes], key: bytes, envelope: bytes
) -> list[tuple[bytes, bytes]] | None:
    """Store by the rule as it is written down; return what leaves."""
    known = [k for k, _ in entries]
    if key in known:
        entries.append(entries.pop(known.index(key)))
        return []
    leaving: list[tuple[bytes, bytes]] = []
    while sum(len(e) for _, e in entries) - sum(len(e) for _, e in leaving) + len(envelope) > 50:
        candidates = [entry for entry in entries if entry[0] not in leased and entry not in leaving]
        if not candidates:
            return None
        leaving.append(candidates[0])
    entries[:] = [entry for entry in entries if entry not in leaving] + [(key, envelope)]
    return leaving


def test_what_is_on_its_way_up_makes_room_for_what_comes_down() -> None:
    """a and b change places with c and d. If the way up fails, they are given back, and the next store makes room."""
    memory = filled(b"a", b"b", capacity_bytes=20)
    leases = [memory.lookup(key) for key in (b"a", b"b")]
    for lease in leases:
        assert lease is not None
        memory.lend(lease)
        memory.lend(lease)
    assert (memory.store(b"c", b"c" * 10), memory.store(b"d", b"d" * 10)) == ([], [])
    first, second = leases
    assert first is not None and second is not None
    memory.take(first)
    memory.release(second)
    assert (memory.in_order(), memory.num_bytes) == ([b"b", b"c", b"d"], 30)
    assert memory.store(b"e", b"e" * 10) == [(b"b", b"b" * 10), (b"c", b"c" * 10)]
    assert memory.num_bytes == 20

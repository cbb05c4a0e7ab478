"""What tiers do when a disk fails, a worker is gone, a call is interrupted or a cache is reset: they miss and count."""

import random
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from mini_kv.core.block import BlockHashWithGroupId, KVCacheBlock
from mini_kv.core.errors import ConfigError, RepeatedRequestError
from mini_kv.tests.tiers.test_connector import Held, House
from mini_kv.tests.tiers.tiers_driver import ENVELOPE_BYTES, FakeServer
from mini_kv.tiers.background import Inline, Thread, Worker
from mini_kv.tiers.connector import TieredPool
from mini_kv.tiers.disk import DiskTier
from mini_kv.tiers.memory_tier import MemoryTier
from mini_kv.tiers.remote import RemoteTier
from mini_kv.tiers.tiered_cache import TieredCache

SMALL = 2 * (20 + 1 + 7 + 32)
"""Room for two envelopes of a key of one byte and a payload of seven."""


class FailingDisk(DiskTier):
    """A disk whose every call raises what nobody has thought of."""

    def load(self, key: bytes) -> bytes | None:
        raise sqlite3.OperationalError("disk I/O error")

    def store(self, key: bytes, envelope: bytes) -> bool:
        raise sqlite3.OperationalError("attempt to write a readonly database")

    def discard(self, key: bytes) -> None:
        raise OSError("gone")


def fill(tiers: TieredCache, keys: bytes) -> None:
    """Store a block per letter."""
    for key in keys:
        tiers.store(bytes([key]), b"payload")


# A tier fails.


@pytest.mark.parametrize("make_worker", [Inline, Thread])
def test_a_disk_that_raises_is_a_miss_and_a_count(make_worker: Callable[[], Worker], tmp_path: Path) -> None:
    """Its worker goes on: every job in line is done and told of, and nothing is raised on the engine's thread."""
    right = DiskTier(tmp_path, 1 << 20)
    right.store(b"k" * 32, b"an envelope")
    right.close()
    tiers = TieredCache(MemoryTier(SMALL), FailingDisk(tmp_path, 1 << 20), make_worker=make_worker)
    fill(tiers, b"abcde")
    fetch = tiers.fetch({b"k" * 32: 7})
    tiers.discard(b"k" * 32)
    tiers.flush()
    assert fetch.is_done and tiers.memory.in_order() == [b"d", b"e"]
    assert tiers.counts == {"stored": 5, "dropped": 3, "failed": 5}
    assert (tiers._backlog_bytes, tiers._going_down) == (0, {})
    tiers.close()


def test_a_dead_worker_is_noticed(tmp_path: Path) -> None:
    """Its thread has ended, as in a process that was forked: fetches end, writes are dropped, nothing waits for it."""
    tiers = TieredCache(MemoryTier(SMALL), DiskTier(tmp_path, 1 << 20), make_worker=Thread)
    fill(tiers, b"abc")
    tiers.flush()
    assert tiers.counts["pushed out"] == 1
    worker = tiers._disk_worker
    assert isinstance(worker, Thread)
    worker.close()
    fetch = tiers.fetch({b"a": 7})
    tiers.poll()
    assert fetch.is_done and b"a" not in tiers
    fill(tiers, b"de")
    tiers.flush()
    assert (tiers.counts["dropped"], tiers.counts["dead worker"], tiers._backlog_bytes) == (2, 3, 0)
    tiers.close()


def test_a_worker_that_dies_with_a_job_in_line_is_noticed_too(tmp_path: Path) -> None:
    """The job was taken, and is never done: the next look ends the wait for it."""

    class Mortal(Held):
        is_well = True

        @property
        def is_alive(self) -> bool:
            return self.is_well

    worker = Mortal()
    tiers = TieredCache(MemoryTier(SMALL), DiskTier(tmp_path, 1 << 20), make_worker=lambda: worker)
    fill(tiers, b"abc")
    fetch = tiers.fetch({b"a": 7})
    tiers.poll()
    assert fetch.keys == {b"a"}
    worker.is_well = False
    tiers.poll()
    assert fetch.keys == set() and tiers.counts["dead worker"] == 1


def test_what_waits_to_be_written_has_a_bound(tmp_path: Path) -> None:
    """Jobs for disk and server count together; what comes on top is dropped, until some of them are done."""
    worker = Held()
    house = House(num_blocks=5, memory_blocks=1, disk=DiskTier(tmp_path, 1 << 20), worker=worker)
    tiers = house.tiers
    tiers.max_backlog_bytes = 2 * ENVELOPE_BYTES
    house.send("A", "abc")
    house.send("B", "xyz")
    house.send("C", "uvw")
    assert tiers.counts["dropped"] == 3 and len(worker.jobs) == 2
    worker.run()
    tiers.poll()
    assert tiers.counts["pushed out"] == 2 and tiers._backlog_bytes == 0
    house.send("D", "xyz")
    assert len(worker.jobs) > 0 and tiers._backlog_bytes == 2 * ENVELOPE_BYTES


def test_what_waits_to_be_shared_has_a_bound_too() -> None:
    """Copies for a server that is slower than the engine; each that was sent makes room for another one."""
    worker, server = Held(), FakeServer(random.Random(0))
    size = SMALL // 2
    remote = RemoteTier(server)
    tiers = TieredCache(MemoryTier(SMALL), remote=remote, make_worker=lambda: worker, max_backlog_bytes=2 * size)
    for key in (b"a", b"b", b"c"):
        tiers.share(key, b"payload")
    assert (len(worker.jobs), tiers.counts["dropped"]) == (2, 1)
    worker.run()
    tiers.poll()
    for key in (b"d", b"e", b"f"):
        tiers.share(key, b"payload")
    assert (len(worker.jobs), tiers.counts["dropped"], tiers.counts["shared"]) == (2, 2, 2)


def test_single_flight_two_requests_wait_for_one_fetch() -> None:
    """The second one asks for the block while it is on its way; the server is asked once, and both have it."""
    worker, server = Held(), FakeServer(random.Random(0))
    tiers = TieredCache(MemoryTier(SMALL), remote=RemoteTier(server), make_worker=lambda: worker)
    tiers.share(b"a", b"payload")
    worker.run()
    tiers.poll()
    num_calls = server.num_calls
    first, second = tiers.fetch({b"a": 7}), tiers.fetch({b"a": 7})
    assert (len(worker.jobs), first.is_done, second.is_done) == (1, False, False)
    worker.run()
    tiers.poll()
    assert (server.num_calls - num_calls, first.is_done, second.is_done, b"a" in tiers.memory) == (1, True, True, True)


def test_what_arrives_late_and_was_computed_meanwhile_is_not_taken_in() -> None:
    """A block has one owner: the pool has it now."""
    server, held = FakeServer(random.Random(0)), Held()
    House(num_blocks=9, server=server).send("A", "abcd")
    house = House(num_blocks=9, server=server, worker=held)
    house.add("A", "abcd")
    house.add("B", "")
    house.step()
    held.run()
    house.add("C", "")
    house.step()  # A's blocks have set out
    house.now = 1.0
    assert house.step().num_scheduled_tokens == {"A": 17}
    held.run()
    house.tiers.poll()
    assert house.tiers.memory.in_order() == [] and house.tiers.counts["fetched"] == 0


# Memory too small for a block.


def test_a_tier_that_can_never_hold_a_block_is_refused(tmp_path: Path) -> None:
    """One byte less than an envelope; an envelope is enough."""
    assert House(num_blocks=5, memory_blocks=1).send("A", "abc") == 13
    with pytest.raises(ConfigError, match=r"the memory tier has 0 bytes|it must be at least 1"):
        House(num_blocks=5, memory_blocks=0)
    with pytest.raises(ConfigError, match=f"the disk tier has {ENVELOPE_BYTES - 1} bytes, and one block takes 136"):
        House(num_blocks=5, disk=DiskTier(tmp_path, ENVELOPE_BYTES - 1))


# Reset.


def test_a_reset_forgets_what_the_tiers_have(tmp_path: Path) -> None:
    """Memory, disk, and for this engine the server: the next request computes all, and shares again from then on."""
    server = FakeServer(random.Random(0))
    house = House(num_blocks=5, memory_blocks=3, disk=DiskTier(tmp_path, 1 << 20), server=server)
    for words in ("abc", "xyz", "uvw"):
        house.send(words, words)
    assert house.tiers.disk is not None and (len(house.tiers.memory), len(house.tiers.disk)) == (3, 3)
    assert house.kv.reset_prefix_cache()
    assert (len(house.tiers.memory), len(house.tiers.disk), list(tmp_path.glob("??/*"))) == (0, 0, [])
    assert [house.send(f"{words} again", words) for words in ("abc", "xyz", "abc")] == [13, 13, 1]
    assert len(server.entries) == 9 + 6  # the first nine are other engines', too
    assert House(num_blocks=9, server=server).send("A", "abc") == 1


def test_a_reset_that_is_refused_changes_nothing() -> None:
    """While a request holds blocks, tiers keep theirs, too."""
    house = House(num_blocks=5)
    house.send("A", "abc")
    house.send("B", "xyz")
    house.add("C", "u")
    house.scheduler.schedule()
    before = house.tiers.memory.in_order()
    assert not house.kv.reset_prefix_cache() and house.tiers.memory.in_order() == before != []


def test_what_was_on_its_way_when_the_cache_was_reset_does_not_arrive(tmp_path: Path) -> None:
    """From a server that answers after the reset."""
    server, held = FakeServer(random.Random(0)), Held()
    House(num_blocks=9, server=server).send("A", "abcd")
    house = House(num_blocks=20, server=server, worker=held)
    house.add("A", "abcd")
    house.add("B", "")
    house.step()
    held.run()
    house.add("C", "")
    house.step()  # A's blocks have set out
    assert house.kv.reset_prefix_cache()
    held.run()
    house.tiers.poll()
    assert len(house.tiers.memory) == 0
    house.add("D", "")
    assert list(house.step().num_scheduled_tokens) == ["D"]  # A asks the server anew
    held.run()
    assert house.step().num_scheduled_tokens == {"A": 17}


# Interrupts, one place at a time; every place is tried in tests/engine/test_tiered_recovery.py.


class InterruptedPool(TieredPool):
    """Fails once in a call for blocks, or when a block has just got the hash of what will be loaded into it."""

    fails_at: str | None = None

    def get_new_blocks(self, num_blocks: int) -> list[KVCacheBlock]:
        self._maybe_fail("get_new_blocks")
        return super().get_new_blocks(num_blocks)

    def adopt(self, block: KVCacheBlock, key: BlockHashWithGroupId) -> None:
        super().adopt(block, key)
        self._maybe_fail("adopt")

    def _maybe_fail(self, place: str) -> None:
        if self.fails_at == place:
            self.fails_at = None
            raise KeyboardInterrupt


@pytest.mark.parametrize("place", ["get_new_blocks", "adopt"])
def test_an_interrupt_while_a_promotion_allocates_pins_nothing(place: str) -> None:
    """Memory may push out every entry afterwards, no hash stays without its bytes, and the request is served."""
    house = House(num_blocks=5, make_pool=InterruptedPool)
    house.send("A", "abc")
    house.send("B", "xyz")
    house.add("A again", "abc")
    pool = house.kv.block_pool
    assert isinstance(pool, InterruptedPool)
    pool.fails_at = place
    before = house.tiers.memory.in_order()
    with pytest.raises(KeyboardInterrupt):
        house.scheduler.schedule()
    house.scheduler.abandon_step()
    memory = house.tiers.memory
    assert (memory._leases, memory._num_leases, memory._lent) == (set(), {}, set())
    assert sorted(memory.in_order()) == sorted(before)
    assert not any(map(house.connector._is_in_pool, before))
    assert house.step().num_scheduled_tokens == {"A again": 1}
    assert memory._leases == set()


def test_an_interrupt_while_news_is_read_leaves_no_key_that_never_comes(tmp_path: Path) -> None:
    """The news is read again: no request waits for its deadline."""

    class Interrupted(TieredCache):
        num_failures = 1

        def _has_arrived(self, key: bytes, envelope: bytes | None) -> None:
            if self.num_failures:
                self.num_failures -= 1
                raise KeyboardInterrupt
            super()._has_arrived(key, envelope)

    tiers = Interrupted(MemoryTier(SMALL), DiskTier(tmp_path, 1 << 20))
    fill(tiers, b"abc")
    tiers.poll()
    fetch = tiers.fetch({b"a": 7})
    with pytest.raises(KeyboardInterrupt):
        tiers.poll()
    again = tiers.fetch({b"a": 7})
    tiers.poll()
    assert fetch.is_done and again.is_done and b"a" in tiers


def test_close_that_was_interrupted_can_be_called_again(tmp_path: Path) -> None:
    """The folder is free for the next engine then."""

    class Interrupted(Inline):
        num_failures = 1

        def close(self) -> None:
            if self.num_failures:
                self.num_failures -= 1
                raise KeyboardInterrupt

    tiers = TieredCache(MemoryTier(SMALL), DiskTier(tmp_path, 1 << 20), make_worker=Interrupted)
    with pytest.raises(KeyboardInterrupt):
        tiers.close()
    tiers.close()
    DiskTier(tmp_path, 1 << 20).close()


def test_a_request_that_cannot_set_out_is_not_added() -> None:
    """The scheduler has it or has it not; its name can be used again."""

    class Interrupted(TieredCache):
        num_failures = 1

        def is_near(self, key: bytes) -> bool:
            if self.num_failures:
                self.num_failures -= 1
                raise KeyboardInterrupt
            return super().is_near(key)

    house = House(num_blocks=9, make_tiers=Interrupted)
    with pytest.raises(KeyboardInterrupt):
        house.add("A", "ab")
    assert not house.scheduler.requests and len(house.scheduler.waiting) == 0
    assert house.send("A", "ab") == 9
    house.add("B", "ab")
    with pytest.raises(RepeatedRequestError):
        house.add("B", "cd")
    assert house.step().num_scheduled_tokens == {"B": 1}

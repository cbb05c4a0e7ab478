"""What moves between pool and tiers, step by step: which hashes leave, which come back, who owns them meanwhile."""

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from mini_kv.core.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from mini_kv.core.kv_cache_manager import KVCacheManager
from mini_kv.core.sched.config import SchedulerConfig
from mini_kv.core.sched.output import SchedulerOutput
from mini_kv.tests.tiers.tiers_driver import BLOCK_SIZE, ENVELOPE_BYTES, PAYLOAD_BYTES, ContentWorker, FakeServer
from mini_kv.tiers.background import Inline, Worker
from mini_kv.tiers.connector import KVConnectorMetadata, TieredPool, TieringConnector, tiered_parts
from mini_kv.tiers.disk import DiskTier
from mini_kv.tiers.memory_tier import MemoryTier
from mini_kv.tiers.remote import RemoteTier
from mini_kv.tiers.tiered_cache import TieredCache
from mini_kv.tiers.tiered_scheduler import TieredScheduler


class Held(Worker):
    """Does its jobs when it is told to, so that a test can stand between question and answer."""

    def __init__(self) -> None:
        self.jobs: list[object] = []

    def submit(self, job: object) -> None:
        self.jobs.append(job)

    def run(self) -> None:
        """Do the jobs that are there."""
        jobs, self.jobs = self.jobs, []
        for job in jobs:
            assert callable(job)
            job()

    def close(self) -> None:
        self.run()


class House:
    """One group of full attention, blocks of four tokens, and tiers below."""

    def __init__(
        self,
        num_blocks: int,
        memory_blocks: int = 20,
        disk: DiskTier | None = None,
        server: FakeServer | None = None,
        worker: Worker | None = None,
        namespace: str = "",
        make_pool: type[TieredPool] = TieredPool,
        make_tiers: type[TieredCache] = TieredCache,
    ) -> None:
        self.now = 0.0
        self.tiers = make_tiers(
            MemoryTier(memory_blocks * ENVELOPE_BYTES),
            disk,
            RemoteTier(server) if server is not None else None,
            make_worker=lambda: worker or Inline(),
        )
        config = KVCacheConfig(num_blocks, (KVCacheGroupSpec(("layer",), FullAttentionSpec(BLOCK_SIZE)),))
        self.kv = KVCacheManager(config, parts=replace(tiered_parts(), make_pool=make_pool))
        self.connector = TieringConnector(
            self.kv, self.tiers, [PAYLOAD_BYTES], layout=namespace, seconds_to_wait=1.0, clock=lambda: self.now
        )
        self.scheduler = TieredScheduler(self.kv, SchedulerConfig(max_num_seqs=4), connector=self.connector)
        self.worker = ContentWorker(self.kv, self.tiers)
        self.names: dict[bytes, str] = {}

    def add(self, name: str, words: str, salt: str | None = None) -> None:
        """Add a request of one block per letter and one token; its blocks are called by the prompt up to them."""
        tokens = [ord(letter) for letter in words for _ in range(BLOCK_SIZE)] + [0]
        request = self.kv.new_request(name, tokens, cache_salt=salt)
        for end, key in enumerate(self.connector._tier_keys(request), start=1):
            self.names[key] = words[:end] if salt is None else f"{salt}:{words[:end]}"
        self.scheduler.add_request(request, max_tokens=1)

    def step(self) -> SchedulerOutput:
        """Do a step: all prompts that fit, and they are over."""
        output = self.scheduler.schedule()
        requests = dict(self.scheduler.requests)
        self.worker.run(output, requests, None)
        self.scheduler.update_from_output(output, {name: [1] for name in output.num_scheduled_tokens})
        return output

    def send(self, name: str, words: str, salt: str | None = None) -> int:
        """Send a request through; return how many tokens were computed for it."""
        self.add(name, words, salt)
        return self.step().num_scheduled_tokens[name]

    def plan(self, output: SchedulerOutput) -> tuple[list[str], list[str], list[str]]:
        """Return what a plan stores, loads and saves, by name."""
        metadata = output.kv_connector_metadata
        assert isinstance(metadata, KVConnectorMetadata)
        return (
            [self.names[key] for key, _ in metadata.stores],
            [self.names[key] for key, _, _ in metadata.loads],
            [self.names[key] for key, _ in metadata.saves],
        )

    def called(self, keys: Sequence[bytes]) -> list[str]:
        """Return the names of keys."""
        return [self.names[key] for key in keys]


def test_a_block_goes_down_when_it_is_reused_and_comes_back_when_it_is_hit() -> None:
    """Three words of room: the second request pushes the first one's tail out, and the first one's return brings it."""
    house = House(num_blocks=5)
    assert house.send("A", "abc") == 13
    house.add("B", "xy")
    assert house.plan(house.step()) == (["abc", "ab"], [], [])  # the tail goes first
    assert house.called(house.tiers.memory.in_order()) == ["abc", "ab"]

    house.add("A again", "abc")
    output = house.step()
    assert house.plan(output) == (["xy", "x"], ["ab", "abc"], [])
    assert output.num_scheduled_tokens == {"A again": 1}
    assert house.called(house.tiers.memory.in_order()) == ["xy", "x"]  # "ab" and "abc" have another owner now


def test_two_requests_change_places_in_the_same_blocks() -> None:
    """(B20: a copy races with reuse. B24: eviction, re-entered, frees what is in use.) Read first, then written.

    Blocks of the pool are read for memory and written from memory in one step; the worker compares all contents.
    """
    house = House(num_blocks=5, memory_blocks=3)
    house.send("A", "abc")
    house.send("B", "xyz")
    for name, words, down in (("A2", "abc", ["xyz", "xy", "x"]), ("B2", "xyz", ["abc", "ab", "a"])):
        house.add(name, words)
        output = house.step()
        metadata = output.kv_connector_metadata
        assert isinstance(metadata, KVConnectorMetadata)
        assert house.plan(output)[0] == down and output.num_scheduled_tokens == {name: 1}
        both = {block_id for _, block_id in metadata.stores} & {block_id for _, block_id, _ in metadata.loads}
        assert len(both) == 2  # the third block that leaves is the last token's now
        assert house.called(house.tiers.memory.in_order()) == down


def test_heads_outlive_tails_in_memory_too() -> None:
    """(B14: heads evicted before tails, a full cache and no hit.) What came down last stays longest: the head."""
    house = House(num_blocks=5, memory_blocks=2)
    house.send("A", "abc")
    house.send("B", "xyz")
    assert house.called(house.tiers.memory.in_order()) == ["ab", "a"]
    assert house.send("A again", "abc") == 5


def test_a_tenants_blocks_are_its_own_in_every_tier(tmp_path: Path) -> None:
    """The salt is in the key, and the key is all that a tier gets."""
    server = FakeServer(random.Random(0))
    house = House(num_blocks=5, memory_blocks=3, disk=DiskTier(tmp_path, 1 << 20), server=server)
    assert house.send("A", "abc", salt="one") == 13
    house.send("B", "xyz", salt="two")
    assert house.called(house.tiers.memory.in_order()) == ["one:abc", "one:ab", "one:a"]
    assert house.send("C", "abc", salt="two") == 13
    assert house.send("D", "abc") == 13
    assert house.tiers.disk is not None
    assert house.called(house.tiers.disk.in_order()) == ["one:abc", "one:ab", "one:a", "two:xyz", "two:xy", "two:x"]
    assert house.send("A again", "abc", salt="one") == 1
    assert not any(b"abc" in name or b"one" in name for name in server.entries)


def test_another_layout_or_model_finds_nothing_of_ours() -> None:
    """(B26: weights updated, KV kept.) The model's part of the hash is core's; the bytes' part is the namespace."""
    server = FakeServer(random.Random(0))
    House(num_blocks=9, server=server).send("A", "abcd")
    assert House(num_blocks=9, server=server).send("A", "abcd") == 1
    assert House(num_blocks=9, server=server, namespace="another dtype").send("A", "abcd") == 17


def test_a_request_waits_for_what_is_on_its_way_and_others_pass_it() -> None:
    """Its turn comes when the blocks are there."""
    server, held = FakeServer(random.Random(0)), Held()
    House(num_blocks=9, server=server).send("A", "abcd")
    house = House(num_blocks=20, server=server, worker=held)
    house.add("A", "abcd")
    house.add("B", "")
    assert list(house.step().num_scheduled_tokens) == ["B"]  # A's question has not been answered
    held.run()
    house.add("C", "")
    assert list(house.step().num_scheduled_tokens) == ["C"]  # the answer is there, the bytes are not
    held.run()
    output = house.step()
    assert (house.plan(output)[1], output.num_scheduled_tokens) == (["a", "ab", "abc", "abcd"], {"A": 1})


def test_a_wait_has_a_deadline() -> None:
    """(B28: a pending hit without a deadline.) The request is computed; what comes late lies in memory for the next."""
    server, held = FakeServer(random.Random(0)), Held()
    House(num_blocks=9, server=server).send("A", "abcd")
    house = House(num_blocks=9, server=server, worker=held)
    house.add("A", "abcd")
    house.add("B", "")
    assert list(house.step().num_scheduled_tokens) == ["B"]
    house.now = 1.0
    assert house.step().num_scheduled_tokens == {"A": 17}
    assert house.connector.counts["too late"] == 2  # when it waited, and again at its turn: no time was left
    held.run()
    house.add("C", "abcx")
    held.run()
    assert house.step().num_scheduled_tokens == {"C": 5}


def test_what_is_aborted_while_its_blocks_come_leaves_nothing() -> None:
    """(B19: abort during a remote load.) No block was held for it; the bytes arrive, and belong to the cache."""
    server, held = FakeServer(random.Random(0)), Held()
    House(num_blocks=9, server=server).send("A", "abcd")
    house = House(num_blocks=9, server=server, worker=held)
    house.add("A", "abcd")
    house.add("B", "")
    house.step()
    held.run()
    house.add("C", "")
    house.step()
    house.scheduler.finish_requests(["A"])
    held.run()
    assert house.kv.usage == 0.0 and not house.scheduler.requests
    house.add("D", "abcd")
    held.run()
    assert house.step().num_scheduled_tokens == {"D": 1}


def test_a_step_that_fails_leaves_the_bytes_where_they_were() -> None:
    """(B21: visible before it is complete.) The promised hashes are withdrawn, memory keeps its entries."""
    house = House(num_blocks=5)
    house.send("A", "abc")
    house.send("B", "xyz")
    house.add("A again", "abc")
    output = house.scheduler.schedule()
    assert house.plan(output)[1] == ["a", "ab", "abc"]
    house.scheduler.abandon_step()
    assert house.called(house.tiers.memory.in_order()) == ["a", "ab", "abc"]
    assert house.step().num_scheduled_tokens == {"A again": 1}
    assert house.tiers.memory._leases == set()


@pytest.mark.parametrize("trouble", ["down", "slow", "garbage", "wrong key", "bits", "short", "full"])
def test_a_server_in_trouble_costs_tokens_and_nothing_else(trouble: str) -> None:
    """(B22: other users' KV from a lower tier.) The contents are compared at every step by the worker."""
    server = FakeServer(random.Random(0))
    House(num_blocks=9, server=server).send("A", "abcd")
    house = House(num_blocks=9, server=server)
    server.trouble = trouble
    assert 1 < house.send("A", "abcd") <= 17 or trouble == "full"
    server.trouble = "none"


def test_the_breaker_opens_after_three_failures() -> None:
    """And the fourth question is not asked."""
    server = FakeServer(random.Random(0), trouble="down")
    house = House(num_blocks=9, server=server)
    for number in range(5):
        house.send(str(number), "abcd"[number % 4])
    assert server.num_calls == 3
    remote = house.tiers.remote
    assert remote is not None and remote.failures["ConnectionError"] == 3

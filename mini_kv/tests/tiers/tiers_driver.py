"""An engine without tensors over tiers, driven at random, its blocks' contents compared with what they should be.

A block's content stands for KV: a digest of the tenant, the group and all tokens up to the block's end. The worker here
writes such contents where the real one would run a model, and moves them as the connector's plan says. Before it
computes for a request, it looks at every block that the request holds: one wrong content anywhere, from whatever tier,
and the driver stops.
"""

import random
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

from mini_kv.core.invariants import find_violations
from mini_kv.core.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, SlidingWindowSpec
from mini_kv.core.kv_cache_manager import KVCacheManager
from mini_kv.core.request import Request
from mini_kv.core.sched.config import SchedulerConfig
from mini_kv.core.sched.output import SchedulerOutput
from mini_kv.tiers.background import Inline
from mini_kv.tiers.connector import KVConnectorMetadata, TieringConnector, tiered_parts
from mini_kv.tiers.disk import DiskTier
from mini_kv.tiers.memory_tier import MemoryTier
from mini_kv.tiers.remote import Breaker, RemoteTier
from mini_kv.tiers.sealed import OVERHEAD_BYTES
from mini_kv.tiers.tiered_cache import TieredCache
from mini_kv.tiers.tiered_scheduler import TieredScheduler

BLOCK_SIZE = 4
PAYLOAD_BYTES = 32
ENVELOPE_BYTES = OVERHEAD_BYTES + PAYLOAD_BYTES + 16 + 32 + 4
GROUPS = {
    "full": (FullAttentionSpec(BLOCK_SIZE),),
    "full and window": (FullAttentionSpec(BLOCK_SIZE), SlidingWindowSpec(BLOCK_SIZE, sliding_window=7)),
    "two windows": (
        SlidingWindowSpec(BLOCK_SIZE, sliding_window=6),
        SlidingWindowSpec(2 * BLOCK_SIZE, sliding_window=9),
    ),
}


class WrongContentError(AssertionError):
    """A request holds a block whose content is not its own."""


class WorkerFailedError(Exception):
    """What the driver lets a worker raise."""


def content(salt: str | None, group_id: int, token_ids: list[int]) -> bytes:
    """Return what a block holds after these tokens, its own last."""
    return sha256(f"{salt} {group_id} {token_ids}".encode()).digest()


@dataclass
class FakeServer:
    """A server in a dictionary, and what may be wrong with it. It answers as a client of Valkey would."""

    rng: random.Random
    entries: dict[bytes, Any] = field(default_factory=dict)
    trouble: str = "none"
    num_calls: int = 0

    def pipeline(self, transaction: bool = True) -> "FakePipeline":
        return FakePipeline(self)

    def set(self, name: bytes, value: bytes, *, ex: int | None = None) -> bool:
        self._call()
        if self.trouble == "full":
            raise MemoryError("OOM command not allowed")
        self.entries[name] = value
        return True

    def close(self) -> None:
        pass

    def get(self, name: bytes) -> Any:
        found = self.entries.get(name)
        if found is None:
            return None
        match self.trouble:
            case "garbage":
                return self.rng.choice([self.rng.randbytes(len(found)), b"", 7, None, "text", found[:-1]])
            case "wrong key":
                return self.rng.choice(list(self.entries.values()))
            case "bits":
                position = self.rng.randrange(len(found))
                return found[:position] + bytes([found[position] ^ 1 << self.rng.randrange(8)]) + found[position + 1 :]
        return found

    def exists(self, name: bytes) -> Any:
        return self.rng.randrange(3) if self.trouble == "garbage" else int(name in self.entries)

    def _call(self) -> None:
        self.num_calls += 1
        if self.trouble == "down" or (self.trouble == "drops half" and self.rng.random() < 0.5):
            raise ConnectionError("gone")
        if self.trouble == "slow":
            raise TimeoutError("no answer in time")


class FakePipeline:
    """Questions that are asked together."""

    def __init__(self, server: FakeServer) -> None:
        self._server = server
        self._questions: list[Callable[[], Any]] = []

    def get(self, name: bytes) -> None:
        self._questions.append(lambda: self._server.get(name))

    def exists(self, name: bytes) -> None:
        self._questions.append(lambda: self._server.exists(name))

    def execute(self, raise_on_error: bool = True) -> list[Any]:
        self._server._call()
        answers = [question() for question in self._questions]
        return answers[: len(answers) // 2] if self._server.trouble == "short" else answers


TROUBLES = ["none", "none", "none", "down", "slow", "drops half", "garbage", "wrong key", "bits", "short", "full"]


class ContentWorker:
    """Keeps a content per block and group, and does to them what a step does to KV."""

    def __init__(self, kv: KVCacheManager, tiers: TieredCache) -> None:
        self.kv, self.tiers = kv, tiers
        self.memory: dict[int, bytes] = {}

    def run(self, output: SchedulerOutput, requests: dict[str, Request], fails_at: str | None) -> None:
        """Do a step; raise `WorkerFailedError` at the given place."""
        metadata = output.kv_connector_metadata
        assert isinstance(metadata, KVConnectorMetadata)
        if fails_at == "start":
            raise WorkerFailedError
        for key, block_id in metadata.stores:
            self.tiers.store(key, self.memory[block_id])
        for _, block_id, payload in metadata.loads:
            self.memory[block_id] = bytes(payload)
        if fails_at == "before the model":
            raise WorkerFailedError
        contents = dict(self.memory)
        for request_id, num_tokens in output.num_scheduled_tokens.items():
            request = requests[request_id]
            self._write(request, request.num_computed_tokens, request.num_computed_tokens + num_tokens)
        for request_id in output.num_scheduled_tokens:
            self._check(requests[request_id], contents)
        if fails_at == "after the model":
            raise WorkerFailedError
        for key, block_id in metadata.saves:
            self.tiers.share(key, self.memory[block_id])

    def _write(self, request: Request, start: int, end: int) -> None:
        for manager in self.kv.coordinator.single_type_managers:
            table = manager.req_to_blocks[request.request_id]
            for position in range(start // manager.block_size, -(-end // manager.block_size)):
                last = min((position + 1) * manager.block_size, end)
                if not table[position].is_null:
                    tokens = list(request.token_ids[:last])
                    self.memory[table[position].block_id] = content(
                        request.cache_salt, manager.kv_cache_group_id, tokens
                    )

    def _check(self, request: Request, contents: dict[int, bytes]) -> None:
        """Compare what the request's computed blocks held before this step, or were given in it by others."""
        for manager in self.kv.coordinator.single_type_managers:
            table = manager.req_to_blocks[request.request_id]
            num_full = request.num_computed_tokens // manager.block_size
            for position, block in enumerate(table[:num_full]):
                if block.is_null:
                    continue
                tokens = list(request.token_ids[: (position + 1) * manager.block_size])
                expected = content(request.cache_salt, manager.kv_cache_group_id, tokens)
                if self.memory.get(block.block_id) != expected:
                    raise WrongContentError(
                        f"{request.request_id}, group {manager.kv_cache_group_id}, block {position}"
                    )


class TieredDrive:
    """One engine's life at random. `operations` yields after each, for a test that wants to look."""

    def __init__(
        self,
        seed: int,
        groups: str,
        folder: Path,
        entries: dict[bytes, Any] | None = None,
        make_tiers: type[TieredCache] = TieredCache,
    ) -> None:
        """Open an engine; `entries`: a server's that another engine has filled."""
        self.rng = random.Random(f"{seed} {groups}")
        specs = GROUPS[groups]
        config = KVCacheConfig(
            14 * len(specs), tuple(KVCacheGroupSpec((f"layer.{i}",), spec) for i, spec in enumerate(specs))
        )
        limits = SchedulerConfig(
            max_num_seqs=4, max_num_batched_tokens=24, max_model_len=48, scheduler_reserve_full_isl=False
        )
        self.now = 0.0
        self.server = FakeServer(self.rng, {} if entries is None else entries)
        remote = RemoteTier(self.server, breaker=Breaker(seconds_open=3.0, clock=lambda: self.now))
        self.tiers = make_tiers(
            MemoryTier(self.rng.choice([3, 8]) * ENVELOPE_BYTES),
            DiskTier(folder, 20 * ENVELOPE_BYTES),
            remote,
            make_worker=Inline,
        )
        self.kv = KVCacheManager(config, max_in_flight_tokens=24, parts=tiered_parts())
        connector = TieringConnector(
            self.kv, self.tiers, [PAYLOAD_BYTES] * len(specs), seconds_to_wait=1.0, clock=lambda: self.now
        )
        self.connector = connector
        self.scheduler = TieredScheduler(self.kv, limits, connector=connector)
        self.worker = ContentWorker(self.kv, self.tiers)
        self.documents = [[self.rng.randrange(50) for _ in range(40)] for _ in range(3)]
        self.num_requests = self.num_steps = self.num_failed = 0

    def operations(self, num: int) -> Iterator[None]:
        """Do random operations, and check after each that nothing is wrong."""
        with closing(self.tiers):
            for _ in range(num):
                self._operation()
                self.check()
                yield

    def _operation(self) -> None:
        chance = self.rng.random()
        if chance < 0.22 and len(self.scheduler.requests) < 8:
            self._add()
        elif chance < 0.90:
            self._step()
        elif chance < 0.93 and self.scheduler.requests:
            self.scheduler.finish_requests([self.rng.choice(list(self.scheduler.requests))])
        elif chance < 0.95:
            self._damage_the_disk()
        elif chance < 0.97:
            self.server.trouble = self.rng.choice(TROUBLES)
        elif chance < 0.972:
            self.kv.reset_prefix_cache()
        else:
            self.now += self.rng.random() * 2

    def _add(self) -> None:
        document = self.rng.choice(self.documents)
        tokens = document[: self.rng.randrange(1, 36)] + [self.rng.randrange(50) for _ in range(self.rng.randrange(4))]
        salt = self.rng.choice([None, "a", "b"])
        request = self.kv.new_request(str(self.num_requests), tokens, cache_salt=salt)
        self.num_requests += 1
        self.scheduler.add_request(request, max_tokens=self.rng.randrange(1, 8))

    def _step(self) -> None:
        if not self.scheduler.requests:
            return
        output = self.scheduler.schedule()
        requests = dict(self.scheduler.requests)
        places = ("start", "before the model", "after the model")
        fails_at = self.rng.choice(places) if self.rng.random() < 0.05 else None
        self.num_steps += 1
        try:
            self.worker.run(output, requests, fails_at)
        except WorkerFailedError:
            self.num_failed += 1
            self.scheduler.abandon_step()
            return
        sampled = {
            request_id: [self.rng.randrange(50)]
            for request_id, num_tokens in output.num_scheduled_tokens.items()
            if requests[request_id].num_computed_tokens + num_tokens == requests[request_id].num_tokens
        }
        self.scheduler.update_from_output(output, sampled)

    def _damage_the_disk(self) -> None:
        disk = self.tiers.disk
        assert disk is not None
        paths = [path for key in disk.in_order() if (path := disk._path(key)).stat().st_size]  # some are cut to nothing
        if paths:
            path = self.rng.choice(paths)
            image = bytearray(path.read_bytes())
            image[self.rng.randrange(len(image))] ^= 1 << self.rng.randrange(8)
            path.write_bytes(image if self.rng.random() < 0.7 else image[: self.rng.randrange(len(image))])

    def check(self) -> None:
        """Raise unless the pool is whole, and each block has one owner among pool, memory and disk."""
        for violation in find_violations(self.kv):
            raise AssertionError(str(violation))
        disk = self.tiers.disk
        assert disk is not None
        self.tiers.poll()
        assert not set(self.tiers.memory.in_order()) & set(disk.in_order()), "a block is in memory and on disk"
        if self.scheduler.step is None:
            doubled = [
                key for key in (*self.tiers.memory.in_order(), *disk.in_order()) if self.connector._is_in_pool(key)
            ]
            assert not doubled, f"{len(doubled)} blocks are in the pool and below it"
        if not self.scheduler.requests:
            self.connector.build_connector_meta(())
            assert not self.tiers.memory._leases, "a lease is left, and no request"

"""Drives the engine and the reference with the same random operations and compares all of their state after each.

    python -m mini_kv.tests.random_driver --seed 7 --ops 100000 --block-size 4

Operations are data, so that a failing run can be cut down to the few that matter and played again with `replay`. An
operation that makes no sense in the state it meets (its request is gone, say) does nothing: that is what makes it safe
to leave others out.

Work comes in steps, as in a scheduler: some requests are given slots and publish their full blocks as promises, others
of the same step may adopt these, then the step runs and writes KV; or a request is stopped before it ran.
"""

import argparse
import random
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from math import lcm
from typing import Any, ClassVar, TypeAlias

from mini_kv.core.block import BlockHashWithGroupId
from mini_kv.core.errors import (
    AllocationError,
    BlockStateError,
    OutOfBlocksError,
    RepeatedRequestError,
    UnknownRequestError,
)
from mini_kv.core.invariants import check_invariants
from mini_kv.core.kv_cache_interface import KVCacheConfig, KVCacheGroupSpec
from mini_kv.core.kv_cache_manager import KVCacheBlocks, KVCacheManager
from mini_kv.core.request import LoRARequest, MultiModalFeature, Request
from mini_kv.course.verify.adapters.specs import spec_of
from mini_kv.story.debug import DebugKVCacheManager
from mini_kv.tests.pairwise import Setting, pairwise_rows
from mini_kv.tests.reference import ContentOracle, Group, Namespace, Prefix, ReferenceCache, ReferenceRequest, Tables

Op: TypeAlias = tuple[Any, ...]
"""Name of the operation, then its arguments: the arguments of the method of `World` with that name."""

NAMESPACES = (
    Namespace(),
    Namespace(cache_salt="tenant-a"),
    Namespace(cache_salt="tenant-b"),  # as long as the first, so that a key made of lengths would not tell them apart
    Namespace(adapter=("tenant-a", "/one")),
    Namespace(adapter=("tenant-a", "/two")),
    Namespace(images=(("cat", 1, 2),)),
    Namespace(images=(("cat", 2, 2),)),
    Namespace(images=(("dog", 1, 2),)),
)

OPS_PER_EPISODE = 500
MAX_LIVE = 7


@dataclass(frozen=True, slots=True)
class Config:
    """The cache to drive."""

    block_size: int = 4
    num_blocks: int = 10
    num_documents: int = 3
    """How many texts the prompts are beginnings of: the fewer, the more blocks are shared."""
    num_namespaces: int = 2
    enable_caching: bool = True
    debug: bool = False
    """Whether to drive the `DebugKVCacheManager`."""
    forks: bool = True
    drafts: bool = True
    lookahead: bool = True
    """Whether these are drawn."""
    groups: str = ""
    """Groups of layers as kind:block_size:reach, such as `full:4 window:2:5`; empty: full attention alone."""

    def all_groups(self) -> list[Group]:
        """Return the groups."""
        if not self.groups:
            return [Group("full", self.block_size)]
        words = [text.split(":") for text in self.groups.split()]
        return [Group(kind, *map(int, numbers)) for kind, *numbers in words]

    def make(
        self,
        *,
        retention_interval: int | None = None,
        drafter_groups: Sequence[int] = (),
        num_hash_lookahead_tokens: int = 0,
        manager_class: type[KVCacheManager] = KVCacheManager,
        **options: Any,
    ) -> KVCacheManager:
        """Return a new cache; the options are the manager's. The reference knows no retention and no drafter."""
        specs = [spec_of(asdict(group)) for group in self.all_groups()]
        groups = tuple(
            KVCacheGroupSpec((f"group {i}",), spec, is_eagle_group=i in drafter_groups) for i, spec in enumerate(specs)
        )
        config = KVCacheConfig(self.num_blocks, groups, retention_interval, num_hash_lookahead_tokens)
        kv = manager_class(config, enable_caching=self.enable_caching, **options)
        return DebugKVCacheManager(kv) if self.debug else kv

    def make_reference(self) -> ReferenceCache:
        """Return what the cache is compared with."""
        return ReferenceCache(self.num_blocks, self.all_groups(), enable_caching=self.enable_caching)

    def make_world(self) -> "World":
        """Return both, with nothing in them."""
        return World(self)


CONFIGS = (
    Config(block_size=1, num_blocks=8),
    Config(block_size=1, num_blocks=20, num_namespaces=len(NAMESPACES)),
    Config(block_size=3, num_blocks=8, num_documents=1, num_namespaces=1),
    Config(block_size=3, num_blocks=14, num_namespaces=len(NAMESPACES)),
    Config(block_size=4, num_blocks=10),
    Config(block_size=4, num_blocks=16, num_documents=1, num_namespaces=1),
    Config(block_size=4, num_blocks=24, num_documents=6, num_namespaces=3),
    Config(block_size=16, num_blocks=8, num_documents=2),
    Config(block_size=16, num_blocks=14, num_documents=1, num_namespaces=len(NAMESPACES)),
    Config(block_size=4, num_blocks=10, enable_caching=False),
    Config(num_blocks=24, num_documents=2, groups="full:4 window:4:6"),
    Config(num_blocks=40, num_documents=1, num_namespaces=1, groups="full:2 window:2:3 window:2:7"),
    Config(num_blocks=16, num_documents=1, num_namespaces=3, groups="window:3:5"),
    Config(num_blocks=40, num_documents=2, groups="full:2 window:4:5 full:6"),
    Config(num_blocks=30, num_documents=1, groups="chunks:2:6 full:4 window:2:4"),
    Config(num_blocks=24, num_documents=1, num_namespaces=1, groups="full:2 state:4"),
    Config(num_blocks=40, num_documents=1, groups="state:2 full:2 window:2:6 chunks:2:5 state:4"),
    Config(num_blocks=24, enable_caching=False, groups="full:4 window:2:5 state:4"),
)
"""The caches of the test: all contended, since in a roomy cache nothing happens."""


DIMENSIONS: dict[str, Sequence[Any]] = {
    "groups": (
        "full:4", "full:1", "full:2 full:4", "full:4 window:4:6", "window:3:5", "full:4 window:2:5 chunks:2:6",
        "chunks:2:6 full:4", "full:2 state:4", "state:2 full:2 window:2:6 chunks:2:5",
    ),
    "num_blocks": (40, 24),
    "num_documents": (1, 3),
    "num_namespaces": (1, 3, len(NAMESPACES)),
    "enable_caching": (True, False),
    "forks": (False, True),
    "drafts": (False, True),
    "lookahead": (False, True),
}  # fmt: skip
"""What the matrix varies."""


def cannot_meet(one: Setting, other: Setting) -> bool:
    """Return whether two settings exclude each other: a state forgets no token, and has one reader."""
    return one[0] == "groups" and "state" in one[1] and other in {(n, True) for n in ("forks", "drafts", "lookahead")}


def matrix(seed: int = 0) -> list[Config]:
    """Return caches in which every two settings meet."""
    return [Config(**row) for row in pairwise_rows(DIMENSIONS, seed, excluded=cannot_meet)]


class Mismatch(AssertionError):
    """The engine's state is not the reference's."""


@dataclass(slots=True)
class Live:
    """A request that is waiting or running: the engine's object, the reference's, and what is pending."""

    request: Request
    ref: ReferenceRequest
    found: tuple[KVCacheBlocks, int] | None = None
    """The last lookup's hit, and its tokens; it may be stale by now."""
    drafts: tuple[int, ...] = ()
    """Tokens that were proposed in the last step and wait for a verdict."""


@dataclass(slots=True)
class World:
    """One engine, one reference, one memory."""

    config: Config
    groups: list[Group] = field(init=False)
    kv: KVCacheManager = field(init=False)
    ref: ReferenceCache = field(init=False)
    memory: ContentOracle = field(init=False)
    live: dict[str, Live] = field(default_factory=dict)
    scheduled: dict[str, tuple[int, tuple[int, ...]]] = field(default_factory=dict)
    """Who runs in the coming step: number of known tokens, drafts."""
    forked: set[str] = field(default_factory=set)
    """Requests that may share a half-filled block."""
    prefix_of_key: dict[BlockHashWithGroupId, tuple[int, Prefix]] = field(default_factory=dict)
    key_of_prefix: dict[tuple[int, Prefix], BlockHashWithGroupId] = field(default_factory=dict)
    """Every key ever seen and its prefix: one to one, else tenants share (I13) or equal prefixes do not (I12)."""

    def __post_init__(self) -> None:
        config = self.config
        self.groups = config.all_groups()
        self.kv = config.make()
        self.ref = config.make_reference()
        self.memory = ContentOracle(config.num_blocks, max(group.block_size for group in self.groups))

    def apply(self, op: Op) -> bool:
        """Do one operation on both sides and compare them; return whether it made sense in this state."""
        done: bool = getattr(self, op[0])(*op[1:])
        if done:
            self.compare()
        return done

    # Operations. Each returns False, with nothing changed, if it makes no sense now.

    def submit(self, name: str, namespace: int, token_ids: tuple[int, ...]) -> bool:
        """Bring a new request; it waits."""
        if name in self.live:
            return False
        self.live[name] = self._new(name, NAMESPACES[namespace], token_ids)
        return True

    def lookup(self, name: str) -> bool:
        """Look a request up, waiting or running, and keep the answer."""
        live = self.live.get(name)
        if live is None:
            return False
        live.found = self._look_up(live)
        return True

    def allocate(self, name: str, num_new: int, drafts: tuple[int, ...], lookahead: int, hit: str) -> bool:
        """Schedule a request for the coming step; a waiting one is admitted.

        `hit` says what becomes of a waiting request's hit: "adopted" into num_computed_tokens before the call,
        "passed" as an argument, "ignored", or "stale": passed, but from an older lookup.
        """
        live = self.live.get(name)
        if live is None or name in self.scheduled:
            return False
        found = self._hit(live, hit)
        if found is None:
            return False
        blocks, adopted, passed = found
        remaining = len(live.ref.token_ids) - live.ref.num_computed - adopted - passed
        if remaining < 1:
            return False
        num_new = min(num_new, remaining)
        drafts = drafts if num_new == remaining else ()
        live.request.num_computed_tokens += adopted
        arguments = (live.request, num_new + len(drafts), passed, blocks, lookahead)
        if hit == "stale" and blocks is not None and not self.ref.is_cached(live.ref, _ids(blocks)):
            self._expect(AllocationError, lambda: self.kv.allocate_slots(*arguments))
            live.found = None
            return True
        got = self.kv.allocate_slots(*arguments)
        hit_ids = _ids(blocks) if blocks is not None else [[] for _ in self.groups]
        wanted = self.ref.allocate(live.ref, hit_ids, adopted + passed, num_new + len(drafts), lookahead)
        # Calls that give no block return the same empty answer each time.
        self._same("new blocks", got if got is None else _ids(got), wanted)
        if wanted is None:
            live.request.num_computed_tokens -= adopted
            return True
        live.request.num_computed_tokens += passed
        live.ref.num_computed += adopted + passed
        self._take(live.ref, wanted)
        self.scheduled[name] = (num_new, drafts)
        return True

    def _take(self, request: ReferenceRequest, new_blocks: Tables) -> None:
        """Note in the memory whose the new blocks are, and those that were copied for a fork."""
        self.memory.take(request.name, (block_id for blocks in new_blocks for block_id in blocks if block_id))
        if request.name in self.forked:
            self._own_half_filled_blocks(request)

    def _hit(self, live: Live, hit: str) -> tuple[KVCacheBlocks | None, int, int] | None:
        """Return the blocks that a waiting request hits, and how many of their tokens are adopted and passed.

        A running request has no hit. `None` if the hit shall be stale and there was no older lookup.
        """
        if live.ref.name in self.ref.tables or hit == "ignored":
            return None, 0, 0
        found = live.found if hit == "stale" else self._look_up(live)
        if found is None:
            return None
        blocks, num_hit = found
        return (blocks, num_hit, 0) if hit == "adopted" else (blocks, 0, num_hit)

    def fork(self, parent: str, name: str, tail: tuple[int, ...]) -> bool:
        """Let a new request go on, with other tokens, from what a running one has computed."""
        live = self.live.get(parent)
        if live is None or parent not in self.ref.tables or parent in self.scheduled or name in self.live:
            return False
        if live.drafts or live.ref.num_computed < 1 or any(group.kind == "state" for group in self.groups):
            return False
        tokens = (*live.ref.token_ids[: live.ref.num_computed], *tail)
        self.live[name] = child = self._new(name, live.ref.namespace, tokens)
        self.kv.fork(live.request, child.request)
        child.request.num_computed_tokens = live.request.num_computed_tokens
        self.ref.fork(live.ref, child.ref)
        self.forked |= {parent, name}
        return True

    def step(self) -> bool:
        """Run the step: each scheduled request writes its KV and reads all of its prefix, in the order scheduled."""
        if not self.scheduled:
            return False
        self._copy()
        for name in list(self.scheduled):
            num_new, drafts = self.scheduled.pop(name)
            self._compute(self.live[name], num_new, drafts)
        self.kv.finish_kv_cache_block_copies()
        self.ref.finish_copies()
        return True

    def append(self, name: str, token: int, num_accepted: int) -> bool:
        """Take the step's outcome: accepted drafts, and one more token that was sampled."""
        live = self.live.get(name)
        if live is None or name not in self.ref.tables or name in self.scheduled:
            return False
        if live.ref.num_computed < len(live.ref.token_ids):
            return False
        accepted, rejected = live.drafts[:num_accepted], live.drafts[num_accepted:]
        first_rejected = live.ref.num_computed + len(accepted)
        for group, table in zip(self.groups, self.kv.get_block_ids(name), strict=True):
            self.memory.forget(group, table, range(first_rejected, first_rejected + len(rejected)))
        live.drafts = ()
        live.request.append_output_token_ids(*accepted, token)
        live.ref.append([*accepted, token])
        live.ref.num_computed += len(accepted)
        live.request.num_computed_tokens = live.ref.num_computed
        return True

    def preempt(self, name: str) -> bool:
        """Take a running request's blocks; it waits again, from the start."""
        if name not in self.ref.tables:
            return False
        self._stop(name)
        return True

    def abort(self, name: str) -> bool:
        """Drop a request, waiting or running, before or after its step."""
        if name not in self.live:
            return False
        if name in self.ref.tables:
            self._stop(name)
        del self.live[name]
        return True

    def finish(self, name: str) -> bool:
        """End a running request whose step is done."""
        if name not in self.ref.tables or name in self.scheduled:
            return False
        return self.abort(name)

    def evict(self, block_ids: tuple[int, ...]) -> bool:
        """Drop the keys of some blocks, held or not: makes holes in prefixes that free alone never makes."""
        self.kv.evict_blocks(block_ids)
        self.ref.evict(block_ids)
        return True

    def reset(self) -> bool:
        """Try to forget the whole cache."""
        self._same("reset", self.kv.reset_prefix_cache(), self.ref.reset())
        return True

    def drain(self) -> bool:
        """Run what is scheduled and end everything: nothing may be held or left over (I14)."""
        self.step()
        self.kv.finish_kv_cache_block_copies()  # of requests that were stopped before their step
        self.ref.finish_copies()
        for name in list(self.live):
            self.abort(name)
        self._same("blocks held after the drain", self.kv.usage, 0.0)
        return True

    def misuse(self, kind: str, name: str) -> bool:
        """Do what is forbidden; the right error must come and the state must stay."""
        live = self.live.get(name)
        if live is None:
            return False
        kv, request = self.kv, live.request
        running = name in self.ref.tables
        namesake = Request(name, [0])
        free_block = kv.block_pool.blocks[self.ref.free_queue[0]] if self.ref.free_queue else None
        cases: dict[str, tuple[bool, type[Exception], Callable[[], object]]] = {
            "free what waits": (not running, UnknownRequestError, lambda: kv.free(request)),
            "withdraw what waits": (not running, UnknownRequestError, lambda: kv.withdraw_promises(request)),
            "free a namesake": (running, UnknownRequestError, lambda: kv.free(namesake)),
            "admit a namesake": (running, RepeatedRequestError, lambda: kv.allocate_slots(namesake, 1)),
            "compute nothing": (True, AllocationError, lambda: kv.allocate_slots(request, 0)),
            "look behind": (True, AllocationError, lambda: kv.allocate_slots(request, 1, 0, None, -1)),
            "count a hit without blocks": (
                not running, AllocationError, lambda: kv.allocate_slots(request, 1, self.config.block_size)
            ),
            "pass a hit while running": (
                running, AllocationError, lambda: kv.allocate_slots(request, 1, self.config.block_size)
            ),
            "free a free block": (
                free_block is not None, BlockStateError, lambda: kv.block_pool.free_blocks([free_block])  # type: ignore[list-item]
            ),
            "evict what is no block": (
                True, BlockStateError, lambda: kv.evict_blocks([1, self.config.num_blocks])
            ),
            "take too many": (
                True, OutOfBlocksError, lambda: kv.block_pool.get_new_blocks(len(self.ref.free_queue) + 1)
            ),
        }  # fmt: skip
        possible, error, call = cases[kind]
        if possible:
            self._expect(error, call)
        return possible

    # Parts of operations.

    def _new(self, name: str, space: Namespace, token_ids: Sequence[int]) -> Live:
        request = self.kv.new_request(
            name,
            token_ids,
            cache_salt=space.cache_salt,
            lora_request=LoRARequest(*space.adapter) if space.adapter is not None else None,
            mm_features=[MultiModalFeature(*image) for image in space.images],
        )
        return Live(request, ReferenceRequest(name, space, list(token_ids)))

    def _own_half_filled_blocks(self, ref: ReferenceRequest) -> None:
        """Note that the request may write where its next slots lie: in a copy, or as the last one in the original."""
        self.forked.discard(ref.name)
        for group, table in zip(self.groups, self.ref.tables[ref.name], strict=True):
            if ref.num_computed % group.block_size:
                self.memory.go_on(ref.name, table[ref.num_computed // group.block_size])

    def _copy(self) -> None:
        """Make the copies that the step begins with."""
        copies = self.kv.take_kv_cache_block_copies()
        self._same("copies", copies, self.ref.copies)
        self.memory.copy(copies)
        self.ref.copies = []

    def _look_up(self, live: Live) -> tuple[KVCacheBlocks, int]:
        blocks, num_tokens = self.kv.get_computed_blocks(live.request)
        self._same("hit", (_ids(blocks), num_tokens), self.ref.lookup(live.ref))
        return blocks, num_tokens

    def _compute(self, live: Live, num_new: int, drafts: tuple[int, ...]) -> None:
        ref = live.ref
        start = ref.num_computed
        contents = ref.prefixes[start : start + num_new]
        if drafts:
            all_tokens = [*ref.token_ids, *drafts]
            first = len(ref.token_ids) + 1
            contents += [ref.namespace.prefix(all_tokens[:end]) for end in range(first, len(all_tokens) + 1)]
        # A request that is still to run in this step has read nothing yet: its promised blocks are being written now.
        readers = [
            block_id
            for name in self.kv.requests
            if name != ref.name and name not in self.scheduled
            for table in self.kv.get_block_ids(name)
            for block_id in table
        ]
        end = start + num_new
        for group, table in zip(self.groups, self.kv.get_block_ids(ref.name), strict=True):
            if (
                group.kind == "state"
            ):  # is read before the step, and what the step leaves is written over it or beside it
                self.memory.read(ref.name, group, table, ref.prefixes[:start], group.first_read(start))
            self.memory.write(ref.name, group, table, start, contents, readers)
            if group.kind != "state":
                self.memory.read(ref.name, group, table, ref.prefixes[:end], group.first_read(start))
        live.request.num_computed_tokens = ref.num_computed = end
        live.drafts = drafts

    def _stop(self, name: str) -> None:
        """Free a running request, and with it the requests that rely on KV which it will not write now."""
        live = self.live[name]
        dependants: list[str] = []
        if name in self.scheduled:
            del self.scheduled[name]
            dependants = self.kv.withdraw_promises(live.request)
            self._same("holders of withdrawn promises", dependants, self.ref.withdraw(live.ref))
            self._same("of these, requests that have run", [d for d in dependants if d not in self.scheduled], [])
        self.kv.free(live.request)
        self.ref.release(live.ref)
        live.request.num_computed_tokens = live.ref.num_computed = 0
        live.drafts = ()
        for dependant in dependants:
            if dependant in self.ref.tables:
                self._stop(dependant)

    def _expect(self, error: type[Exception], call: Callable[[], object]) -> None:
        try:
            result = call()
        except error:
            return
        raise Mismatch(f"{error.__name__} expected, but {result!r} was returned")

    # The comparison.

    def compare(self) -> None:
        """Raise unless the engine's whole state is the reference's, and is sound by itself."""
        kv, ref = self.kv, self.ref
        blocks = kv.block_pool.blocks
        self._same(
            "free queue", [b.block_id for b in kv.block_pool.free_block_queue.get_all_free_blocks()], ref.free_queue
        )
        self._same("ref_cnt", [block.ref_cnt for block in blocks], ref.ref_counts())
        self._same("tables", {name: list(kv.get_block_ids(name)) for name in kv.requests}, ref.tables)
        self._same("order of admission", list(kv.requests), list(ref.tables))
        self._same("cached blocks", {b.block_id for b in blocks if b.block_hash is not None}, set(ref.key_of))
        self._compare_keys()
        stats = kv.prefix_cache_stats
        self._same(
            "statistics",
            (stats.requests, stats.queries, stats.hits),
            (ref.num_requests, ref.num_queried_tokens, ref.num_hit_tokens),
        )
        for name, live in self.live.items():
            self._same(f"num_cached_tokens of {name}", live.request.num_cached_tokens, live.ref.num_cached)
            self._same(f"num_computed_tokens of {name}", live.request.num_computed_tokens, live.ref.num_computed)
        check_invariants(kv)

    def _compare_keys(self) -> None:
        """Compare the index with the reference's, key by key: which prefix, which blocks, oldest first."""
        blocks = self.kv.block_pool.blocks
        wanted: dict[tuple[int, Prefix] | str, list[int]] = {}
        for block_id, prefix in self.ref.key_of.items():
            key = blocks[block_id].block_hash
            assert key is not None
            wanted.setdefault(prefix, []).append(block_id)
            if self.prefix_of_key.setdefault(key, prefix) != prefix:
                raise Mismatch(f"I13: one key for two prefixes: {self.prefix_of_key[key]} and {prefix}")
            if self.key_of_prefix.setdefault(prefix, key) != key:
                raise Mismatch(f"I12: a second key for the prefix {prefix}")
        index = self.kv.block_pool.cached_block_hash_to_block
        found: dict[tuple[int, Prefix] | str, list[int]] = {
            self.prefix_of_key.get(key, key.hex()): [block.block_id for block in under] for key, under in index.items()
        }
        self._same("blocks under a key", found, wanted)
        self._same("number of keys", len(index), len(wanted))

    def _same(self, what: str, engine: object, reference: object) -> None:
        if engine != reference:
            raise Mismatch(f"{what}: the engine has {engine}, the reference {reference}")


def _ids(blocks: KVCacheBlocks) -> Tables:
    return list(blocks.get_block_ids())


MISUSES = (
    "free what waits", "withdraw what waits", "free a namesake", "admit a namesake", "compute nothing", "look behind",
    "count a hit without blocks", "pass a hit while running", "free a free block", "evict what is no block",
    "take too many",
)  # fmt: skip


class Generator:
    """Draws operations that make sense in the world's present state."""

    WEIGHTS: ClassVar[dict[str, int]] = {
        "submit": 100, "lookup": 40, "allocate": 300, "step": 55, "append": 250, "preempt": 30, "abort": 30,
        "finish": 50, "fork": 80, "evict": 20, "reset": 8, "drain": 2, "misuse": 20,
    }  # fmt: skip

    def __init__(self, world: World, seed: int) -> None:
        self.world = world
        self.rng = random.Random(seed)
        self.num_submitted = 0
        config = world.config
        groups = config.all_groups()
        self.block_size = lcm(*(group.block_size for group in groups))
        self.has_states = any(group.kind == "state" for group in groups)
        blocks_a_boundary = sum(self.block_size // group.block_size for group in groups)
        capacity = self.block_size * (config.num_blocks - 1) // blocks_a_boundary
        self.max_tokens = max(2, capacity * 2 // 3)
        # Documents begin alike, so that prefixes fork; tokens are few, so that different prefixes look alike.
        common = [self.rng.randrange(2) for _ in range(self.max_tokens)]
        self.documents = []
        for _ in range(config.num_documents):
            fork = self.rng.randrange(self.max_tokens)
            tail = [self.rng.randrange(2) for _ in range(self.max_tokens - fork)]
            self.documents.append(common[:fork] + tail)
        self.kinds = list(self.WEIGHTS)
        self.cumulative = [sum(list(self.WEIGHTS.values())[: i + 1]) for i in range(len(self.kinds))]

    def draw(self) -> Op:
        """Return the next operation; it may still turn out to make no sense, rarely."""
        while True:
            (kind,) = self.rng.choices(self.kinds, cum_weights=self.cumulative)
            op: Op | None = getattr(self, f"_{kind}")()
            if op is not None:
                return op

    def _pick(self, names: Sequence[str]) -> str | None:
        return self.rng.choice(names) if names else None

    def _submit(self) -> Op | None:
        if len(self.world.live) >= MAX_LIVE:
            return None
        length = min(self.rng.randrange(1, self.max_tokens), self.rng.randrange(1, self.max_tokens))
        if self.rng.random() < 0.3:  # aligned prompts: the cap is at work
            length = max(1, length // self.block_size) * self.block_size
        token_ids = self.rng.choice(self.documents)[:length]
        namespace = self.rng.randrange(self.world.config.num_namespaces)
        return ("submit", self._name(), namespace, tuple(token_ids))

    def _lookup(self) -> Op | None:
        name = self._pick(list(self.world.live))
        return name and ("lookup", name)  # type: ignore[return-value]

    def _allocate(self) -> Op | None:
        world, rng = self.world, self.rng
        names = [
            name
            for name, live in world.live.items()
            if name not in world.scheduled and live.ref.num_computed < len(live.ref.token_ids)
        ]
        name = self._pick(names)
        if name is None:
            return None
        size = self.block_size
        num_new = 1000 if rng.random() < 0.6 else rng.randrange(1, 2 * size + 1)  # whole, or in chunks
        drafts = tuple(rng.randrange(2) for _ in range(rng.choice((0, 0, 0, 1, 2, size))))
        lookahead = rng.choice((0, 0, 0, 1, size))
        if self.has_states or not world.config.drafts:  # no token can be taken back out of a state
            drafts = ()
        if self.has_states or not world.config.lookahead:
            lookahead = 0
        hit = rng.choices(("adopted", "passed", "stale", "ignored"), (5, 5, 2, 1))[0]
        return ("allocate", name, num_new, drafts, lookahead, hit)

    def _fork(self) -> Op | None:
        world = self.world
        names = [name for name in world.ref.tables if name not in world.scheduled and not world.live[name].drafts]
        parent = self._pick(names)
        if parent is None or self.has_states or not world.config.forks or len(world.live) >= MAX_LIVE:
            return None
        if not 0 < world.live[parent].ref.num_computed < self.max_tokens:
            return None
        tail = tuple(self.rng.randrange(2) for _ in range(self.rng.choice((1, 1, 2, self.block_size))))
        return ("fork", parent, self._name(), tail)

    def _name(self) -> str:
        """Return the next name. One that is used again must find nothing left of its first bearer."""
        self.num_submitted += 1
        return f"r{self.num_submitted % (2 * MAX_LIVE)}"

    def _step(self) -> Op | None:
        return ("step",) if self.world.scheduled else None

    def _append(self) -> Op | None:
        world = self.world
        names = [
            name
            for name in world.ref.tables
            if name not in world.scheduled
            and world.live[name].ref.num_computed == len(world.live[name].ref.token_ids) < self.max_tokens
        ]
        name = self._pick(names)
        if name is None:
            return None
        return ("append", name, self.rng.randrange(2), self.rng.randrange(len(world.live[name].drafts) + 1))

    def _preempt(self) -> Op | None:
        name = self._pick(list(self.world.ref.tables))
        return name and ("preempt", name)  # type: ignore[return-value]

    def _abort(self) -> Op | None:
        name = self._pick(list(self.world.live))
        return name and ("abort", name)  # type: ignore[return-value]

    def _finish(self) -> Op | None:
        name = self._pick([name for name in self.world.ref.tables if name not in self.world.scheduled])
        return name and ("finish", name)  # type: ignore[return-value]

    def _evict(self) -> Op:
        num_blocks = self.world.config.num_blocks
        return ("evict", tuple(self.rng.randrange(num_blocks) for _ in range(self.rng.randrange(1, 4))))

    def _reset(self) -> Op:
        return ("reset",)

    def _drain(self) -> Op:
        return ("drain",)

    def _misuse(self) -> Op | None:
        name = self._pick(list(self.world.live))
        return name and ("misuse", self.rng.choice(MISUSES), name)  # type: ignore[return-value]


# Running, replaying, shrinking.


class DriverFailure(AssertionError):
    """A difference was found. The message is a full report; `ops` is the shortest failing run that was found."""

    def __init__(self, report: str, ops: list[Op]) -> None:
        super().__init__(report)
        self.ops = ops


def replay(ops: Sequence[Op], config: Config) -> Exception | None:
    """Play operations on a new cache; return what went wrong, or `None`."""
    world = config.make_world()
    for op in ops:
        try:
            world.apply(op)
        except Exception as error:  # a broken engine may raise anything
            return error
    return None


def shrink(ops: Sequence[Op], config: Config, seconds: float = 20.0) -> list[Op]:
    """Return a short part of the operations that still fails: leaves out ever smaller stretches while that works."""
    deadline = time.monotonic() + seconds
    best = list(ops)
    size = max(1, len(best) // 2)
    while True:
        start, removed = 0, False
        while start < len(best) and time.monotonic() < deadline:
            shorter = best[:start] + best[start + size :]
            if replay(shorter, config) is not None:
                best, removed = shorter, True
            else:
                start += size
        if time.monotonic() >= deadline or (size == 1 and not removed):
            return best
        size = max(1, size // 2)


def run_episode(config: Config, seed: int, num_ops: int = OPS_PER_EPISODE, shrink_s: float = 20.0) -> None:
    """Do random operations on a new cache; raises `DriverFailure`, shrunk, at the first difference."""
    world = config.make_world()
    generator = Generator(world, seed)
    ops: list[Op] = []
    num_done = 0
    try:
        while num_done < num_ops:
            ops.append(generator.draw())
            num_done += world.apply(ops[-1])
        ops.append(("drain",))
        world.apply(ops[-1])
    except Exception as error:  # a broken engine may raise anything
        raise DriverFailure(*_report(config, seed, ops, error, shrink_s)) from error


def run(configs: Sequence[Config], seed: int, num_ops: int, shrink_s: float = 20.0) -> None:
    """Do `num_ops` random operations, in episodes with seeds from `seed` on, on one cache after the other."""
    for episode in range((num_ops + OPS_PER_EPISODE - 1) // OPS_PER_EPISODE):
        left = num_ops - episode * OPS_PER_EPISODE
        run_episode(configs[episode % len(configs)], seed + episode, min(OPS_PER_EPISODE, left), shrink_s)


def _report(config: Config, seed: int, ops: list[Op], error: Exception, shrink_s: float) -> tuple[str, list[Op]]:
    shortest = shrink(ops, config, shrink_s)
    final = replay(shortest, config) or error
    values = {name: repr(value) if name == "groups" else int(value) for name, value in asdict(config).items()}
    options = "".join(f" {_flag(name)} {value}" for name, value in values.items())
    lines = [
        f"seed {seed}, operation {len(ops)}: {type(error).__name__}: {error}",
        f"again: python -m mini_kv.tests.random_driver --seed {seed} --ops {OPS_PER_EPISODE}{options}",
        f"the shortest failing run found, {len(shortest)} operations, ends with {type(final).__name__}: {final}",
        "replay(",
        "    [",
        *(f"        {op!r}," for op in shortest),
        "    ],",
        f"    {config},",
        ")",
    ]
    return "\n".join(lines), shortest


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def main(argv: Sequence[str] | None = None, config_class: type[Config] = Config) -> int:
    """Run from the command line; return 1, with the report on stdout, if a difference was found."""
    parser = argparse.ArgumentParser(
        prog="python -m mini_kv.tests.random_driver",
        description="Compare the engine with its reference, over random operations.",
    )
    parser.add_argument("--seed", type=int, default=0, help="of the first episode; each later one has one more")
    parser.add_argument("--ops", type=int, default=100_000)
    parser.add_argument("--all", action="store_true", help="the test's caches in turn, instead of one cache")
    parser.add_argument("--matrix", action="store_true", help="a pairwise matrix of caches in turn; the seed's own")
    parser.add_argument("--shrink-s", type=float, default=20.0, help="seconds to look for a shorter failing run")
    for name, value in asdict(config_class()).items():
        number = name != "groups"
        parser.add_argument(_flag(name), type=int if number else str, default=int(value) if number else value)
    options = vars(parser.parse_args(argv))
    seed, num_ops, shrink_s = options.pop("seed"), options.pop("ops"), options.pop("shrink_s")
    take_all, take_matrix = options.pop("all"), options.pop("matrix")
    options |= {name: bool(options[name]) for name in ("enable_caching", "debug", "forks", "drafts", "lookahead")}
    start = time.process_time()
    try:
        configs = CONFIGS if take_all else matrix(seed) if take_matrix else [config_class(**options)]
        run(configs, seed, num_ops, shrink_s)
    except DriverFailure as failure:
        print(failure)
        return 1
    over = f" over {len(configs)} caches" if len(configs) > 1 else ""
    print(f"{num_ops} operations{over}, no difference, {time.process_time() - start:.1f} s of CPU; seeds from {seed}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

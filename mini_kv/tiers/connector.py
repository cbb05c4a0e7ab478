"""Connects scheduler and tiers: fetches blocks before a request enters, and stores blocks that are about to be reused.

The scheduler has no tensors and the worker has no index, so they share the work:

    scheduler (this file)                                        worker (`mini_kv.engine.kv_transfer`)
    a request arrives: fetch what it may hit into memory
    it is its turn: put the hit's blocks into the pool, free,
      with their hashes; the ordinary lookup then finds them
    a free block is reused: record its hash
    end of planning: `KVConnectorMetadata` ---------------->     stores: read blocks, before anything is written
                                                                 loads: write blocks, before the model runs
                                                                 saves: read what the step computed, for the server

Promotion has no lookup of its own. It gives the coordinator an index with the blocks of the memory tier and of the
pool. So windows, states and block sizes need no code here: the blocks of that hit are the blocks to fetch.

Source: vLLM `KVConnectorBase_V1` (distributed/kv_transfer/kv_connector/v1/base.py): `get_num_new_matched_tokens`,
`update_state_after_alloc` and `build_connector_meta` on the scheduler's side, `start_load_kv` and `wait_for_save` on
the worker's. There a request is admitted first, and its blocks are filled while it waits. Here the bytes stay in the
memory tier until the request's turn, and no block is in use for them.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from secrets import token_bytes
from typing import Any

from mini_kv.core.block import BlockHash, BlockHashWithGroupId, KVCacheBlock
from mini_kv.core.block_hash import frame
from mini_kv.core.block_pool import BlockHashToBlockMap, BlockPool
from mini_kv.core.errors import ConfigError
from mini_kv.core.kv_cache_interface import KVCacheConfig
from mini_kv.core.kv_cache_manager import KVCacheManager
from mini_kv.core.parts import KVCacheParts
from mini_kv.core.request import Request
from mini_kv.tiers.memory_tier import Lease
from mini_kv.tiers.sealed import OVERHEAD_BYTES
from mini_kv.tiers.tiered_cache import Fetch, Search, TieredCache

_NAMESPACE_BYTES = 16
_GROUP_ID_BYTES = 4


@dataclass(frozen=True, slots=True)
class KVConnectorMetadata:
    """The blocks that the worker has to move in a step. Source: vLLM `KVConnectorMetadata`."""

    stores: list[tuple[bytes, int]] = field(default_factory=list)
    """Blocks to read before the step writes, as (key, block id): they are about to be reused."""
    loads: list[tuple[bytes, int, memoryview]] = field(default_factory=list)
    """Blocks to write before the model runs, as (key, block id, bytes)."""
    saves: list[tuple[bytes, int]] = field(default_factory=list)
    """Blocks to read after the model has run, as (key, block id): new blocks for the server."""


class TieredIndex(BlockHashToBlockMap):
    """An index that can also show the blocks of a tier."""

    def __init__(self) -> None:
        super().__init__()
        self._is_below: Callable[[BlockHashWithGroupId], bool] | None = None

    def get_one_block(self, key: BlockHashWithGroupId) -> KVCacheBlock | None:
        """Return the oldest block under `key`. While tiers are shown, return a stand-in for a block in a tier."""
        block = super().get_one_block(key)
        if block is None and self._is_below is not None and self._is_below(key):
            block = StandIn(key)
        return block

    @contextmanager
    def showing(self, is_below: Callable[[BlockHashWithGroupId], bool]) -> Iterator[None]:
        """Within the context, return stand-ins for the keys for which `is_below` is true."""
        self._is_below = is_below
        try:
            yield
        finally:
            self._is_below = None


class StandIn(KVCacheBlock):
    """A placeholder for a block in a tier. It has a hash but no memory in the pool."""

    def __init__(self, key: BlockHashWithGroupId) -> None:
        super().__init__(block_id=-1)
        self.block_hash = key


def _stand_ins(blocks: Iterable[KVCacheBlock]) -> list[KVCacheBlock]:
    """Return the stand-ins among these blocks."""
    return [block for block in blocks if isinstance(block, StandIn)]


def key_of(block: KVCacheBlock) -> BlockHashWithGroupId:
    """Return the hash of a block that has one."""
    assert block.block_hash is not None
    return block.block_hash


class TieredPool(BlockPool):
    """A pool that records the hashes that it drops and the hashes that are new."""

    cached_block_hash_to_block: TieredIndex

    def __init__(self, *args: Any, **parts: Any) -> None:
        super().__init__(*args, **parts)
        self.evicted: list[tuple[BlockHashWithGroupId, KVCacheBlock]] = []
        """The blocks that were reused since the last plan, with their earlier keys."""
        self.published: list[tuple[BlockHashWithGroupId, KVCacheBlock]] = []
        """The blocks that got a key since the last plan."""
        self.loading: set[KVCacheBlock] = set()
        """Blocks that are not loaded yet. If one is reused before that, its bytes must not be stored."""
        self.on_reset: Callable[[], None] = lambda: None
        """Called at a reset: it empties the tiers below the pool, too."""
        self._is_reusing = False

    def get_new_blocks(self, num_blocks: int) -> list[KVCacheBlock]:
        """Allocate as in `BlockPool`, and record the blocks that lose their hash."""
        self._is_reusing = True
        try:
            return super().get_new_blocks(num_blocks)
        finally:
            self._is_reusing = False

    def cache_full_blocks(
        self,
        blocks: Sequence[KVCacheBlock],
        block_hashes: Sequence[BlockHash],
        num_cached_blocks: int,
        num_full_blocks: int,
        kv_cache_group_id: int = 0,
    ) -> None:
        """Cache as in `BlockPool`, and record the blocks that get a hash."""
        super().cache_full_blocks(blocks, block_hashes, num_cached_blocks, num_full_blocks, kv_cache_group_id)
        for block in blocks[num_cached_blocks:num_full_blocks]:
            if block.block_hash is not None:
                self.published.append((block.block_hash, block))

    def adopt(self, block: KVCacheBlock, key: BlockHashWithGroupId) -> None:
        """Give a new block the hash of the content that will be loaded into it."""
        self.loading.add(block)
        block.block_hash = key
        self.cached_block_hash_to_block.insert(key, block)

    def reset_prefix_cache(self) -> bool:
        """Reset as in `BlockPool`, and empty the tiers below, too."""
        is_done = super().reset_prefix_cache()
        if is_done:
            self.on_reset()
        return is_done

    def _maybe_evict_cached_block(self, block: KVCacheBlock) -> bool:
        if block in self.loading:
            self.loading.remove(block)
        elif self._is_reusing and block.block_hash is not None:
            self.evicted.append((block.block_hash, block))
        return super()._maybe_evict_cached_block(block)


def tiered_parts(**parts: Any) -> KVCacheParts:
    """Return the parts of a cache manager that a connector needs. `parts` is as for `KVCacheParts`."""
    return KVCacheParts(make_index=TieredIndex, make_pool=TieredPool, **parts)


@dataclass(slots=True)
class Preparation:
    """The blocks that are being fetched into memory for a waiting request."""

    seconds_left: float
    """Seconds that the request may still wait for its blocks, over all its waits."""
    deadline: float
    """Time at which the current wait is over."""
    search: Search
    fetch: Fetch | None = None
    leases: list[Lease] = field(default_factory=list)
    is_over: bool = False
    """Whether the request no longer waits for blocks."""
    had_its_turn: bool = False


class TieringConnector:
    """The scheduler's half: decides which blocks move, and moves none itself."""

    def __init__(
        self,
        kv_cache_manager: KVCacheManager,
        tiers: TieredCache,
        payload_bytes: Sequence[int],
        *,
        layout: str = "",
        seconds_to_wait: float = 0.05,
        is_worth_it: Callable[[int, int], bool] = lambda num_tokens, num_bytes: True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start without prepared blocks.

        Args:
            kv_cache_manager: one that was built from `tiered_parts`.
            tiers: below its pool.
            payload_bytes: bytes of a block, per group.
            layout: further properties that two engines must share to exchange bytes, such as the dtype.
            seconds_to_wait: the longest time that a request waits for its blocks.
            is_worth_it: decides by tokens and bytes whether to fetch blocks. See `reload_cost`.
            clock: in seconds.

        Raises `ConfigError` if memory or disk has no room for a block, because no block could be stored there.
        """
        pool = kv_cache_manager.block_pool
        assert isinstance(pool, TieredPool)
        _check_room(tiers, max(payload_bytes))
        self.kv = kv_cache_manager
        self.pool = pool
        self.tiers = tiers
        self.payload_bytes = payload_bytes
        self.seconds_to_wait = seconds_to_wait
        self.is_worth_it = is_worth_it
        self.clock = clock
        self.counts: Counter[str] = Counter()
        """By name: "promoted" (blocks), "tokens" (of them), "too late", "not worth it", "no room"."""
        self._namespace = _namespace(kv_cache_manager.kv_cache_config, payload_bytes, layout)
        self._preparations: dict[str, Preparation] = {}
        self._loads: dict[KVCacheBlock, tuple[BlockHashWithGroupId, Lease, memoryview]] = {}
        """The content that this step's plan loads into each block, if the block is not reused before the plan's end."""
        self._in_flight: list[tuple[BlockHashWithGroupId, Lease | None]] = []
        """The contents that the running step adds to the pool: loaded under a lease, or computed."""
        tiers.is_above = self._is_in_pool
        pool.on_reset = self._reset

    # Before a request's turn.

    def begin(self, request: Request) -> None:
        """Start to fetch the blocks that a waiting request may hit. Called again after a preemption."""
        if not self.kv.enable_caching or request.request_id in self._preparations:
            return
        search = self.tiers.find(self._tier_keys(request))
        seconds = self.seconds_to_wait
        self._preparations[request.request_id] = Preparation(seconds, self.clock() + seconds, search)

    def is_pending(self, request: Request) -> bool:
        """Return whether the request should wait: blocks for it are being fetched, and its time is not over."""
        self.tiers.poll()
        preparation = self._preparations.get(request.request_id)
        if preparation is None or preparation.is_over:
            return False
        if preparation.fetch is None and preparation.search.is_done:
            preparation.fetch = self.tiers.fetch(self._wanted(request, preparation))
            self.tiers.poll()
        seconds_left = max(preparation.deadline - self.clock(), 0.0)
        if preparation.fetch is not None and preparation.fetch.is_done:
            preparation.is_over = True
        elif seconds_left == 0.0:
            self.counts["too late"] += 1
            preparation.is_over = True
        if preparation.is_over:
            preparation.seconds_left = seconds_left
        return not preparation.is_over

    def is_ready(self, request: Request) -> bool:
        """Return whether a request may enter at its turn.

        Since it arrived, some of the blocks that it can hit may have been evicted to a tier or added there. These are
        fetched first, but only once.
        """
        preparation = self._preparations.get(request.request_id)
        if preparation is None or preparation.had_its_turn:
            return True
        preparation.had_its_turn = True
        preparation.deadline = self.clock() + preparation.seconds_left
        preparation.fetch, preparation.is_over = None, False
        return not self.is_pending(request)

    def wait(self, requests: Iterable[Request]) -> None:
        """Return when a block has arrived, or when the first of the requests stops waiting."""
        found = [self._preparations.get(request.request_id) for request in requests]
        deadlines = [preparation.deadline for preparation in found if preparation and not preparation.is_over]
        if deadlines:
            self.tiers.wait(min(deadlines) - self.clock())

    def _wanted(self, request: Request, preparation: Preparation) -> dict[bytes, int]:
        """Return the keys of the longest hit over all tiers that are not in the pool, and their bytes.

        At the request's turn, keys in memory are leased: they must still be there when the missing keys have arrived.
        """
        found = preparation.search.found
        with self.pool.cached_block_hash_to_block.showing(
            lambda key: self.tiers.is_near(self._namespace + key) or self._namespace + key in found
        ):
            hit, _ = self.kv.get_computed_blocks(request)
        wanted = {}
        for num_bytes, blocks in zip(self.payload_bytes, hit.blocks, strict=True):
            for block in _stand_ins(blocks):
                key = self._namespace + key_of(block)
                wanted[key] = num_bytes
                lease = self.tiers.lease(key) if preparation.had_its_turn else None
                if lease is not None:
                    preparation.leases.append(lease)
        return wanted

    def _tier_keys(self, request: Request) -> list[bytes]:
        """Return the keys of all blocks of a request, in all groups."""
        return [
            self._namespace + block_hash + group_id.to_bytes(_GROUP_ID_BYTES, "big")
            for group_id, manager in enumerate(self.kv.coordinator.single_type_managers)
            for block_hash in manager.hashes_per_block(request.block_hashes)
        ]

    # At its turn.

    def promote(self, request: Request) -> None:
        """Put the blocks that memory adds to the request's hit into the pool as cached-free blocks.

            pool before         a  b                        the request's blocks are a b c d e
            memory              c  d
            pool after          a  b  c  d                  c and d replace evicted blocks, which are stored in memory

        They are at the end of the free queue, tail first, as if the request had run and had been freed. Its next lookup
        finds them. Nothing happens if the pool has too few free blocks, or if computing is cheaper.
        """
        while not self._try_to_promote(request):
            pass  # a block in memory turned out damaged: it is gone now, and the hit is shorter

    def end(self, request: Request) -> None:
        """Release the blocks that were prepared for a request, after its admission."""
        preparation = self._preparations.pop(request.request_id, None)
        if preparation is not None:
            self._release(preparation)

    def _try_to_promote(self, request: Request) -> bool:
        """Promote. Return `False` if it has to be called again."""
        if len(self.tiers.memory) == 0:
            return True
        with self.pool.cached_block_hash_to_block.showing(lambda key: self._namespace + key in self.tiers):
            hit, num_tokens = self.kv.get_computed_blocks(request)
        groups = [list(blocks) for blocks in hit.blocks]
        if not any(map(_stand_ins, groups)) or not self._should_promote(request, groups, num_tokens):
            return True
        payloads = self._lease_and_load(groups)
        if payloads is None:
            return False
        for blocks in groups:  # held meanwhile: what is in the pool must not be reused for what is not
            self.pool.touch([block for block in blocks if not isinstance(block, StandIn)])
        for blocks in groups:
            self._put_into_the_pool(blocks, payloads)
        for blocks in groups:
            self.pool.free_blocks(reversed(blocks))
        self.counts["promoted"] += len(payloads)
        return True

    def _put_into_the_pool(
        self, blocks: list[KVCacheBlock], payloads: Mapping[BlockHashWithGroupId, tuple[Lease, memoryview]]
    ) -> None:
        """Replace the stand-ins by new blocks with their hashes. This step loads the blocks."""
        missing = _stand_ins(blocks)
        new_blocks = dict(zip(missing, self.pool.get_new_blocks(len(missing)), strict=True))
        for stand_in, new in new_blocks.items():
            key = key_of(stand_in)
            self.kv.coordinator.promised.add(new.block_id)  # its bytes come with the step
            self.pool.adopt(new, key)
            self._cancel_load(new)
            self._loads[new] = (key, *payloads[key])
        blocks[:] = [new_blocks.get(block, block) for block in blocks]

    def _should_promote(self, request: Request, groups: list[list[KVCacheBlock]], num_tokens: int) -> bool:
        """Return whether the request could enter with these blocks, and whether that is cheaper than computing them."""
        num_needed = self.kv.coordinator.get_num_blocks_to_allocate(request.request_id, num_tokens + 1, groups)
        if num_needed is None or num_needed > self.pool.num_free_blocks:
            self.counts["no room"] += 1
            return False
        num_bytes = sum(size * len(_stand_ins(blocks)) for size, blocks in zip(self.payload_bytes, groups, strict=True))
        num_more_tokens = num_tokens - self.kv.get_computed_blocks(request)[1]
        if not self.is_worth_it(num_more_tokens, num_bytes):
            self.counts["not worth it"] += 1
            return False
        self.counts["tokens"] += num_more_tokens
        return True

    def _lease_and_load(
        self, groups: list[list[KVCacheBlock]]
    ) -> dict[BlockHashWithGroupId, tuple[Lease, memoryview]] | None:
        """Return the verified bytes of all stand-ins, under leases. `None` without leases if one is damaged."""
        found: dict[BlockHashWithGroupId, tuple[Lease, memoryview]] = {}
        for num_bytes, blocks in zip(self.payload_bytes, groups, strict=True):
            for block in _stand_ins(blocks):
                lease = self.tiers.lease(self._namespace + key_of(block))
                payload = self.tiers.load(lease, num_bytes) if lease is not None else None
                if lease is None or payload is None:
                    for other in (lease, *(lease for lease, _ in found.values())):
                        if other is not None:
                            self.tiers.release(other)
                    return None
                found[key_of(block)] = (lease, payload)
        return found

    # The step.

    def build_connector_meta(self, unfinished: Iterable[str]) -> KVConnectorMetadata:
        """Return the blocks that the worker has to move in the step that was just planned.

        Args:
            unfinished: ids of the requests that the scheduler has. Blocks prepared for other requests are released.
        """
        for request_id in self._preparations.keys() - set(unfinished):
            self._release(self._preparations.pop(request_id))
        for block in self._loads.keys() - self.pool.loading:
            self._cancel_load(block)  # reused before its bytes came: they still lie in memory
        self.pool.loading.clear()
        metadata = KVConnectorMetadata()
        for key, block in self.pool.evicted:
            if not self._is_in_pool(self._namespace + key):
                metadata.stores.append((self._namespace + key, block.block_id))
        for block, (key, lease, payload) in self._loads.items():
            metadata.loads.append((self._namespace + key, block.block_id, payload))
            self._in_flight.append((key, lease))
            self.tiers.lend(lease)
        new = {key: block for key, block in self.pool.published if block.block_hash == key}
        for key, block in new.items():
            self._in_flight.append((key, None))
            if self.tiers.remote is not None:
                metadata.saves.append((self._namespace + key, block.block_id))
        self.pool.evicted, self.pool.published, self._loads = [], [], {}
        return metadata

    def confirm(self) -> None:
        """Hand over the blocks that the step has added to the pool. Memory and disk no longer own them."""
        for key, lease in self._in_flight:
            if lease is not None:
                self.tiers.take(lease)
            elif self._is_in_pool(self._namespace + key):
                self.tiers.discard(self._namespace + key)
        self._in_flight = []

    def abandon(self) -> None:
        """Forget the step that is being planned or under way: it will not run. Memory keeps its entries.

        May be called after any call of the connector was interrupted. If it is interrupted too, call it again. The
        blocks that were being fetched for waiting requests are requested again at the next step.
        """
        self.pool.evicted, self.pool.published = [], []
        self.pool.loading.clear()
        self._loads, self._preparations = {}, {}
        self._in_flight = []
        self.tiers.recover()

    def _reset(self) -> None:
        """Empty the tiers. The pool has already removed its own keys.

        Copies on a server are kept, because other engines use them too. This engine no longer finds them, because it
        now uses another namespace.
        """
        self.abandon()
        self.tiers.clear()
        if self.tiers.remote is not None:
            self._namespace = token_bytes(_NAMESPACE_BYTES)

    def _cancel_load(self, block: KVCacheBlock) -> None:
        load = self._loads.pop(block, None)
        if load is not None:
            self.tiers.release(load[1])

    def _release(self, preparation: Preparation) -> None:
        for lease in preparation.leases:
            self.tiers.release(lease)

    def _is_in_pool(self, key: bytes) -> bool:
        """Return whether the pool has the block of a tier's key."""
        index = self.pool.cached_block_hash_to_block
        return index.get_one_block(BlockHashWithGroupId(key[len(self._namespace) :])) is not None


def _namespace(config: KVCacheConfig, payload_bytes: Sequence[int], layout: str) -> bytes:
    """Return a namespace that two engines share only if their bytes have the same meaning."""
    shapes = [f"{len(group.layer_names)} x {group.kv_cache_spec!r}" for group in config.kv_cache_groups]
    fields = [layout, *shapes, *map(str, payload_bytes)]
    return sha256(frame(b"mini_kv tiers 1", *(field.encode() for field in fields))).digest()[:_NAMESPACE_BYTES]


def _check_room(tiers: TieredCache, payload_bytes: int) -> None:
    """Raise `ConfigError` if a tier of this process is too small for the largest block and its envelope."""
    key_bytes = _NAMESPACE_BYTES + sha256().digest_size + _GROUP_ID_BYTES
    num_bytes = OVERHEAD_BYTES + key_bytes + payload_bytes
    for name, tier in (("memory", tiers.memory), ("disk", tiers.disk)):
        if tier is not None and tier.capacity_bytes < num_bytes:
            raise ConfigError(
                f"the {name} tier has {tier.capacity_bytes:,} bytes, and one block takes {num_bytes:,}: no block could"
                " come back from it; give it more, or leave it out"
            )

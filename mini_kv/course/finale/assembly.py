"""From a learner's parts to the constructors of the engine.

Most parts are passed to a constructor unchanged. A lab leaves out features that it does not teach. If the engine needs
such a feature, a class here wraps the learner's object and adds it:

    CountedPool        lab-03 counts references            added: keys, managed by lab-07's pool or the engine's
    _without_nulls      lab-07 frees every block it gets    added: null blocks of a window are not passed to it
    AdmittingManager   lab-06 gives slots                  added: admission of new requests, statistics, the lookup
    AbortsFirst        lab-11 plans and applies results    added: requests that were aborted during a step
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from mini_kv.core.block import BlockFactory, BlockHash, KVCacheBlock
from mini_kv.core.block_pool import BlockPool
from mini_kv.core.kv_cache_coordinator import MANAGER_CLASSES, get_kv_cache_coordinator
from mini_kv.core.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheSpec,
    MLAAttentionSpec,
    SlidingWindowSpec,
)
from mini_kv.core.kv_cache_manager import KVCacheBlocks, KVCacheManager
from mini_kv.core.kv_cache_planning import get_kv_cache_groups, unify_kv_cache_spec_page_size
from mini_kv.core.parts import KVCacheParts
from mini_kv.core.request import Request
from mini_kv.core.sched.output import EngineCoreOutput, SchedulerOutput
from mini_kv.core.sched.scheduler import Scheduler
from mini_kv.course.labkit.learner_parts import OwnParts

if TYPE_CHECKING:
    from torch import Tensor

    from mini_kv.engine.model_runner import ModelRunner


def seams(own: OwnParts, on_logits: "Callable[[list[str], Tensor], None] | None" = None) -> dict[str, Any]:
    """Return the arguments of an `LLMEngine` with these parts. `on_logits` observes its runner."""
    return {
        "make_groups": partial(make_groups, own),
        "make_manager": partial(make_manager, own),
        "make_runner": partial(make_runner, own, on_logits),
        "make_scheduler": partial(make_scheduler, own),
    }


def make_groups(own: OwnParts, specs: Mapping[str, KVCacheSpec]) -> tuple[KVCacheGroupSpec, ...]:
    """Return the groups of layers by the learner's rule, after making the blocks of all kinds equally large."""
    if own.group_layers is None:
        return get_kv_cache_groups(specs)
    return tuple(own.group_layers(unify_kv_cache_spec_page_size(specs)))


def _kv_cache_parts(own: OwnParts, new_block: BlockFactory | None) -> KVCacheParts:
    """Return the parts of the manager."""
    pool = None if own.pool is None else _without_nulls(own.pool)
    managers: dict[type[KVCacheSpec], Any] = dict(MANAGER_CLASSES)
    if own.full_attention is not None:
        managers |= dict.fromkeys((FullAttentionSpec, MLAAttentionSpec), own.full_attention)
    if own.sliding_window is not None:
        managers[SlidingWindowSpec] = own.sliding_window
    parts = {
        "new_block": new_block,
        "make_queue": own.queue,
        "make_index": own.index,
        "make_pool": pool if own.counts is own.frees is None else partial(CountedPool, own, pool or BlockPool),
        "make_block_hasher": own.hasher,
        "make_stats": own.stats,
        "make_coordinator": partial(make_coordinator, own),
        "manager_classes": managers,
    }
    return KVCacheParts(**{name: part for name, part in parts.items() if part is not None})


def make_coordinator(own: OwnParts, kv_cache_config: KVCacheConfig, pool: BlockPool, managers: Any) -> Any:
    """Return the learner's coordinator if several groups must agree on a hit, else the engine's."""
    if own.coordinator is None or not pool.enable_caching or len(kv_cache_config.kv_cache_groups) == 1:
        return get_kv_cache_coordinator(kv_cache_config, pool, managers)
    return own.coordinator(kv_cache_config, pool, managers)


def _without_nulls(pool: Any) -> Any:
    """Return the learner's class of pools, extended for tables with null blocks."""

    class WithoutNulls(pool):  # type: ignore[misc]  # a class that is known when the command runs
        """Frees all blocks except the null block, which is in many tables and in no queue."""

        def free_blocks(self, ordered_blocks: Iterable[KVCacheBlock]) -> None:
            """Free these blocks as the learner does."""
            super().free_blocks(block for block in ordered_blocks if not block.is_null)

    return WithoutNulls


def make_manager(
    own: OwnParts, kv_cache_config: KVCacheConfig, *, new_block: BlockFactory | None = None, **options: Any
) -> Any:
    """Return a manager with the learner's slots and lookup, on the learner's pool. `new_block`: an observer's."""
    parts = _kv_cache_parts(own, new_block)
    lookup = own.lookup or KVCacheManager
    if own.slots is None:
        return lookup(kv_cache_config, parts=parts, **options)
    slots = own.slots(kv_cache_config, parts=parts, **options)
    same_pool = replace(parts, make_pool=lambda *args, **options: slots.block_pool)
    return AdmittingManager(slots, lookup(kv_cache_config, parts=same_pool, **options))


def make_scheduler(own: OwnParts, *args: Any, **options: Any) -> Any:
    """Return the learner's scheduler, or the engine's."""
    return Scheduler(*args, **options) if own.scheduler is None else AbortsFirst(own.scheduler(*args, **options))


def make_runner(
    own: OwnParts, on_logits: "Callable[[list[str], Tensor], None] | None", *args: Any, **options: Any
) -> "ModelRunner":
    """Return a runner with the learner's block tables, slots and attention."""
    # Imported late: torch is needed from here on.
    from mini_kv.course.finale.attend import runner_parts
    from mini_kv.engine.model_runner import ModelRunner

    return ModelRunner(*args, parts=runner_parts(own), on_logits=on_logits, **options)


class CountedPool(BlockPool):
    """The engine's pool with the learner's pools: one counts references, one manages keys, and one of them frees.

    Each is an object of the learner's class, with all its helpers. Before each call its blocks, queue and index are set
    to those of this pool, because a roll-back makes new ones.
    """

    def __init__(self, own: OwnParts, keys: Any, num_gpu_blocks: int, enable_caching: bool, **parts: Any) -> None:
        """Make the blocks and the learner's pools, of the classes in `own` (lab-03) and `keys` (lab-07)."""
        super().__init__(num_gpu_blocks, enable_caching, **parts)
        self._counting = (own.counts or BlockPool)(num_gpu_blocks)
        self._keeping_keys = keys(num_gpu_blocks, enable_caching, **parts)
        self._freeing = self._keeping_keys if enable_caching or own.frees is None else own.frees(num_gpu_blocks)

    def _told(self, pool: Any) -> Any:
        """Return the learner's pool, with this pool's blocks, queue and index."""
        pool.blocks, pool.null_block = self.blocks, self.null_block
        pool.free_block_queue = self.free_block_queue
        pool.cached_block_hash_to_block = self.cached_block_hash_to_block
        return pool

    @property
    def num_free_blocks(self) -> int:
        """Blocks that no table holds, by the learner's count."""
        return self._told(self._counting).num_free_blocks  # type: ignore[no-any-return]

    @property
    def usage(self) -> float:
        """Held blocks as a share of all, by the learner's count."""
        return self._told(self._counting).usage  # type: ignore[no-any-return]

    def get_new_blocks(self, num_blocks: int) -> list[KVCacheBlock]:
        """Take blocks as the learner does, without their keys, which lab-03 does not teach.

        The keys of the first blocks in the queue are removed before: an observer then sees that they are evicted. If
        the learner takes others, theirs are removed afterwards.
        """
        if 0 < num_blocks <= self.free_block_queue.num_free_blocks:
            for block in self.free_block_queue.get_all_free_blocks()[:num_blocks]:
                self._maybe_evict_cached_block(block)
        blocks: list[KVCacheBlock] = self._told(self._counting).get_new_blocks(num_blocks)
        for block in blocks:
            self._maybe_evict_cached_block(block)
        return blocks

    def touch(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Add one reference to each block, as the learner does."""
        self._told(self._counting).touch(blocks)

    def free_blocks(self, ordered_blocks: Iterable[KVCacheBlock]) -> None:
        """Free as the pool with keys does, because a block's position in the queue depends on its key.

        Without a cache no block has a key, and the pool of lab-03 frees.
        """
        self._told(self._freeing).free_blocks(ordered_blocks)

    def cache_full_blocks(
        self, blocks: Sequence[KVCacheBlock], block_hashes: Sequence[BlockHash], *numbers: int
    ) -> None:
        """Give blocks their keys, as the pool with keys does."""
        self._told(self._keeping_keys).cache_full_blocks(blocks, block_hashes, *numbers)

    def _maybe_evict_cached_block(self, block: KVCacheBlock) -> bool:
        return self._told(self._keeping_keys)._maybe_evict_cached_block(block)  # type: ignore[no-any-return]


class AdmittingManager:
    """Wraps the learner's manager, and adds admission of new requests, their statistics, and the lookup."""

    def __init__(self, slots: Any, lookup: KVCacheManager) -> None:
        """Take lab-06's manager, and a manager over the same pool for lookups."""
        self._slots = slots
        self._lookup = lookup

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the learner's manager, for every name except the methods below."""
        return getattr(self._slots, name)

    def get_computed_blocks(self, request: Request) -> tuple[KVCacheBlocks, int]:
        """Return the longest cached prefix of the request."""
        return self._lookup.get_computed_blocks(request)

    def allocate_slots(
        self,
        request: Request,
        num_new_tokens: int,
        num_new_computed_tokens: int = 0,
        new_computed_blocks: KVCacheBlocks | None = None,
        num_lookahead_tokens: int = 0,
        full_sequence_must_fit: bool = False,
        reserved_blocks: int = 0,
        has_scheduled_reqs: bool = True,
    ) -> KVCacheBlocks | None:
        """Refuse a new request that fits now, but not with the reserved blocks or with all its tokens.

        Otherwise allocate or refuse as the learner does.
        """
        num_hit_tokens = request.num_computed_tokens + num_new_computed_tokens
        if request.request_id not in self.requests:
            hit = (new_computed_blocks or self.empty_kv_cache_blocks).blocks
            num_tokens = num_hit_tokens + num_new_tokens + num_lookahead_tokens
            num_for_step = self.coordinator.get_num_blocks_to_allocate(request.request_id, num_tokens, hit)
            num_needed = num_for_step + reserved_blocks
            if full_sequence_must_fit:
                in_flight = self.max_in_flight_tokens or request.num_tokens
                most = self.coordinator.get_max_num_blocks_to_allocate(request.num_tokens, hit, in_flight)
                num_needed = max(num_needed, most)
            if num_for_step <= self.block_pool.num_free_blocks < num_needed:  # with less, the learner refuses
                return None
        new_blocks: KVCacheBlocks | None = self._slots.allocate_slots(
            request, num_new_tokens, num_new_computed_tokens, new_computed_blocks, num_lookahead_tokens
        )
        if new_blocks is not None and request.num_cached_tokens is None:
            request.num_cached_tokens = num_hit_tokens
            self.prefix_cache_stats.record(request.num_tokens, num_hit_tokens)
        return new_blocks


class AbortsFirst:
    """Wraps the learner's scheduler: requests that were aborted during a step are removed before its results."""

    def __init__(self, scheduler: Any) -> None:
        self._scheduler = scheduler

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the learner's scheduler, for every name except the method below."""
        return getattr(self._scheduler, name)

    def update_from_output(
        self, scheduler_output: SchedulerOutput, sampled_token_ids: Mapping[str, Any]
    ) -> list[EngineCoreOutput]:
        """Drop the aborted requests from the step, then update as the learner does."""
        for request_id in list(scheduler_output.num_scheduled_tokens):
            if request_id not in self.requests:
                scheduler_output.drop(request_id)
        return self._scheduler.update_from_output(scheduler_output, sampled_token_ids)  # type: ignore[no-any-return]

"""An engine of the learner's parts and, where there are none, its own.

A lab leaves out what it does not teach; what the engine still asks for is added here, in classes that stand before the
learner's in the order of methods and call `super()`:

    KVCacheManager      lab-07's lookup  >  Admission  >  lab-06's slots  >  the engine's
    BlockPool           lab-07's names   >  Names      >  lab-03's counts >  the engine's
    Scheduler                               Aborts     >  lab-11's        >  the engine's
"""

from collections.abc import Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from mini_kv.core.block import BlockFactory, KVCacheBlock
from mini_kv.core.block_pool import BlockPool
from mini_kv.core.kv_cache_interface import KVCacheConfig
from mini_kv.core.kv_cache_manager import KVCacheBlocks, KVCacheManager
from mini_kv.core.request import Request
from mini_kv.core.sched.output import EngineCoreOutput, SchedulerOutput
from mini_kv.core.sched.scheduler import Scheduler

if TYPE_CHECKING:
    from mini_kv.engine.model_runner import ModelRunner

Own = Mapping[str, Any]
"""The parts to use: `"lab-08 BlockTable"` and the learner's class."""


def seams(own: Own) -> dict[str, Any]:
    """Return what `LLMEngine` is to be made of."""
    return {
        "make_manager": partial(make_manager, own),
        "make_runner": partial(make_runner, own),
        "make_scheduler": combine(Aborts, own.get("lab-11 Scheduler"), Scheduler),
    }


def combine(*classes: type | None) -> Any:
    """Return a class that asks these in turn; those that there are."""
    bases = tuple(each for each in classes if each is not None)
    return type(bases[-1].__name__, bases, {})


class Names(BlockPool):
    """What lab-03 leaves out: a block that is handed out loses its name, and one that has a name is reused late."""

    def __init__(self, num_gpu_blocks: int, enable_caching: bool, *, new_block: BlockFactory) -> None:
        # Not lab-03's, which is given and makes the same without an index.
        BlockPool.__init__(self, num_gpu_blocks, enable_caching, new_block=new_block)

    def get_new_blocks(self, num_blocks: int) -> list[KVCacheBlock]:
        """Take blocks as the learner does, then take their names."""
        blocks = super().get_new_blocks(num_blocks)
        for block in blocks:
            self._maybe_evict_cached_block(block)
        return blocks

    def free_blocks(self, ordered_blocks: Iterable[KVCacheBlock]) -> None:
        """Free as the engine does: this one looks at names."""
        BlockPool.free_blocks(self, ordered_blocks)


class Admission(KVCacheManager):
    """What lab-06 leaves out: the gate for newcomers, and counting them."""

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
        """Let a newcomer in only if there is room for all of it beside what is kept; then do as the learner does."""
        hit = (new_computed_blocks or self.empty_kv_cache_blocks).blocks
        if request.request_id not in self.requests:
            num_tokens = num_new_computed_tokens + num_new_tokens + num_lookahead_tokens
            num_needed = self.coordinator.get_num_blocks_to_allocate(request.request_id, num_tokens, hit)
            if num_needed is None:
                return None
            num_needed += reserved_blocks
            if not self._may_enter(request, hit, num_needed, full_sequence_must_fit, has_scheduled_reqs):
                return None
        new_blocks = super().allocate_slots(
            request, num_new_tokens, num_new_computed_tokens, new_computed_blocks, num_lookahead_tokens
        )
        if new_blocks is not None and request.num_cached_tokens is None:
            request.num_cached_tokens = num_new_computed_tokens
            self.prefix_cache_stats.record(request.num_tokens, num_new_computed_tokens)
        return new_blocks


class Aborts(Scheduler):
    """What lab-11 leaves out: requests that were aborted while the worker had the step."""

    def update_from_output(
        self, scheduler_output: SchedulerOutput, sampled_token_ids: Mapping[str, Any]
    ) -> list[EngineCoreOutput]:
        """Forget who is gone, then do as the learner does."""
        for request_id in list(scheduler_output.num_scheduled_tokens):
            if request_id not in self.requests:
                scheduler_output.drop(request_id)
        return super().update_from_output(scheduler_output, sampled_token_ids)


def make_pool(own: Own, kv: KVCacheManager, new_block: BlockFactory) -> BlockPool:
    """Return a pool with the learner's methods, queue and index."""
    counts = own.get("lab-03 BlockPool")
    names = Names if counts is not None else None
    pool: BlockPool = combine(own.get("lab-07 BlockPool"), names, counts, BlockPool)(
        kv.kv_cache_config.num_blocks, kv.enable_caching, new_block=new_block
    )
    if "lab-02 FreeKVCacheBlockQueue" in own:
        blocks = pool.free_block_queue.popleft_n(pool.num_free_blocks)  # a block stands in one queue at a time
        pool.free_block_queue = own["lab-02 FreeKVCacheBlockQueue"](blocks)
    if "lab-07 BlockHashToBlockMap" in own:
        pool.cached_block_hash_to_block = own["lab-07 BlockHashToBlockMap"]()
    return pool


def make_manager(own: Own, kv_cache_config: KVCacheConfig, **options: Any) -> KVCacheManager:
    """Return a manager with the learner's methods, pool, lookup, names and counters."""
    slots = own.get("lab-06 KVCacheManager")
    admission = Admission if slots is not None else None
    manager_class = combine(own.get("lab-07 KVCacheManager"), admission, slots, KVCacheManager)
    manager_class.make_pool = lambda kv, new_block: make_pool(own, kv, new_block)
    kv: KVCacheManager = manager_class(kv_cache_config, **options)
    if "lab-07 FullAttentionManager" in own:
        (group,) = kv.coordinator.single_type_managers
        lookup = own["lab-07 FullAttentionManager"](group.kv_cache_spec, kv.block_pool, group.kv_cache_group_id)
        vars(lookup).update(vars(group))  # the same tables: lab-06 has them in its hands already
        kv.coordinator.single_type_managers = (lookup,)
    if "lab-04 get_request_block_hasher" in own:
        kv._block_hasher = own["lab-04 get_request_block_hasher"](kv.coordinator.hash_block_size)
    if "lab-07 PrefixCacheStats" in own:
        kv.prefix_cache_stats = own["lab-07 PrefixCacheStats"]()
    return kv


def make_runner(own: Own, *args: Any, **options: Any) -> "ModelRunner":
    """Return a runner with the learner's block tables, slots and attention."""
    # Imported late: torch is needed from here on.
    from mini_kv.engine.model_runner import ModelRunner
    from mini_kv.labkit.own_engine.attend import OwnAttend

    runner = ModelRunner(
        *args, **options | {"wrap_attend": lambda attend, batch: OwnAttend(own, attend, batch.positions)}
    )
    if "lab-08 BlockTable" in own:
        runner.block_tables = [
            own["lab-08 BlockTable"](*table.block_table.shape, table.block_size) for table in runner.block_tables
        ]
    return runner

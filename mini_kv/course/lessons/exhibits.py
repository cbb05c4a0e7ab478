"""Five bugs that other engines had, each as a part that replaces this engine's own.

    sent_twice(range(5, 14), HitsTheLastToken)      each prompt sent twice, with this lookup
    reported_rate(CountsAgain)                      the hit rate of random prompts, with these counters
    texts(60, GroupByGroup)                         the small model's texts, with this coordinator

Each class here is the engine's own part with one rule removed. The bugs were in the code of other projects. The chapter
links to their public reports.
"""

import random
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from mini_kv.core.block import BlockHash, KVCacheBlock
from mini_kv.core.block_pool import BlockPool
from mini_kv.core.errors import KVCacheError
from mini_kv.core.free_blocks import QueueFactory
from mini_kv.core.free_queue import FreeKVCacheBlockQueue
from mini_kv.core.invariants import InvariantViolationError
from mini_kv.core.kv_cache_coordinator import MANAGER_CLASSES, HybridKVCacheCoordinator
from mini_kv.core.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from mini_kv.core.kv_cache_manager import KVCacheManager
from mini_kv.core.parts import KVCacheParts
from mini_kv.core.request import Request
from mini_kv.core.sched.config import SchedulerConfig
from mini_kv.core.sched.scheduler import Scheduler
from mini_kv.core.single_type_kv_cache_manager import FullAttentionManager
from mini_kv.events.debug import DebugKVCacheManager
from mini_kv.events.step_loop import run_step, sample_ready

HEADS = ("A block is free when no request holds it.", "The scheduler counts tokens and", "The cache keeps keys of")
TAILS = (" Who", " It", " and the", " a request", " because", " then the pool", " of blocks")
"""The prompts of `texts` are one of the first and two of the second."""


class HitsTheLastToken(FullAttentionManager):
    """Finds a prompt's last token in the cache, too."""

    def find_longest_cache_hit(self, block_hashes: Sequence[BlockHash], max_length: int) -> list[KVCacheBlock]:
        """Return the longest hit of at most one token more than `max_length`."""
        return super().find_longest_cache_hit(block_hashes, max_length + 1)


class AnyOrder(FreeKVCacheBlockQueue):
    """Blocks that are freed in one call have the same age. This queue takes them in any order."""

    def __init__(self, blocks: Sequence[KVCacheBlock], seed: int = 0) -> None:
        self._chance = random.Random(seed)
        super().__init__(blocks)

    def append_n(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Append the blocks in a random order."""
        super().append_n(self._chance.sample(list(blocks), len(blocks)))


class CountsAgain(KVCacheManager):
    """Counts a request each time that it is admitted, also after a preemption."""

    def _admit(self, request: Request, num_hit_tokens: int, hit: tuple[Sequence[KVCacheBlock], ...]) -> None:
        was_admitted = request.num_cached_tokens is not None
        super()._admit(request, num_hit_tokens, hit)
        if was_admitted:
            self.prefix_cache_stats.record(request.num_tokens, num_hit_tokens)


class GroupByGroup(HybridKVCacheCoordinator):
    """Gives a group its hit and its new blocks, then the next group its hit and its new blocks."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._hits: dict[str, Sequence[Sequence[KVCacheBlock]]] = {}

    def allocate_new_computed_blocks(
        self, request_id: str, new_computed_blocks: Sequence[Sequence[KVCacheBlock]]
    ) -> None:
        """Keep the hit. No group has touched it yet."""
        self._hits[request_id] = new_computed_blocks

    def allocate_new_blocks(self, request_id: str, num_tokens: int) -> tuple[list[KVCacheBlock], ...]:
        """Finish one group before the next."""
        hits = self._hits.pop(request_id, None)
        taken: list[list[KVCacheBlock]] = []
        for manager in self.single_type_managers:
            if hits is not None:
                manager.allocate_new_computed_blocks(request_id, hits[manager.kv_cache_group_id])
            taken.append(manager.allocate_new_blocks(request_id, num_tokens))
        return tuple(taken)


class CountsDownFirst(BlockPool):
    """Trusts its callers: first it counts all blocks down, then it frees those whose count is 0."""

    def free_blocks(self, ordered_blocks: Iterable[KVCacheBlock]) -> None:
        """Free the blocks. One that is listed twice is counted down twice, and is freed twice."""
        blocks = [block for block in ordered_blocks if not block.is_null]
        for block in blocks:
            block.ref_cnt -= 1
        free = [block for block in blocks if block.ref_cnt == 0]
        self.free_block_queue.prepend_n([block for block in free if block.block_hash is None])
        self.free_block_queue.append_n([block for block in free if block.block_hash is not None])


class ListsABlockTwice(FullAttentionManager):
    """The caller's mistake: the first block of a table is twice in the list that it frees."""

    def free(self, request_id: str) -> None:
        """Free the table, with its first block listed twice."""
        self.req_to_blocks[request_id].insert(0, self.req_to_blocks[request_id][0])
        super().free(request_id)


class TrustingQueue(FreeKVCacheBlockQueue):
    """A queue that does not check whether a block is in it already."""

    def append_n(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Append the blocks. One that is listed twice is counted twice."""
        super().append_n(list(dict.fromkeys(blocks)))
        self.num_free_blocks += len(blocks) - len(set(blocks))


FREED_TWICE: dict[str, Any] = {
    "make_pool": CountsDownFirst,
    "make_queue": TrustingQueue,
    "manager_classes": {**MANAGER_CLASSES, FullAttentionSpec: ListsABlockTwice},
}
"""The parts of an engine in which a block is freed twice, and no part notices."""


def _manager(
    num_blocks: int, block_size: int, make: Callable[..., KVCacheManager] = KVCacheManager, **parts: Any
) -> KVCacheManager:
    """Return a cache of full attention with replaced parts."""
    group = KVCacheGroupSpec(("layers",), FullAttentionSpec(block_size))
    return make(KVCacheConfig(num_blocks, (group,)), parts=KVCacheParts(**parts))


def _send(kv: KVCacheManager, name: str, token_ids: Sequence[int]) -> Request:
    """Look a prompt up, and compute the rest of it."""
    request = kv.new_request(name, token_ids)
    hit, num_hit = kv.get_computed_blocks(request)
    kv.allocate_slots(request, len(token_ids) - num_hit, num_hit, hit)
    request.num_computed_tokens = len(token_ids)
    return request


def sent_twice(lengths: Iterable[int], lookup: type[FullAttentionManager], block_size: int = 4) -> str:
    """Send a prompt of each length twice. Return one line per length: the tokens of the second hit, or the error."""
    lines = []
    for length in lengths:
        kv = _manager(100, block_size, manager_classes={**MANAGER_CLASSES, FullAttentionSpec: lookup})
        try:
            for name in "AB":
                request = _send(kv, name, range(length))
                kv.free(request)
            lines.append(f"{length:>2} tokens: {request.num_cached_tokens} cached, {length} in all")
        except KVCacheError as error:
            lines.append(f"{length:>2} tokens: {type(error).__name__}: {error}")
    return "\n".join(lines)


def still_found(make_queue: QueueFactory) -> int:
    """Fill a cache of three blocks of 4 with one prompt, evict one block, and return the tokens that are still hit."""
    kv = _manager(4, 4, make_queue=make_queue)
    kv.free(_send(kv, "A", range(12)))
    kv.free(_send(kv, "B", [99]))
    return kv.get_computed_blocks(kv.new_request("C", range(13)))[1]


def reported_rate(make_manager: Callable[..., KVCacheManager], seed: int = 0) -> str:
    """Send 100 random prompts of 60 tokens through a pool that is too small. Return the counters after the last."""
    chance = random.Random(seed)
    kv = _manager(100, 4, make_manager)
    scheduler = Scheduler(kv, SchedulerConfig(max_num_seqs=16, max_num_batched_tokens=128))
    for number in range(100):
        prompt = [chance.randrange(50_000) for _ in range(60)]
        scheduler.add_request(kv.new_request(str(number), prompt), max_tokens=60)
    while scheduler.has_unfinished_requests:
        run_step(scheduler, lambda output: sample_ready(scheduler, output, lambda _: 0))
    stats = kv.prefix_cache_stats
    counted = f"{stats.requests} requests, {stats.hits:,} of {stats.queries:,} tokens hit"
    return f"hit rate {stats.hits / stats.queries:.1%} ({counted}), {scheduler.num_preemptions} preemptions"


def texts(num_blocks: int, *, windows: bool = False, check: bool = False, **parts: Any) -> list[str]:
    """Return the small model's texts to 40 prompts in a pool of this size.

    `windows`: the model whose layers have windows, with several groups. `check`: a manager that checks itself after
    every call. `parts`: replaced parts of `KVCacheParts`.

    Raises:
        KVCacheError: from an engine with a wrong part.
        InvariantViolationError: with `check`, at the first broken rule.
    """

    def make_manager(config: KVCacheConfig, **options: Any) -> KVCacheManager:
        manager = KVCacheManager(config, parts=KVCacheParts(**parts), **options)
        return DebugKVCacheManager(manager) if check else manager

    from mini_kv.engine.checkpoint import tiny_folder
    from mini_kv.engine.llm import LLM
    from mini_kv.engine.sampling import SamplingParams

    llm = LLM(
        tiny_folder(windows=windows),
        parts={"make_manager": make_manager},
        num_blocks=num_blocks,
        block_size=4,
        max_num_seqs=4,
    )
    chance = random.Random(1)
    prompts = [chance.choice(HEADS) + chance.choice(TAILS) + chance.choice(TAILS) for _ in range(40)]
    outputs = llm.generate(prompts, SamplingParams(max_tokens=24, temperature=0))
    return [output.outputs[0].text for output in outputs]


def error_of(num_blocks: int, *, windows: bool = False, check: bool = False, **parts: Any) -> str:
    """Return the error that ends such a run, or an empty string."""
    try:
        texts(num_blocks, windows=windows, check=check, **parts)
    except (KVCacheError, InvariantViolationError) as error:
        return f"{type(error).__name__}: {error}"
    return ""

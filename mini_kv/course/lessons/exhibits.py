"""Shows five bugs that other engines had, each with a part that replaces this engine's own.

    sent_twice(range(5, 14), HitsTheLastToken)      each prompt sent twice, with this lookup
    reported_rate(CountsAgain)                      the hit rate of random prompts, with these counters
    texts(60, GroupByGroup)                         the small model's texts, with this coordinator

The parts are in `mini_kv.course.given.faulty_parts`. The bugs were in the code of other projects. The chapter links to
their public reports.
"""

import random
from collections.abc import Iterable
from typing import Any

from mini_kv.core.errors import KVCacheError
from mini_kv.core.free_blocks import QueueFactory
from mini_kv.core.invariants import InvariantViolationError
from mini_kv.core.kv_cache_interface import KVCacheConfig
from mini_kv.core.kv_cache_manager import KVCacheManager
from mini_kv.core.parts import KVCacheParts
from mini_kv.core.sched.config import SchedulerConfig
from mini_kv.core.sched.scheduler import Scheduler
from mini_kv.core.single_type_kv_cache_manager import FullAttentionManager
from mini_kv.course.given.manager_under_test import prefill
from mini_kv.course.given.small_manager import make_manager
from mini_kv.story.debug import DebugKVCacheManager
from mini_kv.story.step_loop import run_step, sample_ready

HEADS = ("A block is free when no request holds it.", "The scheduler counts tokens and", "The cache keeps keys of")
TAILS = (" Who", " It", " and the", " a request", " because", " then the pool", " of blocks")
"""The prompts of `texts` are one of the first and two of the second."""


def sent_twice(lengths: Iterable[int], lookup: type[FullAttentionManager], block_size: int = 4) -> str:
    """Send a prompt of each length twice. Return one line per length: the tokens of the second hit, or the error."""
    lines = []
    for length in lengths:
        kv = make_manager(100, block_size, tables=lookup)
        try:
            for name in "AB":
                request = kv.new_request(name, range(length))
                prefill(kv, request)
                kv.free(request)
            lines.append(f"{length:>2} tokens: {request.num_cached_tokens} cached, {length} in all")
        except KVCacheError as error:
            lines.append(f"{length:>2} tokens: {type(error).__name__}: {error}")
    return "\n".join(lines)


def still_found(make_queue: QueueFactory) -> int:
    """Fill a cache of three blocks of 4 with one prompt, evict one block, and return the tokens that are still hit."""
    kv = make_manager(4, 4, make_queue=make_queue)
    for name, token_ids in (("A", range(12)), ("B", [99])):
        request = kv.new_request(name, token_ids)
        prefill(kv, request)
        kv.free(request)
    return kv.get_computed_blocks(kv.new_request("C", range(13)))[1]


def reported_rate(kind: type[KVCacheManager], seed: int = 0) -> str:
    """Send 100 random prompts of 60 tokens through a pool that is too small. Return the counters after the last."""
    chance = random.Random(seed)
    kv = make_manager(100, 4, kind)
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

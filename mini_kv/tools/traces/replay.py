"""Replays a trace through the real cache manager, and reports the hits of the prefix cache.

The replay does the bookkeeping block by block, without a model and without a clock:

    order           requests are admitted in the order of the file; timestamps are not waited for
    prompts only    the tokens of the answers take no blocks and are not cached
    at once         a prompt is computed as soon as it is admitted, so the next request can hit it
    concurrency     up to C requests hold their blocks at once; the oldest finishes when a newcomer needs its
                    place or its blocks
    refused         a prompt that is larger than the whole pool; it is counted, and changes nothing
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from mini_kv.core.errors import ConfigError
from mini_kv.core.kv_cache_interface import KVCacheConfig
from mini_kv.core.kv_cache_manager import KVCacheManager
from mini_kv.core.parts import KVCacheParts
from mini_kv.policy.eviction import EvictionPolicy, Hint
from mini_kv.tools.traces.prompt_hashes import Prompt, make_prompts
from mini_kv.tools.traces.readers.mooncake import TraceRequest
from mini_kv.tools.traces.runners import full_attention, sequential

SHARES = {"nothing": 0.0, "less than 1/4": 0.25, "1/4 to 3/4": 0.75, "3/4 or more": math.inf}
"""Upper ends of the groups of `ReplayReport.found`. Each group has the shares from the previous end to its own."""


@dataclass(frozen=True, slots=True)
class Found:
    """Requests that found about the same share of their prompts.

    The number of requests with any hit would not distinguish traffic, because nearly all share a system prompt.
    """

    share: str
    requests: int = 0
    prompt_tokens: int = 0
    hit_tokens: int = 0


@dataclass(frozen=True, slots=True)
class ReplayReport:
    """The result of a replay. Refused requests count in `requests` and `distinct_blocks`, and nowhere else."""

    num_blocks: int
    """Size of the pool, the null block included."""
    block_size: int
    """Tokens per block."""
    concurrency: int
    """The most requests that could hold their blocks at once."""
    requests: int
    """Requests of the trace, the refused ones included."""
    requests_refused: int
    """Requests whose prompt is larger than the pool."""
    prompt_tokens_refused: int
    """Tokens of the refused prompts."""
    found: tuple[Found, ...]
    """The admitted requests, by the share of their prompt that they found: see `SHARES`."""
    prompt_tokens: int
    """Tokens of all prompts."""
    hit_tokens: int
    """Tokens of prompts that were found in the cache."""
    full_blocks: int
    """Full blocks of all prompts, each as often as it occurs: the most blocks that lookups can hit."""
    hit_blocks: int
    """Full blocks of prompts that were found in the cache."""
    distinct_blocks: int
    """Different full blocks of the trace: a cache must hold all of these to evict none."""
    evictions: int
    """Times that a block lost its hash because its memory was needed."""
    peak_held_blocks: int
    """Largest number of blocks that requests held at once."""
    seconds: float
    """Time of the replay, without reading the file."""

    @property
    def hit_rate_of_prompt_tokens(self) -> float | None:
        """Share of the prompt tokens that were hits, 0.0 to 1.0, or `None` if there were no tokens."""
        return _share(self.hit_tokens, self.prompt_tokens)

    @property
    def hit_rate_of_full_blocks(self) -> float | None:
        """Share of the full blocks that were hits, 0.0 to 1.0, or `None` if there were no full blocks."""
        return _share(self.hit_blocks, self.full_blocks)

    @property
    def peak_usage(self) -> float:
        """Largest share of the pool that was held at once, without the null block, 0.0 to 1.0."""
        return self.peak_held_blocks / (self.num_blocks - 1)

    def as_dict(self) -> dict[str, int | float | None]:
        """Return all figures by name. The names do not change between versions."""
        return {
            **asdict(self),
            "hit_rate_of_prompt_tokens": self.hit_rate_of_prompt_tokens,
            "hit_rate_of_full_blocks": self.hit_rate_of_full_blocks,
            "peak_usage": self.peak_usage,
        }


def replay(
    trace: Sequence[TraceRequest],
    num_blocks: int | None = None,
    *,
    concurrency: int = 1,
    parts: KVCacheParts | None = None,
    prompts: Sequence[Prompt] | None = None,
    on_progress: Callable[[int], None] | None = None,
    on_admitted: Callable[[TraceRequest, int], None] | None = None,
) -> ReplayReport:
    """Send a trace through a `KVCacheManager`, by the rules above, and return the hits and counts.

    Args:
        trace: at least one request. Convert a trace of tokens with `prompt_hashes.as_hashes` first.
        num_blocks: size of the pool, the null block included. `None`: unbounded, see `num_blocks_for_all`.
        concurrency: the most requests that hold their blocks at once.
        parts: parts that replace the engine's own, such as a policy's queue or an observer's blocks.
        prompts: the trace's prompts, if `make_prompts` has made them already.
        on_progress: called after each request with the number of requests done.
        on_admitted: called after each admitted request with the request and its hit in tokens.

    Raises `ConfigError` if `num_blocks` is below 2 or `concurrency` below 1. Costs O(blocks of all prompts).
    """
    if concurrency < 1:
        raise ConfigError(f"concurrency is {concurrency}, it must be at least 1")
    started = time.perf_counter()
    block_size = trace[0].block_size
    enough = num_blocks_for_all(trace)
    if num_blocks is None:
        num_blocks = enough
    # Blocks beyond `enough` would never be used, so a pool of a billion is not built, only reported.
    kv = KVCacheManager(KVCacheConfig(min(num_blocks, enough), full_attention(block_size)), parts=parts)
    if prompts is None:
        prompts = make_prompts(trace, block_size)
    refused: list[TraceRequest] = []
    found: dict[str, list[tuple[int, int]]] = {share: [] for share in SHARES}
    full_blocks = peak_held_blocks = 0
    hits = sequential(kv, prompts, concurrency=concurrency)
    for index, (entry, num_hits) in enumerate(zip(trace, hits, strict=True)):
        if num_hits is None:
            refused.append(entry)
        else:
            _give_hint(kv, str(index), entry)
            found[_group_of(num_hits, entry.input_length)].append((entry.input_length, num_hits))
            full_blocks += entry.num_full_blocks
            peak_held_blocks = max(peak_held_blocks, len(kv.block_pool.blocks) - 1 - kv.block_pool.num_free_blocks)
            if on_admitted is not None:
                on_admitted(entry, num_hits)
        if on_progress is not None:
            on_progress(index + 1)

    hit_blocks = kv.prefix_cache_stats.hits // block_size
    # Each full block that was not a hit was given a hash. Nothing but eviction takes hashes here, so those that
    # are gone were evicted. Blocks are counted, not hashes: two blocks may have the same one.
    num_published = full_blocks - hit_blocks
    num_left = sum(block.block_hash is not None for block in kv.block_pool.blocks)
    return ReplayReport(
        num_blocks=num_blocks,
        block_size=block_size,
        concurrency=concurrency,
        requests=len(trace),
        requests_refused=len(refused),
        prompt_tokens_refused=sum(entry.input_length for entry in refused),
        found=tuple(Found(share, len(pairs), *map(sum, zip(*pairs, strict=True))) for share, pairs in found.items()),
        prompt_tokens=kv.prefix_cache_stats.queries,
        hit_tokens=kv.prefix_cache_stats.hits,
        full_blocks=full_blocks,
        hit_blocks=hit_blocks,
        distinct_blocks=len({block_hash for prompt in prompts for block_hash in prompt.block_hashes}),
        evictions=num_published - num_left,
        peak_held_blocks=peak_held_blocks,
        seconds=time.perf_counter() - started,
    )


def num_blocks_for_all(trace: Sequence[TraceRequest]) -> int:
    """Return a pool size with which nothing is evicted: the null block and one for each block of each prompt.

    It is more than needed, because requests share blocks. It is enough for any sharing and any concurrency: new
    blocks are taken from the front of the free queue, and never-used blocks are before all blocks with a hash.
    """
    return 1 + sum(entry.num_blocks for entry in trace)


def _give_hint(kv: KVCacheManager, request_id: str, entry: TraceRequest) -> None:
    """Tell a policy when the request's session is expected again, if the trace says that."""
    queue = kv.block_pool.free_block_queue
    if isinstance(queue, EvictionPolicy) and entry.expected_pause is not None:
        (blocks,) = kv.get_blocks(request_id).blocks
        hint = Hint(entry.session_id, entry.timestamp, entry.expected_pause)
        queue.record_hint(hint, blocks[: entry.num_full_blocks])


def _group_of(num_hits: int, num_tokens: int) -> str:
    """Return the group of `SHARES` for a request with this hit."""
    if num_hits == 0:
        return "nothing"
    return next(share for share, end in SHARES.items() if num_hits / num_tokens < end)


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None

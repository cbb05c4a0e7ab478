"""The numbers of the notebooks' charts, all counted on the real engine.

waste_over_block_sizes      slots without a token, for one list of lengths and several block sizes
hits_over_pool_sizes        a trace through pools of several sizes
hits_over_shared_tokens     two prompts of one length that begin alike
follow_replay               a trace, request by request: shared tokens, hits, use of the memory
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import resources

from mini_kv.core.kv_cache_manager import KVCacheManager
from mini_kv.core.request import Request
from mini_kv.course.given.manager_under_test import prefill
from mini_kv.story.metrics import MemoryUse, memory_over_time
from mini_kv.story.recorder import Recorder
from mini_kv.tools.traces.prompt_hashes import make_prompts
from mini_kv.tools.traces.readers.mooncake import BLOCK_SIZE, TraceRequest, read_trace
from mini_kv.tools.traces.replay import ReplayReport, num_blocks_for_all, replay
from mini_kv.tools.traces.runners import Setup, full_attention, sequential


@dataclass(frozen=True, slots=True)
class Waste:
    """Reserved slots without a token."""

    block_size: int
    num_slots: int
    """Slots of all blocks of the requests."""
    num_empty_slots: int

    @property
    def share(self) -> float:
        """Empty slots as a share of the reserved ones, 0.0 to 1.0."""
        return self.num_empty_slots / self.num_slots


@dataclass(frozen=True, slots=True)
class SharedTokens:
    """The hit of a prompt after another one of the same length."""

    num_shared: int
    """Length of the common prefix in tokens."""
    warm: float
    """Hits as a share of the second prompt, 0.0 to 1.0."""
    both: float
    """Hits as a share of both prompts, as on a dashboard."""


@dataclass(frozen=True, slots=True)
class FollowedRequest:
    """One request of a replay."""

    num_tokens: int
    num_shared_tokens: int
    """Tokens in full blocks from the first on that an earlier request had too. They are never the whole request."""
    num_hit_tokens: int
    """Tokens that were found in the cache."""
    memory: MemoryUse
    """Used, cached and empty blocks of the pool after the request was admitted."""


@dataclass(frozen=True, slots=True)
class OverlapGroup:
    """Requests of a trace whose shared part of the prompt is about equally large."""

    label: str
    num_requests: int
    num_tokens: int
    num_shared_tokens: int
    num_hit_tokens: int

    @property
    def hit_share(self) -> float:
        """Hits as a share of the tokens, 0.0 to 1.0, or 0 without tokens."""
        return self.num_hit_tokens / self.num_tokens if self.num_tokens else 0.0

    @property
    def lost_share(self) -> float:
        """Tokens of shared prefixes that had been evicted, as a share of all tokens."""
        return (self.num_shared_tokens - self.num_hit_tokens) / self.num_tokens if self.num_tokens else 0.0


def small_trace() -> list[TraceRequest]:
    """Return the 200 requests of `small.jsonl`, which is part of the package. See `mini_kv.tools.traces.synthetic`."""
    with resources.as_file(resources.files("mini_kv.tools.traces").joinpath("small.jsonl")) as path:
        return read_trace(path)


def waste_over_block_sizes(lengths: Sequence[int], block_sizes: Iterable[int]) -> list[Waste]:
    """Return the empty slots of requests of these lengths, all running at once, for each block size.

    A block as long as the longest possible request is memory before paging: one block per request.
    """
    result = []
    for block_size in block_sizes:
        num_blocks = 1 + sum(-(-length // block_size) for length in lengths)
        kv = KVCacheManager.for_full_attention(num_blocks, block_size, enable_caching=False)
        for index, length in enumerate(lengths):
            kv.allocate_slots(Request(str(index), num_tokens=length), length)
        num_slots = (num_blocks - 1 - kv.block_pool.num_free_blocks) * block_size
        result.append(Waste(block_size, num_slots, num_slots - sum(lengths)))
    return result


def hits_over_pool_sizes(trace: Sequence[TraceRequest], pool_sizes: Iterable[int]) -> list[ReplayReport]:
    """Return the report of a replay per pool size. A size includes the null block. One request runs at a time."""
    return [replay(trace, num_blocks) for num_blocks in pool_sizes]


def hits_over_shared_tokens(num_tokens: int, block_size: int) -> list[SharedTokens]:
    """Return the hit of the second of two prompts, for 0 to `num_tokens` common tokens."""
    return [_two_prompts(num_tokens, num_shared, block_size) for num_shared in range(num_tokens + 1)]


def _two_prompts(num_tokens: int, num_shared: int, block_size: int) -> SharedTokens:
    """Admit a prompt, then another that begins with the same `num_shared` tokens."""
    kv = KVCacheManager.for_full_attention(2 * (num_tokens // block_size + 1) + 1, block_size)
    first = range(num_tokens)
    second = [*range(num_shared), *range(num_tokens, 2 * num_tokens - num_shared)]
    for request_id, token_ids in ("first", first), ("second", second):
        prefill(kv, kv.new_request(request_id, token_ids))
    stats = kv.prefix_cache_stats
    return SharedTokens(num_shared, stats.hits / num_tokens, stats.hits / stats.queries)


def follow_replay(trace: Sequence[TraceRequest], num_blocks: int, *, concurrency: int = 1) -> list[FollowedRequest]:
    """Return the outcome of each request of a replay. The pool must hold the longest prompt: no request is refused.

    The memory is read from the events of the blocks, request by request.
    """
    longest = max(entry.num_blocks for entry in trace)
    if longest > num_blocks - 1:
        raise ValueError(f"a pool of {num_blocks} blocks is too small: a prompt of the trace takes {longest}")
    # A replay builds no blocks that would never be used; the chart must not show them as memory either.
    num_blocks = min(num_blocks, num_blocks_for_all(trace))
    recorder = Recorder()
    kv = KVCacheManager.for_full_attention(num_blocks, BLOCK_SIZE, new_block=recorder.new_block)
    hits, batches = [], []
    for hit in sequential(kv, make_prompts(trace, BLOCK_SIZE), concurrency=concurrency):
        hits.append(hit or 0)
        batches.append(recorder.take_edges())
    memory = memory_over_time(batches, num_blocks)
    return [
        FollowedRequest(entry.input_length, num_shared, hit, use)
        for entry, num_shared, hit, use in zip(trace, shared_tokens(trace), hits, memory, strict=True)
    ]


def shared_tokens(trace: Sequence[TraceRequest]) -> list[int]:
    """Return the number of tokens that each request shares with earlier ones: its hit in an unlimited pool."""
    prompts = make_prompts(trace, BLOCK_SIZE)
    kv = Setup(full_attention(BLOCK_SIZE)).make_manager(prompts)
    return [hit or 0 for hit in sequential(kv, prompts)]


def group_by_overlap(requests: Iterable[FollowedRequest]) -> list[OverlapGroup]:
    """Return the requests in five groups by the share of their prompt that an earlier one had.

    The first group is cold and shares no token. The others are warm, a quarter of the prompt per group.
    """
    groups: list[list[FollowedRequest]] = [[] for _ in _OVERLAP_LABELS]
    for request in requests:
        # 0 shared -> group 0; up to and including 1/4 -> group 1; up to 2/4 -> 2; ...
        groups[-(-4 * request.num_shared_tokens // request.num_tokens)].append(request)
    return [
        OverlapGroup(
            label,
            len(group),
            sum(request.num_tokens for request in group),
            sum(request.num_shared_tokens for request in group),
            sum(request.num_hit_tokens for request in group),
        )
        for label, group in zip(_OVERLAP_LABELS, groups, strict=True)
    ]


_OVERLAP_LABELS = ("nothing", "to 1/4", "to 2/4", "to 3/4", "more")
"""Labels of the five groups: the part of a prompt that an earlier request had too."""

"""Requests through the real scheduler with every call and its time recorded, and a server's counters.

`timed_replay` only counts. Here all calls are kept, so that lifetimes, leaks and reuses can be derived from them. It is
for traces of some hundred requests.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

from mini_kv.core.errors import KVCacheError
from mini_kv.core.kv_cache_interface import KVCacheConfig
from mini_kv.core.kv_cache_manager import KVCacheManager
from mini_kv.core.parts import KVCacheParts
from mini_kv.core.request import Request
from mini_kv.core.sched.config import SchedulerConfig
from mini_kv.core.sched.scheduler import Scheduler
from mini_kv.story.recorder import Recorder
from mini_kv.story.traced_manager import TracedKVCacheManager
from mini_kv.tools.traces.readers.token_trace import TokenRequest
from mini_kv.tools.traces.runners import Arrival, Clock, full_attention, scheduled

_SECONDS_PER_STEP = 0.02
_MOST_STEPS = 100_000
"""The run of a cache that is so faulty that it makes no progress ends here."""


@dataclass
class Watched:
    """A server's counters, and the calls of its cache."""

    kv: TracedKVCacheManager
    scheduler: Scheduler
    times: list[float] = field(default_factory=list)
    """Time of each of `kv.spans`, in seconds since the start."""
    seconds: list[float] = field(default_factory=list)
    """Time at which each step began."""
    usage: list[float] = field(default_factory=list)
    """Held blocks as a share of the pool, after each step (vLLM `kv_cache_usage_perc`)."""
    num_keys: list[int] = field(default_factory=list)
    """Keys in the index after each step."""
    failed: str | None = None
    """The engine's error message when it could not continue. The run ends there."""
    tokens_computed: int = 0
    num_answers: int = 0
    """Requests that have ended."""
    requests: list[Request] = field(default_factory=list)

    @property
    def hits(self) -> list[int]:
        """Tokens that each request found at its first admission. A request that was never admitted is absent."""
        return [request.num_cached_tokens for request in self.requests if request.num_cached_tokens is not None]


def watch(
    trace: Sequence[TokenRequest],
    num_blocks: int,
    block_size: int,
    *,
    limits: SchedulerConfig | None = None,
    parts: KVCacheParts | None = None,
) -> Watched:
    """Serve the requests, prompts and answers, with a step every `_SECONDS_PER_STEP`. Return counters and calls.

    Raises `ConfigError` for a request that is larger than the pool.
    """
    recorder = Recorder(strict=False)
    parts = replace(parts or KVCacheParts(), new_block=recorder.new_block)
    manager = KVCacheManager(KVCacheConfig(num_blocks, full_attention(block_size)), parts=parts)
    kv = TracedKVCacheManager(manager, recorder)
    seen = Watched(kv, Scheduler(kv, limits))
    arrivals = []
    for number, entry in enumerate(trace):
        request = seen.kv.new_request(str(number), entry.token_ids, cache_salt=entry.cache_salt)
        arrivals.append(Arrival(request, max(entry.output_length, 1), entry.timestamp / 1000 / _SECONDS_PER_STEP))
        seen.requests.append(request)
    clock = Clock()
    try:
        for _, output, results in islice(scheduled(seen.scheduler, arrivals, clock), _MOST_STEPS):
            now = clock.now * _SECONDS_PER_STEP
            seen.times += [now] * (len(seen.kv.spans) - len(seen.times))
            seen.seconds.append(now)
            seen.usage.append(seen.kv.usage)
            seen.num_keys.append(len(seen.kv.block_pool.cached_block_hash_to_block))
            seen.tokens_computed += sum(output.num_scheduled_tokens.values())
            seen.num_answers += sum(result.finish_reason is not None for result in results)
    except KVCacheError as error:
        seen.failed = str(error)
        seen.times += [clock.now * _SECONDS_PER_STEP] * (len(seen.kv.spans) - len(seen.times))
    return seen

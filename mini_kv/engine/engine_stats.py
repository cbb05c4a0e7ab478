"""An engine's counters, and the line that serving engines log every few seconds.

    Avg prompt throughput: 204.8 tokens/s, Avg generation throughput: 51.2 tokens/s, Running: 3 reqs, Waiting: 1 reqs,
    KV cache usage: 37.5%, Prefix cache hit rate: 66.7%

The throughputs are those since the previous line. The hit rate is that of the last 1,000 requests, so that a cold
start no longer counts after a while.
"""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from mini_kv.core.sched.scheduler import Scheduler


class CachingMetrics:
    """The hit rate of the last requests. Source: vLLM `CachingMetrics` (v1/metrics/stats.py)."""

    def __init__(self, max_recent_requests: int = 1000) -> None:
        """Count the last `max_recent_requests` requests."""
        self._requests: deque[tuple[int, int]] = deque(maxlen=max_recent_requests)

    def observe(self, num_tokens: int, num_hits: int) -> None:
        """Count one admitted request of `num_tokens` tokens, of which `num_hits` were cached."""
        self._requests.append((num_tokens, num_hits))

    @property
    def hit_rate(self) -> float:
        """Share of these requests' tokens that were found in the cache, 0.0 to 1.0. Without requests 0.0."""
        num_tokens = sum(num_tokens for num_tokens, _ in self._requests)
        return sum(num_hits for _, num_hits in self._requests) / num_tokens if num_tokens else 0.0


@dataclass(slots=True)
class EngineStats:
    """Counters since the engine was made. They only grow."""

    num_steps: int = 0
    num_scheduled_tokens: int = 0
    """Number of tokens that the model computed."""
    num_prompt_tokens: int = 0
    """Number of prompt tokens of admitted requests, cached ones included."""
    num_generation_tokens: int = 0
    """Number of sampled tokens."""
    num_draft_tokens: int = 0
    """Number of drafts that were checked."""
    num_accepted_tokens: int = 0
    """Number of drafts that were right. Source of both: vLLM `SpecDecodingStats` (v1/spec_decode/metrics.py)."""
    recent_requests: CachingMetrics = field(default_factory=CachingMetrics)


class StatLogger:
    """Writes the line. Source: vLLM `LoggingStatLogger` (v1/metrics/loggers.py)."""

    def __init__(
        self, scheduler: Scheduler, stats: EngineStats, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        """Start to measure now."""
        self._scheduler = scheduler
        self._stats = stats
        self._clock = clock
        self._since = (clock(), stats.num_prompt_tokens, stats.num_generation_tokens)

    def line(self) -> str:
        """Return the line for the time since the last one."""
        before, self._since = (
            self._since,
            (self._clock(), self._stats.num_prompt_tokens, self._stats.num_generation_tokens),
        )
        seconds = self._since[0] - before[0]
        prompt, generation = ((self._since[i] - before[i]) / seconds if seconds > 0 else 0.0 for i in (1, 2))
        scheduler, manager = self._scheduler, self._scheduler.kv_cache_manager
        return (
            f"Avg prompt throughput: {prompt:.1f} tokens/s, Avg generation throughput: {generation:.1f} tokens/s, "
            f"Running: {len(scheduler.running)} reqs, Waiting: {len(scheduler.waiting)} reqs, "
            f"KV cache usage: {manager.usage:.1%}, Prefix cache hit rate: {self.prefix_cache_hit_rate:.1%}"
        )

    @property
    def prefix_cache_hit_rate(self) -> float:
        """Share of the last requests' tokens that were found in the cache, 0.0 to 1.0."""
        return self._stats.recent_requests.hit_rate

"""A trace through the real scheduler, with a clock: requests arrive at the trace's times, and answers are generated.

    timestamps      a request arrives at its own; `rate` scales all of them, in requests per second
    answers         have the trace's lengths; each token takes a step and a slot in a block
    steps           the scheduler's; each lasts `ms_per_step`, for any number of tokens
    admission       a strategy decides when a waiting request that fits may enter

So requests overlap as in the trace. Compare steps, waits, preemptions and blocks, not seconds. There is
no model, and no other request finds an answer. Without a clock: `replay`.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from mini_kv.core.errors import ConfigError
from mini_kv.core.kv_cache_interface import KVCacheConfig
from mini_kv.core.kv_cache_manager import KVCacheManager
from mini_kv.core.parts import KVCacheParts
from mini_kv.core.sched.config import SchedulerConfig
from mini_kv.core.sched.output import SchedulerOutput
from mini_kv.core.sched.scheduler import Scheduler
from mini_kv.policy.admission_strategies import Strategy, strategies
from mini_kv.tools.traces.prompt_hashes import make_prompts
from mini_kv.tools.traces.readers.mooncake import TraceRequest
from mini_kv.tools.traces.runners import Arrival, Clock, full_attention, make_requests, scheduled

_MAX_BLOCKS = 1_000_000
"""The most blocks of a pool that is built here. This many take a second."""


@dataclass(slots=True)
class ClockReport:
    """Counts of one run over a trace: steps, preemptions, tokens, waiting times."""

    num_blocks: int
    """Size of the pool, the null block included."""
    requests: int = 0
    requests_refused: int = 0
    """Requests that are larger than the pool."""
    prompt_tokens: int = 0
    """Tokens that were looked up. Those of a preempted request count again at its next admission."""
    hit_tokens: int = 0
    steps: int = 0
    preemptions: int = 0
    tokens_computed: int = 0
    """Prompt and output tokens, including those that were computed again after a preemption."""
    tokens_recomputed: int = 0
    """Those of them that had been computed before."""
    tokens_given_up: int = 0
    """Tokens that preempted requests had computed by then. Those that were not recomputed were found again."""
    peak_running: int = 0
    """The most requests that ran in one step."""
    peak_held_blocks: int = 0
    """The most blocks that requests held in one step."""
    mean_usage: float = 0.0
    """Held blocks as a share of the pool, averaged over the steps in which a request ran."""
    mean_wait: float = 0.0
    """Steps from arrival to the first token computed, averaged over the requests."""
    longest_wait: int = 0
    """Steps from arrival to the first computed token of the request that waited longest. It shows starvation."""
    seconds: float = 0.0
    """Time of the run on this machine."""


def replay_with_clock(
    trace: Sequence[TraceRequest],
    num_blocks: int | None = None,
    config: SchedulerConfig | None = None,
    *,
    strategy: Strategy | None = None,
    rate: float | None = None,
    ms_per_step: int = 20,
    parts: KVCacheParts | None = None,
    on_progress: Callable[[int], None] | None = None,
) -> ClockReport:
    """Serve every request of the trace, prompt and answer, and return the counts.

    Args:
        trace: at least one request.
        num_blocks: size of the pool in the trace's blocks, the null block included. `None`: enough for all at once.
        config: limits of the scheduler.
        strategy: decides when a new request may enter. The default is greedy.
        rate: average number of arriving requests per second. `None`: as recorded.
        ms_per_step: the trace's time per step, in milliseconds.
        parts: parts of the cache that replace the engine's own.
        on_progress: called with the number of requests that have ended.

    Raises `ConfigError` for arguments that make no sense, and for a rate if all requests arrive at the same time.
    Costs O(tokens of all answers).
    """
    if ms_per_step < 1:
        raise ConfigError(f"ms_per_step is {ms_per_step}, it must be at least 1")
    started = time.perf_counter()
    moments = arrival_times(trace, rate)
    if num_blocks is None:
        size = trace[0].block_size
        num_blocks = 1 + sum(-(-(entry.input_length + entry.output_length) // size) for entry in trace)
    if num_blocks > _MAX_BLOCKS:
        raise ConfigError(f"num_blocks is {num_blocks}, it must be at most {_MAX_BLOCKS:,} with a clock")
    strategy = strategy or Strategy()
    groups = full_attention(trace[0].block_size)
    kv = KVCacheManager(KVCacheConfig(num_blocks, groups), watermark=strategy.watermark, parts=parts)
    scheduler = Scheduler(kv, config, admission=strategy.admission)
    requests = make_requests(make_prompts(trace, trace[0].block_size))
    every = [
        Arrival(request, max(entry.output_length, 1), moment / ms_per_step)
        for request, entry, moment in zip(requests, trace, moments, strict=True)
    ]
    arrivals = [arrival for arrival in every if arrival.can_run(scheduler)]
    clock = Clock()
    report = ClockReport(num_blocks, len(arrivals), len(trace) - len(arrivals))
    counter = _Counter(report, scheduler, clock, {one.request.request_id: one.step for one in arrivals})
    num_ended = report.requests_refused
    for step in scheduled(scheduler, arrivals, clock, counter.count):
        report.tokens_given_up += sum(step.computed[request_id] for request_id in step.output.preempted_req_ids)
        report.steps += 1
        num_ended += sum(result.finish_reason is not None for result in step.results)
        if on_progress is not None:
            on_progress(num_ended)
    report.prompt_tokens, report.hit_tokens = kv.prefix_cache_stats.queries, kv.prefix_cache_stats.hits
    report.preemptions = scheduler.num_preemptions
    report.mean_usage /= max(report.steps, 1)
    report.mean_wait /= max(report.requests, 1)
    report.seconds = time.perf_counter() - started
    return report


def arrival_times(trace: Sequence[TraceRequest], rate: float | None = None) -> list[float]:
    """Return the arrival time of each request in milliseconds: as recorded, or scaled to `rate` requests per second.

    Raises `ConfigError` for a rate that is not above 0, or if there is no time between the first and the last.
    """
    recorded = [float(entry.timestamp) for entry in trace]
    if rate is None:
        return recorded
    if not rate > 0:
        raise ConfigError(f"rate is {rate}: it must be above 0 requests per second")
    span = recorded[-1] - recorded[0]
    if span <= 0:
        raise ConfigError(f"rate is {rate}, but all {len(trace)} requests of the trace come at the same moment")
    factor = 1000 * (len(trace) - 1) / rate / span
    return [(moment - recorded[0]) * factor for moment in recorded]


def compare_strategies(
    trace: Sequence[TraceRequest],
    num_blocks: int | None = None,
    config: SchedulerConfig | None = None,
    *,
    ms_per_step: int = 20,
) -> dict[str, ClockReport]:
    """Serve the trace under each of `strategies`, and return the reports by their names."""
    return {
        name: replay_with_clock(trace, num_blocks, config, strategy=strategy, ms_per_step=ms_per_step)
        for name, strategy in strategies().items()
    }


@dataclass
class _Counter:
    """Counts the waits, the blocks and the tokens of each step. The report's means are sums until the end."""

    report: ClockReport
    scheduler: Scheduler
    clock: Clock
    waiting: dict[str, float]
    """The arrival of each request that has not been admitted, in steps."""
    reached: dict[str, int] = field(default_factory=dict)
    """The most tokens of each request that have been computed at any time."""

    def count(self, output: SchedulerOutput) -> None:
        """Count a step that is planned."""
        report, kv = self.report, self.scheduler.kv_cache_manager
        for data in output.scheduled_new_reqs:
            if data.request_id in self.waiting:  # if not, it comes back after a preemption
                wait = self.clock.now - math.ceil(self.waiting.pop(data.request_id))
                report.mean_wait += wait
                report.longest_wait = max(report.longest_wait, wait)
        report.mean_usage += kv.usage
        held = len(kv.block_pool.blocks) - 1 - kv.block_pool.num_free_blocks
        report.peak_running = max(report.peak_running, len(self.scheduler.running))
        report.peak_held_blocks = max(report.peak_held_blocks, held)
        for request_id, num_tokens in output.num_scheduled_tokens.items():
            num_computed = self.scheduler.requests[request_id].num_computed_tokens
            end, reached = num_computed + num_tokens, self.reached.get(request_id, 0)
            report.tokens_computed += num_tokens
            report.tokens_recomputed += max(min(end, reached) - num_computed, 0)
            self.reached[request_id] = max(end, reached)

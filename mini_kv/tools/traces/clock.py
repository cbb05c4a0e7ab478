"""A trace through the real scheduler, with a clock: requests arrive at the trace's times, and answers are generated.

    timestamps      a request arrives at its own; `rate` scales all of them, in requests per second
    answers         have the trace's lengths; each token takes a step and a slot in a block
    steps           the scheduler's; each lasts `ms_per_step`, for any number of tokens
    admission       a strategy decides when a waiting request that fits may enter

So requests overlap as in the trace. Compare steps, waits, preemptions and blocks, not seconds. There is
no model: every answer is made of zeros, and no other request finds an answer. Without a clock: `replay`.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mini_kv.core.errors import ConfigError
from mini_kv.core.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from mini_kv.core.kv_cache_manager import KVCacheManager
from mini_kv.core.parts import KVCacheParts
from mini_kv.core.request import Request
from mini_kv.core.sched.config import SchedulerConfig
from mini_kv.core.sched.output import SchedulerOutput
from mini_kv.core.sched.scheduler import Scheduler
from mini_kv.policy.admission_strategies import Strategy, strategies
from mini_kv.story.step_loop import run_step, sample_ready
from mini_kv.tools.traces.readers.mooncake import TraceRequest, name_blocks

MAX_BLOCKS = 1_000_000
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
    arrivals = arrival_times(trace, rate)
    if num_blocks is None:
        size = trace[0].block_size
        num_blocks = 1 + sum(-(-(entry.input_length + entry.output_length) // size) for entry in trace)
    if num_blocks > MAX_BLOCKS:
        raise ConfigError(f"num_blocks is {num_blocks}, it must be at most {MAX_BLOCKS:,} with a clock")
    serving = _Serving(trace, num_blocks, config, strategy or Strategy(), parts)
    serving.run([moment / ms_per_step for moment in arrivals], on_progress or (lambda done: None))
    serving.report.seconds = time.perf_counter() - started
    return serving.finished_report()


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


class _Serving:
    """A running scheduler, and the counts of its run."""

    def __init__(
        self,
        trace: Sequence[TraceRequest],
        num_blocks: int,
        config: SchedulerConfig | None,
        strategy: Strategy,
        parts: KVCacheParts | None,
    ) -> None:
        self.trace = trace
        self.names = name_blocks(trace)
        group = KVCacheGroupSpec(("layers",), FullAttentionSpec(trace[0].block_size))
        self.kv = KVCacheManager(KVCacheConfig(num_blocks, (group,)), watermark=strategy.watermark, parts=parts)
        self.scheduler = Scheduler(self.kv, config, admission=strategy.admission)
        self.report = ClockReport(num_blocks)
        self.arrived_at: dict[str, int] = {}
        self.reached: dict[str, int] = {}
        """The most tokens of each request that have been computed at any time."""
        self.sum_of_waits = 0
        self.sum_of_usage = 0.0

    def run(self, arrivals: Sequence[float], on_progress: Callable[[int], None]) -> None:
        """Serve all requests. `arrivals` are in steps. Without an unfinished request time passes without a step."""
        clock, num_arrived = 0, 0
        while num_arrived < len(arrivals) or self.scheduler.has_unfinished_requests:
            if not self.scheduler.has_unfinished_requests:
                clock = max(clock, math.ceil(arrivals[num_arrived]))
            while num_arrived < len(arrivals) and arrivals[num_arrived] <= clock:
                self.arrive(num_arrived, clock)
                num_arrived += 1
            if self.scheduler.has_unfinished_requests:
                self.step(clock)
                clock += 1
            on_progress(num_arrived - len(self.scheduler.requests))

    def arrive(self, index: int, clock: int) -> None:
        """Add a request of the trace, unless it is larger than the pool."""
        entry = self.trace[index]
        request = Request(str(index), num_tokens=entry.input_length, block_hashes=self.names[index])
        try:
            self.scheduler.add_request(request, max_tokens=max(entry.output_length, 1))
        except ConfigError:
            self.report.requests_refused += 1
            return
        self.report.requests += 1
        self.arrived_at[request.request_id] = clock

    def step(self, clock: int) -> None:
        """Run one step."""
        computed = {request.request_id: request.num_computed_tokens for request in self.scheduler.running}
        output, _ = run_step(self.scheduler, self._count)
        self.report.tokens_given_up += sum(computed[request_id] for request_id in output.preempted_req_ids)
        self.report.steps += 1
        for data in output.scheduled_new_reqs:
            arrived_at = self.arrived_at.pop(data.request_id, None)  # gone: it comes back after a preemption
            if arrived_at is not None:
                self.sum_of_waits += clock - arrived_at
                self.report.longest_wait = max(self.report.longest_wait, clock - arrived_at)

    def _count(self, output: SchedulerOutput) -> dict[str, list[int]]:
        """Count the blocks and tokens of this step. Return a token for each request that gets one."""
        self.sum_of_usage += self.kv.usage
        pool = self.kv.block_pool
        self.report.peak_running = max(self.report.peak_running, len(self.scheduler.running))
        self.report.peak_held_blocks = max(self.report.peak_held_blocks, len(pool.blocks) - 1 - pool.num_free_blocks)
        for request_id, num_tokens in output.num_scheduled_tokens.items():
            num_computed = self.scheduler.requests[request_id].num_computed_tokens
            end, reached = num_computed + num_tokens, self.reached.get(request_id, 0)
            self.report.tokens_computed += num_tokens
            self.report.tokens_recomputed += max(min(end, reached) - num_computed, 0)
            self.reached[request_id] = max(end, reached)
        return sample_ready(self.scheduler, output, lambda _: 0)

    def finished_report(self) -> ClockReport:
        """Return the report, with its means."""
        report = self.report
        stats = self.kv.prefix_cache_stats
        report.prompt_tokens, report.hit_tokens = stats.queries, stats.hits
        report.preemptions = self.scheduler.num_preemptions
        report.mean_usage = self.sum_of_usage / max(report.steps, 1)
        report.mean_wait = self.sum_of_waits / max(report.requests, 1)
        return report

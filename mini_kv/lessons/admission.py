"""A trace through the real scheduler: how long requests wait, which are preempted, how full the pool is.

    python -m mini_kv.lessons.admission mini_kv/traces/small.jsonl --num-blocks 40

There is no model: every token is 0. A step is taken to last `ms_per_step`, whatever it computes, and time passes only
so that requests arrive when the trace says; what is compared are steps, preemptions and blocks, not seconds.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from mini_kv.core.errors import ConfigError
from mini_kv.core.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from mini_kv.core.kv_cache_manager import KVCacheManager
from mini_kv.core.request import Request
from mini_kv.core.sched.admission import AdmissionPolicy
from mini_kv.core.sched.config import SchedulerConfig
from mini_kv.core.sched.output import SchedulerOutput
from mini_kv.core.sched.scheduler import Scheduler
from mini_kv.policy.admission import Greedy, Hysteresis, ReservedBlocks
from mini_kv.trace.step import run_step, sample_ready
from mini_kv.traces.mooncake import BLOCK_SIZE, TraceError, TraceRequest, name_blocks, read_trace

_MAX_BLOCKS = 1_000_000
"""Most blocks of a pool that the command makes: this many take a second."""


@dataclass(frozen=True, slots=True)
class Strategy:
    """When a newcomer may enter: a policy, or a share of the pool that the cache manager keeps free."""

    admission: AdmissionPolicy
    watermark: float = 0.0


def strategies() -> dict[str, Strategy]:
    """Return the strategies that the command compares, each as new."""
    return {
        "greedy": Strategy(Greedy()),
        "greedy, jumping": Strategy(Greedy(may_jump=True)),
        "8 blocks reserved": Strategy(ReservedBlocks(8)),
        "watermark 10 %": Strategy(Greedy(), watermark=0.1),
        "hysteresis 90/50 %": Strategy(Hysteresis(0.9, 0.5)),
    }


@dataclass(slots=True)
class ServeReport:
    """Counts of one run over a trace: steps, preemptions, tokens, waiting times."""

    requests: int = 0
    requests_refused: int = 0
    """Requests that are larger than the pool."""
    steps: int = 0
    preemptions: int = 0
    tokens_computed: int = 0
    """Prompt and output, everything that was computed again after a preemption included."""
    tokens_recomputed: int = 0
    """Those of them that had been computed before."""
    tokens_given_up: int = 0
    """Tokens that preempted requests had computed when they were preempted; those not recomputed were found again."""
    mean_usage: float = 0.0
    """Held blocks as a share of the pool, averaged over the steps in which a request ran."""
    mean_wait: float = 0.0
    """Steps from arrival to the first token computed, averaged over the requests."""
    longest_wait: int = 0
    """Steps from arrival to the first token computed, of the request that waited longest: starvation shows here."""


def serve(
    trace: Sequence[TraceRequest],
    num_blocks: int,
    config: SchedulerConfig | None = None,
    *,
    admission: AdmissionPolicy | None = None,
    watermark: float = 0.0,
    ms_per_step: int = 20,
) -> ServeReport:
    """Serve every request of the trace, prompt and answer, and return what that took.

    Args:
        trace: at least one request.
        num_blocks: size of the pool, the null block included, in blocks of 512 tokens.
        config: limits of the scheduler.
        admission: when a newcomer may enter.
        watermark: see `KVCacheManager`.
        ms_per_step: how much of the trace's time passes in a step.

    Costs O(tokens of all answers).
    """
    if ms_per_step < 1:
        raise ConfigError(f"ms_per_step is {ms_per_step}, it must be at least 1")
    serving = _Serving(trace, num_blocks, config, Strategy(admission or Greedy(), watermark))
    clock, num_arrived = 0, 0
    while num_arrived < len(trace) or serving.scheduler.has_unfinished_requests:
        if not serving.scheduler.has_unfinished_requests:  # nothing to do until the next one comes
            clock = max(clock, -(-trace[num_arrived].timestamp // ms_per_step))
        while num_arrived < len(trace) and trace[num_arrived].timestamp <= clock * ms_per_step:
            serving.arrive(num_arrived, clock)
            num_arrived += 1
        if serving.scheduler.has_unfinished_requests:
            serving.step(clock)
            clock += 1
    return serving.finished_report()


def compare_strategies(
    trace: Sequence[TraceRequest], num_blocks: int, config: SchedulerConfig | None = None, *, ms_per_step: int = 20
) -> dict[str, ServeReport]:
    """Serve the trace under each of `strategies`, and return the reports by their names. Arguments as for `serve`."""
    return {
        name: serve(
            trace, num_blocks, config, admission=way.admission, watermark=way.watermark, ms_per_step=ms_per_step
        )
        for name, way in strategies().items()
    }


class _Serving:
    """A scheduler at work, and what is counted meanwhile."""

    def __init__(
        self,
        trace: Sequence[TraceRequest],
        num_blocks: int,
        config: SchedulerConfig | None,
        strategy: Strategy,
    ) -> None:
        self.trace = trace
        self.names = name_blocks(trace)
        group = KVCacheGroupSpec(("layers",), FullAttentionSpec(BLOCK_SIZE))
        self.kv = KVCacheManager(KVCacheConfig(num_blocks, (group,)), watermark=strategy.watermark)
        self.scheduler = Scheduler(self.kv, config, admission=strategy.admission)
        self.report = ServeReport()
        self.arrived_at: dict[str, int] = {}
        self.reached: dict[str, int] = {}
        """How many of each request's tokens have ever been computed."""
        self.sum_of_waits = 0
        self.sum_of_usage = 0.0

    def arrive(self, index: int, clock: int) -> None:
        """Bring a request of the trace, unless it is larger than the pool."""
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
        """Count what this step holds and computes; return a token for each request that gets one."""
        self.sum_of_usage += self.kv.usage
        for request_id, num_tokens in output.num_scheduled_tokens.items():
            num_computed = self.scheduler.requests[request_id].num_computed_tokens
            end, reached = num_computed + num_tokens, self.reached.get(request_id, 0)
            self.report.tokens_computed += num_tokens
            self.report.tokens_recomputed += max(min(end, reached) - num_computed, 0)
            self.reached[request_id] = max(end, reached)
        return sample_ready(self.scheduler, output, lambda _: 0)

    def finished_report(self) -> ServeReport:
        """Return the report, with its means."""
        report = self.report
        report.preemptions = self.scheduler.num_preemptions
        report.mean_usage = self.sum_of_usage / max(report.steps, 1)
        report.mean_wait = self.sum_of_waits / max(report.requests, 1)
        return report


def _format_comparison(reports: dict[str, ServeReport]) -> str:
    """Return a table, one line per strategy."""
    lines = ["strategy              steps  preempted  recomputed  usage  mean wait  longest"]
    for name, report in reports.items():
        lines.append(
            f"{name:<20} {report.steps:>6,} {report.preemptions:>10,} {report.tokens_recomputed:>11,}"
            f" {100 * report.mean_usage:>4.0f} % {report.mean_wait:>10.1f} {report.longest_wait:>8,}"
        )
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Serve a trace under each strategy and print what each took; return 1 if the trace cannot be read."""
    parser = argparse.ArgumentParser(prog="python -m mini_kv.lessons.admission", description=__doc__.splitlines()[0])
    parser.add_argument("trace", help="a file in Mooncake's format")
    parser.add_argument("--num-blocks", type=int, default=40, help="blocks of 512 tokens, the null block included")
    parser.add_argument("--ms-per-step", type=int, default=20)
    parser.add_argument("--max-num-seqs", type=int, default=128)
    options = parser.parse_args(argv)
    if options.num_blocks > _MAX_BLOCKS:
        parser.error(f"--num-blocks is {options.num_blocks}, it must be at most {_MAX_BLOCKS:,}")
    try:
        trace = read_trace(options.trace)
        config = SchedulerConfig(max_num_seqs=options.max_num_seqs)
        reports = compare_strategies(trace, options.num_blocks, config, ms_per_step=options.ms_per_step)
    except (TraceError, OSError, ConfigError) as error:
        print(error, file=sys.stderr)
        return 1
    refused = next(iter(reports.values())).requests_refused
    print(f"{len(trace)} requests, {refused} of them larger than the pool of {options.num_blocks - 1} blocks\n")
    print(_format_comparison(reports))
    return 0


if __name__ == "__main__":
    sys.exit(main())

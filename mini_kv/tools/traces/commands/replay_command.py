"""`mini-kv replay TRACE.jsonl`: the command around `replay`, `league` and, with `--rate` or `--admission`, the clock.

One policy and one pool: a report. Several of either: a table of hit rates.
"""

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from typing import Any

from mini_kv.command_output import add_json_flag, one_line_errors, print_report
from mini_kv.core.errors import ConfigError
from mini_kv.core.sched.config import SchedulerConfig
from mini_kv.policy.admission_strategies import strategies
from mini_kv.policy.catalogue import POLICIES, find_policy, find_strategy, requested
from mini_kv.policy.eviction import parts_of
from mini_kv.progress_line import ProgressLine
from mini_kv.tools.traces.commands.league_table import asks_for_league, print_league, standings_of
from mini_kv.tools.traces.parallel import add_cell_arguments, run_cells
from mini_kv.tools.traces.prompt_hashes import as_hashes
from mini_kv.tools.traces.readers.formats import add_trace_arguments, read_traffic
from mini_kv.tools.traces.readers.mooncake import TraceError, TraceRequest
from mini_kv.tools.traces.replay import ReplayReport, replay
from mini_kv.tools.traces.timed_replay import ClockReport, arrival_times, replay_with_clock
from mini_kv.typed_numbers import whole_number


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that `run` reads."""
    add_trace_arguments(parser)
    about = "blocks of the pool, with the null block (default: all; for several policies eight sizes)"
    parser.add_argument("--num-blocks", type=int, nargs="+", default=[], metavar="N", help=about)
    about = "requests at once (default: 1, with a clock 128)"
    parser.add_argument("--concurrency", type=int, metavar="N", help=about)
    about = f"of eviction: {', '.join(POLICIES)}, file.py:Class, or all (default: lru)"
    parser.add_argument("--policy", nargs="+", action="extend", metavar="NAME", help=about)
    about = "several policies: the differences to the first, over sessions drawn by this seed"
    parser.add_argument("--intervals", type=int, metavar="SEED", help=about)
    add_json_flag(parser, "print the report, or the reports, as JSON")
    clock = parser.add_argument_group("with a clock and answers, through the scheduler")
    clock.add_argument("--rate", metavar="R", help="requests per second, or the word recorded")
    about = f"when waiting requests are admitted: {', '.join(strategies())}, file.py:Class, or all; may be repeated"
    clock.add_argument("--admission", action="append", metavar="NAME", help=about)
    about = "time of a step (default: 20)"
    clock.add_argument("--ms-per-step", type=whole_number(0, 60_000), default=20, metavar="MS", help=about)
    add_cell_arguments(parser)


@one_line_errors("replay", TraceError, ConfigError, ImportError, SyntaxError, file="trace")
def run(args: argparse.Namespace) -> int:
    """Replay the trace and print the report. Several policies or pools: a table. Return the exit status.

    0: done. 2: the trace or an argument is wrong. Then stderr gets one line, and nothing was replayed.
    """
    args.policy = args.policy or ["lru"]
    names = requested(args.admission or ["greedy"], strategies())
    is_clocked = args.rate is not None or args.admission is not None
    is_league = asks_for_league(args)
    if is_league and (is_clocked or args.concurrency is not None):
        raise ConfigError("--rate, --admission and --concurrency are for one policy and one pool")
    with ProgressLine(sys.stderr, "reading the trace") as line, _finished_policies([*args.policy, *names]):
        if is_league:
            standings = standings_of(as_hashes(read_traffic(args), args.block_size), args, line)
            return print_league(standings, args)
        policy, num_blocks = find_policy(args.policy[0]), next(iter(args.num_blocks), None)
        for name in names:
            find_strategy(name)  # a wrong name is told before a minute has gone by
        rate = _rate(args.rate)
        trace = as_hashes(read_traffic(args), args.block_size)
        line.total = len(trace)
        concurrency = 1 if args.concurrency is None else args.concurrency
        if is_clocked:
            reports = _with_clock(trace, names, rate, args, line)
        else:
            parts = parts_of(policy)
            report = replay(trace, num_blocks, concurrency=concurrency, parts=parts, on_progress=line.show)
    if not is_clocked:
        return print_report(args, report.as_dict, lambda: _format_report(report))
    figures = {name: asdict(report) for name, report in reports.items()}
    return print_report(args, lambda: figures, lambda: _clock_lines(trace, rate, args.ms_per_step, reports), wrap=False)


@contextmanager
def _finished_policies(policies: Sequence[str]) -> Iterator[None]:
    """Raise `ConfigError` in the block for a method that one of the policies from files lacks."""
    try:
        yield
    except NotImplementedError as error:
        own = [policy for policy in policies if ":" in policy]
        missing = error or "a method of EvictionPolicy is missing"
        raise ConfigError(f"{' or '.join(own)} is not finished: {missing}") from None


def _rate(written: str | None) -> float | None:
    """Return the requested requests per second, or `None` for those of the trace."""
    if written in (None, "recorded"):
        return None
    try:
        return float(written)
    except ValueError:
        raise ConfigError(f"--rate is {written!r}: requests per second, or recorded") from None


def _with_clock(
    trace: Sequence[TraceRequest], names: list[str], rate: float | None, args: argparse.Namespace, line: ProgressLine
) -> dict[str, ClockReport]:
    """Replay the trace with a clock under each of these strategies, and return the reports by their names."""
    config = SchedulerConfig() if args.concurrency is None else SchedulerConfig(max_num_seqs=args.concurrency)
    replay_under: Callable[..., ClockReport] = partial(
        _replay_under,
        num_blocks=next(iter(args.num_blocks), None),
        config=config,
        rate=rate,
        ms_per_step=args.ms_per_step,
        policy=args.policy[0],
    )
    if len(names) == 1:
        return {names[0]: replay_under(trace, names[0], on_progress=line.show)}
    line.total = len(names)
    found = run_cells(replay_under, trace, names, jobs=args.jobs, dask=args.dask, on_progress=line.show)
    return dict(zip(names, found, strict=True))


def _replay_under(trace: Sequence[TraceRequest], strategy: str, *, policy: str, **options: Any) -> ClockReport:
    parts = parts_of(find_policy(policy))
    return replay_with_clock(trace, strategy=find_strategy(strategy), parts=parts, **options)


def _clock_lines(
    trace: Sequence[TraceRequest], rate: float | None, ms_per_step: int, reports: dict[str, ClockReport]
) -> list[str]:
    """Return the reports as a table, one line per strategy."""
    first = next(iter(reports.values()))
    arrivals = arrival_times(trace, rate)
    seconds = (arrivals[-1] - arrivals[0]) / 1000
    per_second = f"{len(trace) / seconds:.2f} per second" if seconds else "all at once"
    lines = [
        f"{len(trace):,} requests, {per_second}, steps of {ms_per_step} ms",
        f"pool of {first.num_blocks:,} blocks (one is the null block); {first.requests_refused:,} requests are larger",
        "",
        "admission             steps  preempted  recomputed    hits  usage   peak  running  mean wait  longest",
    ]
    for name, report in reports.items():
        label, hits = name.rpartition("/")[2], report.hit_tokens / max(report.prompt_tokens, 1)
        lines.append(
            f"{label:<20} {report.steps:>6,} {report.preemptions:>10,} {report.tokens_recomputed:>11,}"
            f" {100 * hits:>5.1f} % {100 * report.mean_usage:>4.0f} % {report.peak_held_blocks:>6,}"
            f" {report.peak_running:>8,} {report.mean_wait:>10.1f} {report.longest_wait:>8,}"
        )
    return lines


def _format_report(report: ReplayReport) -> list[str]:
    """Return the report as text, one figure per line with the numbers that it is made of."""
    r = report
    return [
        f"{r.requests:,} requests, {r.distinct_blocks:,} different full blocks of {r.block_size} tokens",
        f"pool of {r.num_blocks:,} blocks (one is the null block), at most {r.concurrency:,} running at once",
        "",
        f"hit rate by tokens  {_percent(r.hit_rate_of_prompt_tokens):>9}  "
        f"{r.hit_tokens:,} of {r.prompt_tokens:,} prompt tokens were in the cache",
        f"hit rate by blocks  {_percent(r.hit_rate_of_full_blocks):>9}  "
        f"{r.hit_blocks:,} of {r.full_blocks:,} full blocks of prompts (partial ones are never cached)",
        *(
            f"found {group.share:<13} {group.requests:>9,}  requests: {group.hit_tokens:,} of their "
            f"{group.prompt_tokens:,} tokens"
            for group in r.found
        ),
        f"refused requests    {r.requests_refused:>9,}  "
        f"are larger than the pool: {r.prompt_tokens_refused:,} prompt tokens, left out above",
        f"evictions           {r.evictions:>9,}  cached blocks whose memory was used again",
        f"peak usage          {_percent(r.peak_usage):>9}  {r.peak_held_blocks:,} blocks were held at once",
        f"time                {r.seconds:>7.2f} s  without reading the file",
    ]


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.2f} %"

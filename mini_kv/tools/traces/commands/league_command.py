"""`mini-kv league TRACE.jsonl`: the hit rate of each eviction policy in pools of several sizes."""

import argparse
import sys
from collections.abc import Sequence

from mini_kv.core.errors import ConfigError
from mini_kv.policy.catalogue import POLICIES
from mini_kv.progress_line import ProgressLine
from mini_kv.tools.planning.command_output import add_json_flag, one_line_errors, print_report
from mini_kv.tools.traces.commands.replay_command import finished_policies
from mini_kv.tools.traces.league import BELADY, Standing, checked_sizes, compare, default_sizes, league
from mini_kv.tools.traces.parallel import add_cell_arguments
from mini_kv.tools.traces.prompt_hashes import as_hashes
from mini_kv.tools.traces.readers.formats import add_trace_arguments, read_traffic
from mini_kv.tools.traces.readers.mooncake import TraceError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that `run` reads."""
    add_trace_arguments(parser)
    about = "sizes of the pool in blocks, with the null block (default: eight)"
    parser.add_argument("--num-blocks", type=int, nargs="+", metavar="N", help=about)
    about = f"{', '.join(POLICIES)} (default: all of these), or file.py:Class"
    parser.add_argument("--policy", nargs="+", action="extend", metavar="NAME", help=about)
    add_cell_arguments(parser)
    about = "differences to the first policy, over sessions drawn by this seed"
    parser.add_argument("--intervals", type=int, metavar="SEED", help=about)
    add_json_flag(parser, "print every replay's report as one JSON object")


@one_line_errors("league", TraceError, ConfigError, ImportError, SyntaxError, file="trace")
def run(args: argparse.Namespace) -> int:
    """Replay the trace under every policy and print the table. Return the exit status.

    0: done. 2: the trace or an argument is wrong, with one line on stderr.
    """
    with ProgressLine(sys.stderr, "reading the trace") as line, finished_policies(args.policy or []):
        standings = _standings(args, line)

    def lines() -> list[str]:
        return [format_table(standings)] + (
            [] if args.intervals is None else ["", format_intervals(standings, args.intervals)]
        )

    figures = [{"policy": s.policy, **s.report.as_dict()} for s in standings]
    return print_report(args, lambda: figures, lines, wrap=False)


def _standings(args: argparse.Namespace, line: ProgressLine) -> list[Standing]:
    trace = as_hashes(read_traffic(args), args.block_size)
    sizes = checked_sizes(args.num_blocks) if args.num_blocks else default_sizes(trace)
    policies = [*(args.policy or POLICIES), BELADY]
    if args.intervals is not None and len({entry.session_id for entry in trace}) == 1:
        raise ConfigError("--intervals needs a trace with several sessions, such as `mini-kv trace fetch agents`")
    line.total = len(sizes) * len(policies)
    return league(trace, sizes, policies, jobs=args.jobs, dask=args.dask, on_progress=line.show)


def format_table(standings: Sequence[Standing]) -> str:
    """Return the hit rates in percent of the prompt tokens: a row per policy, a column per size, `*` at the best."""
    sizes = [s.num_blocks for s in standings if s.policy == BELADY]
    rates: dict[str, list[float]] = {}
    for standing in standings:
        rates.setdefault(standing.policy, []).append(100 * (standing.report.hit_rate_of_prompt_tokens or 0.0))
    ceiling = rates.pop(BELADY)
    best = [max(column) for column in zip(*rates.values(), strict=True)]
    width = max(map(len, [*rates, BELADY]))
    block_size = standings[0].report.block_size
    return "\n".join(
        [
            f"hits in percent of the prompt tokens; pools in blocks of {block_size} tokens, one request at a time",
            "",
            _row("", width, [f"{size:>9,} " for size in sizes]),
            *(_row(policy, width, list(map(_cell, row, best))) for policy, row in rates.items()),
            _row(BELADY, width, list(map(_cell, ceiling))),
            "",
            f"* the best policy that does not know the future; {BELADY} does, and is the upper bound",
        ]
    )


def format_intervals(standings: Sequence[Standing], seed: int) -> str:
    """Return each policy's difference to the first, in points: a row per policy, a column per size."""
    first = {s.num_blocks: s.sessions for s in standings if s.policy == standings[0].policy}
    rows: dict[str, list[str]] = {}
    for standing in standings:
        points, low, high = compare(standing.sessions, first[standing.num_blocks], seed)
        rows.setdefault(standing.policy, []).append(f"{f'{points:+.2f} ({low:+.2f} to {high:+.2f})':>26}")
    del rows[standings[0].policy]
    width = max(map(len, rows))
    num_sessions = len(standings[0].sessions)
    return "\n".join(
        [
            f"points more than {standings[0].policy}, and the 95 % interval over {num_sessions} sessions, seed {seed}",
            "",
            _row("", width, [f"{size:>26,}" for size in first]),
            *(_row(policy, width, cells) for policy, cells in rows.items()),
        ]
    )


def _row(name: str, width: int, cells: Sequence[str]) -> str:
    return " ".join([f"{name:<{width}}", *cells]).rstrip()


def _cell(rate: float, best: float | None = None) -> str:
    return f"{rate:9.2f}{'*' if rate == best else ' '}"

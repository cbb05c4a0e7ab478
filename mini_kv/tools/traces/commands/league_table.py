"""The table of `mini-kv replay` for several policies or pools: the hit rate of each policy in each pool."""

import argparse
from collections.abc import Sequence

from mini_kv.command_output import print_report
from mini_kv.core.errors import ConfigError
from mini_kv.policy.catalogue import ALL, POLICIES, requested
from mini_kv.progress_line import ProgressLine
from mini_kv.tools.traces.league import BELADY, Standing, checked_sizes, compare, default_sizes, league
from mini_kv.tools.traces.readers.mooncake import TraceRequest


def asks_for_league(args: argparse.Namespace) -> bool:
    """Return whether the arguments name several policies, several pools, or a comparison of them."""
    return len(args.policy) > 1 or ALL in args.policy or len(args.num_blocks) > 1 or args.intervals is not None


def standings_of(trace: Sequence[TraceRequest], args: argparse.Namespace, line: ProgressLine) -> list[Standing]:
    """Replay the trace under every requested policy in every requested pool."""
    sizes = checked_sizes(args.num_blocks) if args.num_blocks else default_sizes(trace)
    policies = requested([*args.policy, BELADY], POLICIES)
    if args.intervals is not None and len({entry.session_id for entry in trace}) == 1:
        raise ConfigError("--intervals needs a trace with several sessions, such as `mini-kv trace fetch agents`")
    line.total = len(sizes) * len(policies)
    return league(trace, sizes, policies, jobs=args.jobs, dask=args.dask, on_progress=line.show)


def print_league(standings: Sequence[Standing], args: argparse.Namespace) -> int:
    """Print the table, with `--intervals` the differences too, and return the exit status."""

    def lines() -> list[str]:
        return [format_table(standings)] + (
            [] if args.intervals is None else ["", _format_intervals(standings, args.intervals)]
        )

    figures = [{"policy": s.policy, **s.report.as_dict()} for s in standings]
    return print_report(args, lambda: figures, lines, wrap=False)


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


def _format_intervals(standings: Sequence[Standing], seed: int) -> str:
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

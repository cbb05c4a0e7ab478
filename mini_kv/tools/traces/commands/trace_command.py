"""`mini-kv trace fetch NAME`: download a published trace. `mini-kv trace make KIND`: make one from a seed."""

import argparse
import sys
from pathlib import Path

from mini_kv.command_output import one_line_errors
from mini_kv.core.errors import ConfigError
from mini_kv.progress_line import ProgressLine
from mini_kv.tools.traces.generators import FAULTS, KINDS, format_tokens, generate
from mini_kv.tools.traces.published import PUBLISHED, fetch
from mini_kv.typed_numbers import whole_number


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that `run` reads."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    bring = actions.add_parser("fetch", help="download a published trace, and check its digest")
    bring.add_argument("name", choices=list(PUBLISHED), help="; ".join(f"{n}: {p.about}" for n, p in PUBLISHED.items()))
    bring.add_argument("--to", type=Path, metavar="FILE", help="the file to write (default: NAME.jsonl in this folder)")
    make = actions.add_parser("make", help="print a trace of tokens, made from a seed")
    make.add_argument("kind", choices=list(KINDS))
    make.add_argument(
        "--num-requests",
        type=whole_number(1, 1_000_000),
        default=200,
        metavar="N",
        help="number of requests (default: 200)",
    )
    make.add_argument("--fault", choices=list(FAULTS), help="add this fault, for explain to find (default: none)")
    make.add_argument("--seed", type=int, default=0, metavar="S", help="same seed, same trace (default: 0)")


@one_line_errors("trace", ConfigError)
def run(args: argparse.Namespace) -> int:
    """Fetch or make the trace and return 0. On failure print one line on stderr, write no file and return 2."""
    return _make(args) if args.action == "make" else _fetch(args)


def _make(args: argparse.Namespace) -> int:
    trace = generate(args.kind, args.num_requests, args.seed)
    for request in FAULTS[args.fault](trace) if args.fault else trace:
        print(format_tokens(request))
    return 0


def _fetch(args: argparse.Namespace) -> int:
    published = PUBLISHED[args.name]
    target = args.to or Path(f"{args.name}.jsonl")
    with ProgressLine(sys.stderr, "downloading"):
        fetch(published, target)
    print(f"{target}: {published.about}")
    print(f"licence: {published.licence}")
    return 0

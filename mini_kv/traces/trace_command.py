"""`mini-kv trace fetch NAME`: bring a published trace here."""

import argparse
import sys
from pathlib import Path

from mini_kv.core.errors import ConfigError
from mini_kv.traces.published import PUBLISHED, fetch


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that `run` reads."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    bring = actions.add_parser("fetch", help="bring a published trace here, and check that it is the published one")
    bring.add_argument("name", choices=list(PUBLISHED), help="; ".join(f"{n}: {p.about}" for n, p in PUBLISHED.items()))
    bring.add_argument("--to", type=Path, metavar="FILE", help="where to (default: NAME.jsonl, here)")


def run(args: argparse.Namespace) -> int:
    """Fetch the trace; return 0, or 2 with one line on stderr, and then there is no file."""
    published = PUBLISHED[args.name]
    target = args.to or Path(f"{args.name}.jsonl")
    try:
        fetch(published, target)
    except (ConfigError, OSError) as error:
        print(f"mini-kv trace: {error}", file=sys.stderr)
        return 2
    print(f"{target}: {published.about}")
    print(f"licence: {published.licence}")
    return 0

"""`mini-kv generate PROMPT`: let a model write; with `--labs`, on an engine with the learner's parts in it."""

import argparse
import sys
from pathlib import Path

from mini_kv.engine.generate_command import add_generate_arguments, run_generate
from mini_kv.labkit.lab import UnknownLabError, find_checkout


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the engine's arguments, and the one that puts the learner's parts in it."""
    add_generate_arguments(parser)
    parser.add_argument(
        "--labs",
        metavar="PATH",
        help="run on the parts that your labs provide, and say whose each part is; PATH is the word starter, the word"
        " solution, or a folder with lab-NN.py or lab-NN/starter.py",
    )


def run(args: argparse.Namespace) -> int:
    """Write what the model says to each prompt; return the exit status."""
    if args.labs is None:
        return run_generate(args)
    from mini_kv.labkit.own_engine.command import run_with_labs  # a while to load, and only this case needs it

    try:
        root = find_checkout(Path.cwd())
    except UnknownLabError as error:
        print(f"mini-kv generate: {error}", file=sys.stderr)
        return 2
    return run_with_labs(args, root)

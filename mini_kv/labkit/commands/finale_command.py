"""`mini-kv finale --labs PATH`: a rush hour through the learner's parts, step by step beside the engine's own."""

import argparse
import os
import sys
from pathlib import Path

from mini_kv.labkit.lab import UnknownLabError, all_labs, find_checkout, shown


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument(
        "--labs",
        metavar="PATH",
        default="starter",
        help="the parts: the word starter, the word solution, or a folder with lab-NN.py (default: starter)",
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the requests (default: 0)")
    parser.add_argument("--film", type=Path, metavar="FILE", help="write your pool's story as one HTML file")


def run(args: argparse.Namespace) -> int:
    """Run both acts, print the comparison and the numbers, and return the exit status.

    0: all steps of both acts are equal. 1: a difference or an error, with the faulty part. 2: unusable arguments.
    """
    try:
        if args.labs not in ("starter", "solution") and not os.path.isdir(args.labs):
            raise UnknownLabError(f"--labs {shown(args.labs)}: it is neither starter nor solution, nor a folder")
        root = find_checkout(Path.cwd())
    except UnknownLabError as error:
        print(f"mini-kv finale: {error}", file=sys.stderr)
        return 2
    from mini_kv.labkit.own_engine.command import table  # these need torch
    from mini_kv.labkit.own_engine.finale import numbers, run_acts
    from mini_kv.labkit.own_engine.found import find_parts

    labs = all_labs(root)
    found = {w: find_parts(args.labs, labs, Path.cwd(), "windows" if w else "one group") for w in (False, True)}
    all_right = True
    for windows, act, lines, is_right in run_acts(found, args.seed):
        print("Act 2: a model with windows" if windows else "Act 1: one group of layers")
        print("\n".join(table(found[windows], "solution" if args.labs == "solution" else "yours")), end="\n\n")
        print("\n".join(lines), end="\n\n")
        if is_right and not windows:
            print("\n".join(numbers(act)), end="\n\n")
        all_right = all_right and is_right
    return 0 if all_right else 1

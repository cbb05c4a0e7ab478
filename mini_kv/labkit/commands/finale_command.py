"""`mini-kv finale --labs PATH`: a rush hour through the learner's parts, step by step beside the engine's own."""

import argparse
import os
import sys
from pathlib import Path

from mini_kv.labkit.commands import write_page
from mini_kv.labkit.lab import UnknownLabError, all_labs, find_checkout, shown
from mini_kv.labkit.own_engine.finale import NUM_HOURS, Finale
from mini_kv.viz.figure import page


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument(
        "--labs",
        metavar="PATH",
        default="starter",
        help="the parts: the word starter, the word solution, or a folder with lab-NN.py (default: starter)",
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the requests (default: 0)")
    parser.add_argument(
        "--hours",
        type=_at_least_one,
        default=NUM_HOURS,
        metavar="N",
        help=f"rush hours of an act on dice: more find rarer faults (default: {NUM_HOURS})",
    )
    parser.add_argument("--film", metavar="FILE", help="write your pool's story as one HTML file")


def _at_least_one(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"the hours must be a number from 1 on, such as 60, not {text[:20]}")
    return int(text)


def run(args: argparse.Namespace) -> int:
    """Play the acts, print what differs and the numbers, and return the exit status.

    0: all steps of all acts are equal. 1: a difference or an error, with the faulty part. 2: unusable arguments.
    """
    try:
        if args.labs not in ("starter", "solution") and not os.path.isdir(args.labs):
            raise UnknownLabError(f"--labs {shown(args.labs)}: it is neither starter nor solution, nor a folder")
        root = find_checkout(Path.cwd())
        if args.film is not None:
            open(args.film, "a").close()  # better refused now than after the last act
    except UnknownLabError as error:
        print(f"mini-kv finale: {error}", file=sys.stderr)
        return 2
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", error)
        print(f"mini-kv finale: {shown(args.film)} cannot be written: {reason}", file=sys.stderr)
        return 2
    finale = Finale(args.labs, all_labs(root), args.seed, args.hours)
    for line in finale.lines():
        print(line, flush=True)
    if args.film is not None and finale.film is not None:
        write_page(args.film, page(finale.film))
    return 0 if finale.is_right else 1

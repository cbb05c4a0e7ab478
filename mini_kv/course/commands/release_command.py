"""`mini-kv class release`: make the student's tree, or a lab's autograder for Gradescope."""

import argparse
import sys
from pathlib import Path

from mini_kv.course.grading.gradescope import gradescope_zip
from mini_kv.course.grading.release import leaks, release
from mini_kv.course.grading.solution_leaks import secrets
from mini_kv.course.labkit.lab import find_checkout, find_lab


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add one option per product."""
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--student", metavar="OUT", help="make this folder: the course without solutions and notes")
    what.add_argument("--check", metavar="DIR", help="look for solutions in this folder")
    what.add_argument("--gradescope", nargs=2, metavar=("LAB", "ZIP"), help="write an autograder to upload")


def run(args: argparse.Namespace) -> int:
    """Make the product and return the exit status: 1 if `--check` has found a solution."""
    try:
        return _make(args)
    except (OSError, ValueError) as error:
        print(f"mini-kv class release: {error}", file=sys.stderr)
        return 2


def _make(args: argparse.Namespace) -> int:
    root = find_checkout(Path.cwd())
    if args.student is not None:
        print(f"{release(root, Path(args.student))} files in {args.student}; no solution found in them")
    elif args.gradescope is not None:
        gradescope_zip(find_lab(args.gradescope[0], root), Path(args.gradescope[1]))
        print(f"upload {args.gradescope[1]} under Configure Autograder")
    else:
        tree, guarded = Path(args.check), secrets(root)
        if not tree.is_dir():
            raise ValueError(f"{tree} is not a folder")
        if not guarded.runs_of:
            raise ValueError(f"{root} has no solutions to look for: run this in the complete course")
        found = leaks(tree, guarded)
        print("\n".join([*found, f"{len(found)} leaks in {args.check}"]))
        return int(bool(found))
    return 0

"""The learner's verbs of mini-kv, one per file, and an instructor's: `grade`, `class_picture`, `release`, `address`.

In the order of the course: `story`, `puzzle`, `run`, `status`, `predict`, `hint`, `watch`, `reset`, `generate`,
`doctor`, `gpu_report`. Each file says in add_arguments what the verb takes, and does it in run, which returns the exit
status. mini-kv loads the file of the verb that was typed and no other, so that no verb waits for what it does not use.
"""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from mini_kv.labkit.lab import Lab, find_lab, shown


def add_lab_argument(parser: argparse.ArgumentParser) -> None:
    """Add the argument that names a lab."""
    parser.add_argument("lab", metavar="LAB", help="its number, such as 05")


def on_lab(args: argparse.Namespace, act: Callable[[Lab], int]) -> int:
    """Call `act` with the lab that was named; return what it returns, or 2 after saying what was wrong."""
    try:
        return act(find_lab(args.lab, Path.cwd()))
    except ValueError as error:
        print(f"mini-kv {args.command}: {error}", file=sys.stderr)
        return 2


def write_page(file: str, text: str) -> None:
    """Write a page and say so. Raises `ValueError`, naming the file, if that cannot be done."""
    write_file(file, text)
    print(f"open {file} in a browser")


def write_file(file: str, text: str) -> None:
    """Write a file. Raises `ValueError`, naming it, if that cannot be done."""
    try:
        Path(file).write_text(text, encoding="utf-8", errors="replace")
    except (OSError, ValueError) as error:
        raise ValueError(f"{shown(file)} cannot be written: {getattr(error, 'strerror', error)}") from error

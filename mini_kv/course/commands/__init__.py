"""The commands of mini-kv for learners and instructors, one module per command.

In the order of the course: `story_command`, `puzzle_command`, `labs_command`, `run_command`, `status_command`,
`predict_command`, `hint_command`, `reset_command`, `questions_command`, `generate_command`, `finale_command`,
`verify_command`, `doctor_command` (and `gpu_report`). For an instructor: `class_command`, with its parts
`grade_command`, `gradebook_command`, `release_command`, `address_command`. Each module has a function for the command's
arguments and a function that runs it and returns the exit status. mini-kv loads only the module of the typed command.
"""

import argparse
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path

from mini_kv.course.labkit.lab import Lab, find_lab
from mini_kv.installer import pip
from mini_kv.messages import shown


def add_lab_argument(parser: argparse.ArgumentParser) -> None:
    """Add the argument that names a lab."""
    parser.add_argument("lab", metavar="LAB", help="its number, such as 05")


def on_lab(args: argparse.Namespace, act: Callable[[Lab], int]) -> int:
    """Call `act` with the named lab and return its result, or print an error and return 2."""
    try:
        return act(find_lab(args.lab, Path.cwd()))
    except ValueError as error:
        print(f"mini-kv {args.command}: {error}", file=sys.stderr)
        return 2


def need_pytest() -> None:
    """Raise `ValueError` with the command that installs pytest, if it is missing."""
    if importlib.util.find_spec("pytest") is None:
        way = f"{pip()} install pytest, or uvx --with pytest"
        raise ValueError(f"labs are run by pytest, which is not installed: {way}")


def write_page(file: Path, text: str) -> None:
    """Write a page and print its path. Raises `ValueError` with the file's name if that is not possible."""
    write_file(file, text, f"open {file} in a browser")


def write_file(file: Path, text: str, said: str = "") -> None:
    """Write a file, and print what is said about it. Raises `ValueError` with its name if that is not possible."""
    try:
        file.write_text(text, encoding="utf-8", errors="replace")
    except (OSError, ValueError) as error:
        raise ValueError(f"{shown(str(file))} cannot be written: {getattr(error, 'strerror', error)}") from error
    if said:
        print(said)

"""`mini-kv class address URL`: write your address into every file that has one: README, notebooks, book, workflow."""

import argparse
import sys
from importlib import import_module
from pathlib import Path

from mini_kv.course.labkit.lab import UnknownLabError, find_checkout


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the address."""
    parser.add_argument("url", metavar="URL", help="address of your copy, such as https://github.com/ME/mini_kv")


def run(args: argparse.Namespace) -> int:
    """Write the address and return 0, or 2 if that is not possible."""
    try:
        root = find_checkout(Path.cwd())
        sys.path.insert(0, str(root / "book"))  # the book's package is in no wheel
        count = import_module("mini_kv_book.course").move(args.url)
    except (ModuleNotFoundError, UnknownLabError, ValueError) as error:
        print(f"mini-kv class address: {error}", file=sys.stderr)
        return 2
    print(f"{count} files changed: `git diff` shows them, `git commit -a` commits them")
    return 0

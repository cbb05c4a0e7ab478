"""Numbers and files that are typed on a command line: a value that cannot be used gets one sentence.

    parser.add_argument("--port", type=whole_number(0, 65_535))
    $ mini-kv serve --port 99999
    mini-kv serve: error: argument --port: '99999' is not a whole number from 0 to 65,535

An option whose bounds the engine or the planner checks itself takes `int` or `float`, so that they are written once.

Standard library only.
"""

import argparse
import os
from collections.abc import Callable
from pathlib import Path

from mini_kv.messages import shown


def whole_number(least: int, most: int) -> Callable[[str], int]:
    """Return a function that reads a whole number, for `add_argument(type=...)`."""

    def read(text: str) -> int:
        try:
            if least <= (value := int(text)) <= most:
                return value
        except ValueError:
            pass
        raise argparse.ArgumentTypeError(f"{shown(text)} is not a whole number from {least:,} to {most:,}")

    return read


def number_above_zero(most: float) -> Callable[[str], float]:
    """Return a function that reads a number above 0, for `add_argument(type=...)`."""

    def read(text: str) -> float:
        try:
            if 0 < (value := float(text)) <= most:
                return value
        except ValueError:
            pass
        raise argparse.ArgumentTypeError(f"{shown(text)} is not a number above 0, and at most {most:,}")

    return read


def output_file(*suffixes: str) -> Callable[[str], Path]:
    """Return a function that reads the path of a file to write, for `add_argument(type=...)`.

    The suffix chooses what is written, if there is a choice. Standard output has the report.
    """

    def read(text: str) -> Path:
        if text in ("", "-"):
            raise argparse.ArgumentTypeError(f"{text!r} is not a file: standard output has the report, so give a name")
        if os.path.isdir(text):
            raise argparse.ArgumentTypeError(f"{shown(text)} is a folder: give the name of a file in it")
        if suffixes and Path(text).suffix.lower() not in suffixes:
            raise argparse.ArgumentTypeError(f"{shown(text)} is not the name of a file in {' or '.join(suffixes)}")
        return Path(text)

    return read

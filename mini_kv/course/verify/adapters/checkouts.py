"""Runs the adapter of an engine that is imported from a checkout, which the command line names."""

import sys
from collections.abc import Callable
from pathlib import Path

from mini_kv.course.verify.adapter import Adapter, run


def run_on_checkout(make: Callable[[Path], Adapter]) -> None:
    """Answer all messages on standard input. Without the engine, end with what is missing."""
    if len(sys.argv) != 2:
        sys.exit("which checkout? Write its folder behind the name of the adapter")
    try:
        adapter = make(Path(sys.argv[1]))
    except ImportError as missing:
        sys.exit(str(missing))
    run(adapter)

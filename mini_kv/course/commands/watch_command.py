"""`mini-kv watch LAB`: run the lab again whenever the learner's file is saved."""

import argparse
import sys
import time
from typing import TextIO

from mini_kv.course.commands import add_lab_argument, on_lab
from mini_kv.course.commands.run_command import run_lab
from mini_kv.course.labkit.lab import Lab, relative


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the lab."""
    add_lab_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Watch until Ctrl-C, or return the exit status if that is not possible."""
    return on_lab(args, lambda lab: watch(lab, sys.stdout))


def watch(lab: Lab, out: TextIO, poll_seconds: float = 0.5) -> int:
    """Run the lab each time the starter changes, until Ctrl-C. A failing run does not end it."""
    seen = None
    while True:
        stamp = lab.starter.stat().st_mtime_ns if lab.starter.is_file() else None
        if stamp != seen:
            seen = stamp
            out.write("\033[2J\033[H" if out.isatty() else "")
            run_lab(lab, out)
            out.write(f"watching {relative(lab.starter)}; Ctrl-C stops\n")
            out.flush()
        time.sleep(poll_seconds)

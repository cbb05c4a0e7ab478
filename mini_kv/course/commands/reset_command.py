"""`mini-kv reset LAB`: restore a lab's starter, and keep the learner's file."""

import argparse
import shutil
import sys
from typing import TextIO

from mini_kv.course.commands import add_lab_argument, on_lab
from mini_kv.course.labkit.lab import Lab, relative
from mini_kv.course.labkit.learner_state import backup_path, locked


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the lab."""
    add_lab_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Restore the starter and return the exit status."""
    return on_lab(args, lambda lab: reset_starter(lab, sys.stdout))


def reset_starter(lab: Lab, out: TextIO) -> int:
    """Restore the course's starter, after keeping the learner's file under a new name. Raises `OSError`."""
    lab.state.mkdir(exist_ok=True)
    with locked(lab.state):
        if lab.starter.is_file():
            copy = backup_path(lab.state, f"{lab.lab_id}.py")
            shutil.copy2(lab.starter, copy)
            kept, starter = relative(copy), relative(lab.starter)
            out.write(f"your file is kept as {kept}\nto restore it: cp {kept} {starter}\n")
        shutil.copyfile(lab.pristine_starter, lab.starter)
    out.write(f"{relative(lab.starter)} is the course's starter again\n")
    return 0

"""`mini-kv status`: the learner's progress in every lab."""

import argparse
import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mini_kv.course.labkit.course_settings import load_course
from mini_kv.course.labkit.lab import Lab, all_labs, find_checkout, relative
from mini_kv.course.labkit.learner_state import read_state
from mini_kv.installer import pip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Do nothing, because the command takes no arguments."""


def run(_: argparse.Namespace) -> int:
    """Print a line per lab, and return the exit status."""
    try:
        root = find_checkout(Path.cwd())
        closed = load_course(root).closed()
        labs = [lab for lab in all_labs(root) if lab.lab_id not in closed]
        progress = read_state(root / ".mini_kv", "progress")
    except ValueError as error:
        print(f"mini-kv status: {error}", file=sys.stderr)
        return 2
    print("\n".join(status_lines(labs, progress)))
    if root != Path.cwd():
        print(f"(the labs are in {root})")
    return 0


def status_lines(labs: Sequence[Lab], progress: dict[str, Any]) -> list[str]:
    """Return one line per lab with its points, then functions that a file lacks, then the next step."""
    lines = []
    for lab in labs:
        entry = progress.get(lab.lab_id, {"best": 0, "score": 0, "tests": {}})
        best = min(entry["best"], lab.points)  # of an edition where it was worth more
        bar = f"[{'#' * (20 * best // lab.points):.<20}]"
        now = "" if entry["score"] == best else f"   now {entry['score']}"
        indent = "  " * lab.is_further
        lines.append(f"{indent}{lab.lab_id}  {bar} {best:>3}/{lab.points}{now:<9}  {lab.minutes:>3} min  {lab.title}")
    for lab in labs:
        if lacking := lab.lacking():
            starter = f"mini_kv/course/labkit/starters/{lab.pristine_starter.name}"
            lines += ["", f"{lab.lab_id}: your {lab.starter.name} has no {', '.join(lacking)}; copy from {starter}"]
    asked = [lab for lab in labs if not lab.is_further]
    open_labs = [lab for lab in asked if progress.get(lab.lab_id, {}).get("best", 0) < lab.points]
    if open_labs:
        page = relative(open_labs[0].folder / "README.md")
        lines += ["", f"next: read {page}, then type  {_run_command(open_labs[0])}"]
    return lines


def _run_command(lab: Lab) -> str:
    """Return the command that tests the learner's file in this environment, which may have no pytest."""
    number = lab.lab_id.removeprefix("lab-")
    if importlib.util.find_spec("pytest") is not None:
        return f"mini-kv run {number}"
    return f"make {lab.lab_id}" if pip() == "pip" else f"uv run --group test mini-kv run {number}"

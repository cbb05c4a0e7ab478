"""`mini-kv run LAB`: test the learner's file, and print the first failure in full and the number of others.

With `--watch` again whenever the file is saved.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import TextIO

from mini_kv.course.commands import add_lab_argument, need_pytest, on_lab
from mini_kv.course.commands.predict_command import ask_next
from mini_kv.course.labkit.lab import Lab, relative
from mini_kv.course.labkit.learner_state import read_state
from mini_kv.course.labkit.progress import foreseen
from mini_kv.course.labkit.scoreboard import ENDED
from mini_kv.course.labkit.time_limit import TIME_LIMIT_S
from mini_kv.interrupts import run_child
from mini_kv.typed_numbers import number_above_zero

_UNUSABLE = 4
"""The status of pytest if it ran nothing, and has said why in a line."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the lab, and the options of the output."""
    add_lab_argument(parser)
    parser.add_argument("--all", action="store_true", help="print every failure and the whole scoreboard")
    parser.add_argument("--watch", action="store_true", help="test again whenever you save your file, until Ctrl-C")
    parser.add_argument(
        "--lab-seconds",
        metavar="N",
        type=number_above_zero(10**9),
        default=TIME_LIMIT_S,
        help="for a slow machine",
    )


def run(args: argparse.Namespace) -> int:
    """Run the lab and return 0 if it passed, 1 if not, 2 if it could not run. With `--watch` run it until Ctrl-C."""
    if args.watch:
        return on_lab(args, lambda lab: watch(lab, sys.stdout, args.all, args.lab_seconds))
    asks = sys.stdin.isatty() and sys.stdout.isatty()
    return on_lab(args, lambda lab: _run_lab(lab, sys.stdout, sys.stdin if asks else None, args.all, args.lab_seconds))


def _run_lab(
    lab: Lab, out: TextIO, answers: TextIO | None = None, tell_all: bool = False, seconds: float = TIME_LIMIT_S
) -> int:
    """Run the lab on `starter.py`. With `answers` (a terminal), first ask to predict one number of the run.

    Raises `ValueError` if pytest is not installed.
    """
    need_pytest()
    if answers is not None:
        ask_next(lab, out, answers)
    out.flush()
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder) / "results.json"
        options = ["-q", f"--lab-seconds={seconds}", *([] if tell_all else ["-rN", "--brief"])]
        command = [sys.executable, "-m", "pytest", str(lab.folder), *options, f"--lab-json={results}"]
        environment = {**os.environ, "LAB_IMPL": "starter"}
        status = run_child(command, cwd=lab.root, env=environment)
        tests = json.loads(results.read_text(encoding="utf-8"))["tests"] if results.exists() else []
    ended = next((test["test"] for test in tests if test["message"] == ENDED), "")
    if status == _UNUSABLE:
        return 2
    if ended or not tests:
        where = f" in {ended}" if ended else ""
        out.write(f"Python ended with status {status}{where}. Does {lab.starter.name} end it, or crash it?\n")
        return 2
    right, asked = foreseen(lab)
    if asked:
        code = read_state(lab.state, "progress").get(lab.lab_id, {"score": 0})["score"]
        out.write(f"code {code}/{lab.points}, foreseen {right}/{asked}\n")
    return status if status in (0, 1) else 2


def watch(
    lab: Lab, out: TextIO, tell_all: bool = False, seconds: float = TIME_LIMIT_S, poll_seconds: float = 0.5
) -> int:
    """Run the lab each time the starter changes, until Ctrl-C. A failing run does not end it."""
    seen = None
    while True:
        stamp = lab.starter.stat().st_mtime_ns if lab.starter.is_file() else None
        if stamp != seen:
            seen = stamp
            out.write("\033[2J\033[H" if out.isatty() else "")
            _run_lab(lab, out, None, tell_all, seconds)
            out.write(f"watching {relative(lab.starter)}; Ctrl-C stops\n")
            out.flush()
        time.sleep(poll_seconds)

"""`mini-kv class grade SUBMISSIONS`: grade each lab of each hand-in, each in its own process."""

import argparse
import os
import sys
from pathlib import Path

from mini_kv.course.commands import need_pytest, write_file
from mini_kv.course.grading.grade import TO_REVIEW, Grader, Mark
from mini_kv.course.grading.gradebook import as_csv, save
from mini_kv.course.grading.handins import find_handins, read_roster
from mini_kv.course.grading.isolation import KINDS, find_sandbox
from mini_kv.course.labkit.lab import all_labs, find_checkout, find_lab
from mini_kv.progress_line import ProgressLine
from mini_kv.typed_numbers import output_file, whole_number


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the folder of hand-ins, the labs and the limits."""
    parser.add_argument("submissions", metavar="SUBMISSIONS", help="a folder with one entry per student")
    parser.add_argument(
        "--lab", nargs="+", dest="labs", metavar="LAB", help="such as 05 06 (default: all that were handed in)"
    )
    parser.add_argument(
        "--jobs",
        type=whole_number(1, 1000),
        metavar="N",
        default=os.cpu_count() or 1,
        help="number of processes at a time",
    )
    parser.add_argument(
        "--roster", metavar="FILE", help="CSV with a student and the path of a repository per line, for .url files"
    )
    parser.add_argument(
        "--to", type=output_file(".csv"), metavar="FILE", help="also write a CSV with a row per student and lab"
    )
    parser.add_argument("--out", metavar="DIR", default="graded", help="folder for the marks (default: graded)")
    parser.add_argument(
        "--seconds",
        type=whole_number(1, 1_000_000),
        metavar="N",
        default=120,
        help="CPU seconds per lab (default: 120)",
    )
    parser.add_argument(
        "--isolation", choices=("auto", *KINDS), default="auto", help="default: the best that works here"
    )
    parser.add_argument(
        "--accept", nargs="+", default=[], metavar="STUDENT/LAB", help="run this held file, after you have read it"
    )


def run(args: argparse.Namespace) -> int:
    """Grade, and return 0 if every hand-in has a mark, 1 if one has to be reviewed, 2 if nothing was graded."""
    try:
        marks = _grade(args)
    except (ValueError, OSError) as error:
        print(f"mini-kv class grade: {error}", file=sys.stderr)
        return 2
    odd = [mark for mark in marks if mark.status in TO_REVIEW]
    print(f"{len({mark.student for mark in marks})} hand-ins, {len(marks)} labs; {len(odd)} for you to review")
    return 1 if odd else 0


def _grade(args: argparse.Namespace) -> list[Mark]:
    root, place = find_checkout(Path.cwd()), Path(args.submissions)
    _check(args)
    roster = read_roster(Path(args.roster)) if args.roster is not None else {}
    handins = find_handins(place, [find_lab(name, root).lab_id for name in args.labs or ()], roster)
    there = {lab.lab_id for lab in all_labs(root)}
    names = args.labs or sorted({lab for handin in handins for lab in handin.code} & there)
    labs = [find_lab(name, root) for name in names]
    if not handins or not labs:
        raise ValueError(f"no lab found in {args.submissions}: a hand-in needs lab-05.py or lab-05/starter.py")
    for accepted in args.accept:
        if accepted not in {f"{handin.student}/{lab.lab_id}" for handin in handins for lab in labs}:
            raise ValueError(f"--accept {accepted}: no hand-in for this student and lab; write it as 07/lab-05")
    Path(args.out).mkdir(parents=True, exist_ok=True)  # before the work, not after it
    sandbox = find_sandbox(args.isolation, root.resolve(), [place.resolve()])
    print(sandbox.in_words)
    with ProgressLine(sys.stderr, "grading") as line:
        grader = Grader(labs, sandbox, args.seconds, args.accept)
        marks = grader.grade_all(handins, args.jobs, lambda mark: line.print(_line_of(mark)))
    save(Path(args.out), marks, labs)
    if args.to is not None:
        write_file(args.to, as_csv(marks))
    return marks


def _check(args: argparse.Namespace) -> None:
    if os.name == "nt":
        raise ValueError("Windows cannot limit a process: grade in WSL or in a container")
    need_pytest()
    if not Path(args.submissions).is_dir():
        raise ValueError(f"{args.submissions} is not a folder")


def _line_of(mark: Mark) -> str:
    """Return a line: the student, the lab, the points, the code that ran, and the reasons to review it."""
    why = f"  {mark.status}: {mark.why[0][:100]}" if mark.why else f"  {mark.status}" * (mark.status != "graded")
    more = f" (and {len(mark.why) - 1} more)" if mark.why[1:] else ""
    ran = f"  ran {mark.ran}" if mark.ran else "  no code ran"
    return f"{mark.student[:24]:<24}  {mark.lab:<14} {mark.score:>3}/{mark.points}{ran}{why}{more}"

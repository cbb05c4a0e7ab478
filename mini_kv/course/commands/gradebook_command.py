"""`mini-kv class book DIR`: the gradebook and the beliefs of a class, from the marks that `class grade` wrote."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from mini_kv.course.grading.class_report import lines, of_lab, picture_page
from mini_kv.course.grading.grade import Mark
from mini_kv.course.grading.gradebook import FILE, feedback, gradebook_csv, gradebook_page, load
from mini_kv.course.grading.handins import printable
from mini_kv.course.labkit.learner_state import write_whole
from mini_kv.messages import choices, shown


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the folder."""
    parser.add_argument(
        "folder",
        metavar="DIR",
        nargs="?",
        default="graded",
        help="folder that `mini-kv class grade` wrote (default: graded)",
    )
    parser.add_argument("--student", metavar="NAME", help="print this student's feedback, and nothing else")


def run(args: argparse.Namespace) -> int:
    """Print the results of the class, write three files next to the marks, and return the exit status.

    With `--student` print this student's feedback, and write nothing.
    """
    folder = Path(args.folder)
    try:
        titles, marks = load(folder)
        if args.student is not None:
            return _print_feedback(args.student, marks)
        labs = list(titles)
        pages = {
            "gradebook.csv": gradebook_csv(labs, marks),
            "gradebook.html": gradebook_page(labs, marks),
            "wall.html": picture_page(titles, marks),
        }
        told = [line for lab, title in titles.items() for line in lines(lab, title, of_lab(marks, lab))]
        for name, text in pages.items():
            write_whole(folder / name, text)
    except (OSError, ValueError) as error:
        print(f"mini-kv class book: {error}", file=sys.stderr)
        return 2
    except (TypeError, KeyError, AttributeError):  # somewhere in it is another type of value
        print(f"mini-kv class book: {folder / FILE} is not what mini-kv class grade writes", file=sys.stderr)
        return 2
    print("\n".join(map(printable, told)))
    print(f"with names, for you: {folder / 'gradebook.csv'}, {folder / 'gradebook.html'}")
    print(f"without names, for the class: {folder / 'wall.html'}")
    return 0


def _print_feedback(student: str, marks: Sequence[Mark]) -> int:
    own = [mark for mark in marks if mark.student == student]
    if not own:
        names = sorted({mark.student for mark in marks})
        raise ValueError(f"no marks for {shown(student)}; {choices(student, names, 'mini-kv class book')}")
    print("\n".join(printable(line) for mark in own for line in feedback(mark)))
    return 0

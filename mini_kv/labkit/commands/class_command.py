"""`mini-kv class DIR`: the gradebook, and what a class believes, from the marks that `mini-kv grade` wrote."""

import argparse
import sys
from pathlib import Path

from mini_kv.labkit.grading.gradebook import gradebook_csv, gradebook_page, load
from mini_kv.labkit.grading.picture import lines, of_lab, picture_page
from mini_kv.labkit.learner_state import write_whole


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the folder."""
    parser.add_argument(
        "folder", metavar="DIR", nargs="?", default="graded", help="folder that `mini-kv grade` wrote (default: graded)"
    )


def run(args: argparse.Namespace) -> int:
    """Print the picture and write three files beside the marks; return the exit status."""
    folder = Path(args.folder)
    try:
        titles, marks = load(folder)
        labs = list(titles)
        write_whole(folder / "gradebook.csv", gradebook_csv(labs, marks))
        write_whole(folder / "gradebook.html", gradebook_page(labs, marks))
        write_whole(folder / "wall.html", picture_page(titles, marks))
    except (OSError, ValueError) as error:
        print(f"mini-kv class: {error}", file=sys.stderr)
        return 2
    for lab, title in titles.items():
        print("\n".join(lines(lab, title, of_lab(marks, lab))))
    print(f"with names, for you: {folder / 'gradebook.csv'}, {folder / 'gradebook.html'}")
    print(f"without names, for the wall: {folder / 'wall.html'}")
    return 0

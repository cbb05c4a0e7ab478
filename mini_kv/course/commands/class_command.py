"""`mini-kv class`: grade hand-ins, keep the gradebook, make the student's tree, and set the course's address."""

import argparse

from mini_kv.course.commands import address_command, grade_command, gradebook_command, release_command

PARTS = {
    "grade": (grade_command, "grade a folder of hand-ins, each lab in its own process"),
    "book": (gradebook_command, "a gradebook, and the beliefs of a class"),
    "release": (release_command, "a student's tree, or an autograder for Gradescope"),
    "address": (address_command, "write your repository's address into every file that has one"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the parts, each with its arguments."""
    parts = parser.add_subparsers(metavar="PART", required=True)
    for name, (module, about) in PARTS.items():
        part = parts.add_parser(name, help=about, description=f"{about[0].upper()}{about[1:]}.")
        module.add_arguments(part)
        part.set_defaults(run_part=module.run, parser=part)


def run(args: argparse.Namespace) -> int:
    """Run the part, and return its exit status."""
    status: int = args.run_part(args)
    return status

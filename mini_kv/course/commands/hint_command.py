"""`mini-kv hint LAB FUNCTION`: a hint for a function of a lab. Each call gives a plainer one."""

import argparse
import sys
from collections.abc import Collection
from typing import TextIO

from mini_kv.course.commands import add_lab_argument, on_lab
from mini_kv.course.labkit.lab import Lab
from mini_kv.course.labkit.learner_state import State, read_state, update_state
from mini_kv.messages import choices, shown


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the lab and the function."""
    add_lab_argument(parser)
    parser.add_argument("function", metavar="FUNCTION", nargs="?", help="default: your last run's faulty function")


def run(args: argparse.Namespace) -> int:
    """Give the hint and return the exit status."""
    return on_lab(args, lambda lab: give_hint(lab, args.function, sys.stdout))


def give_hint(lab: Lab, function: str | None, out: TextIO) -> int:
    """Write the function's hints up to the next level, three at most.

    Without a function, use the one at fault in the last run. If there was none, list the functions with hints. Raises
    `ValueError` with all names for an unknown function.
    """
    hints = {function.name: function for function in lab.functions}
    short = [lab.short_name(name) for name in hints]
    if function is None:
        function = _of_last_run(lab, hints, out)
    if function is None:
        out.write(f"{lab.lab_id} has hints; type one of\n")
        for name in short:
            out.write(f"  mini-kv hint {lab.lab_id.removeprefix('lab-')} {name}\n")
        return 0
    names = dict(zip(short, hints, strict=True)) | {name: name for name in hints}
    names |= {also: name for name, hint in hints.items() for also in hint.also}
    if function not in names:
        command = f"mini-kv hint {lab.lab_id.removeprefix('lab-')}"
        raise ValueError(f"{lab.lab_id} has no function {shown(function)}; {choices(function, short, command)}")
    function = names[function]
    levels = hints[function].hints
    key = f"{lab.lab_id} {function}"

    def one_more(given: State) -> None:
        given[key] = min(given.get(key, 0) + 1, len(levels))

    level = update_state(lab.state, "hints", one_more)[key]
    for number, hint in enumerate(levels[:level], start=1):
        out.write(f"{number}. {hint}\n")
    if level < len(levels):
        out.write(f"(the same command again gives the next one; there are {len(levels)})\n")
    return 0


def _of_last_run(lab: Lab, hints: Collection[str], out: TextIO) -> str | None:
    """Return the function at fault in the last run, after naming it, or `None` if there is none."""
    at_fault: str | None = read_state(lab.state, "progress").get(lab.lab_id, {}).get("function")
    if at_fault not in hints:
        return None
    out.write(f"{at_fault}, the function at fault in your last run:\n")
    return at_fault

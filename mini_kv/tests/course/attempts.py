"""Honest attempts at the labs, each with one fault, and what their authors are told.

    python -m mini_kv.tests.course.attempts            all of them, and the counts
    python -m mini_kv.tests.course.attempts lab-05     those at one lab, with the first message

`honest_attempts/lab-NN.txt` holds attempts at one function each, written from README and starter alone, before anything
else was read. The line `# fault:` says what is wrong. `judged.toml` says which belief of the catalogue is the right
name for the fault, and whether the first message leads to it. A belief that no reader has judged is a wrong name.
"""

import ast
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mini_kv.course.labkit.audit import run_text
from mini_kv.course.labkit.lab import Lab, find_lab
from mini_kv.course.labkit.misconception import find_beliefs
from mini_kv.course.labkit.scoreboard import State

FOLDER = Path(__file__).parent / "honest_attempts"
ROOT = Path(__file__).parents[3]


@dataclass(frozen=True, slots=True)
class Attempt:
    """One honest attempt at a function of a lab; the rest of the file is the solution's."""

    name: str
    """Such as `lab-05 2`."""
    lab: Lab
    fault: str
    text: str

    def file(self) -> str:
        """Return the solution with the attempt's functions, or its whole class, in the place of its own."""
        solution = (self.lab.solutions / "solution.py").read_text(encoding="utf-8")
        lines = solution.splitlines()
        own, new = _definitions(solution), _definitions(self.text)
        whole = [name.partition(".")[0] for name in new if name.endswith(".__init__")]
        for name in sorted(new, key=lambda name: -own[name].lineno if name in own else 0):
            class_name, _, _ = name.partition(".")
            if name in whole or (class_name not in whole and not isinstance(new[name], ast.ClassDef)):
                text = self.text.splitlines()[_first_line(new[name]) - 1 : new[name].end_lineno]
                lines[_first_line(own[name]) - 1 : own[name].end_lineno] = text
        return "\n".join(lines) + "\n"


@dataclass(frozen=True, slots=True)
class Answer:
    """What the author of an attempt reads."""

    passed: bool
    belief: str
    """The belief that is named, its question aside; "" if none is."""
    message: str
    """The first failure."""


def _definitions(text: str) -> dict[str, ast.FunctionDef | ast.ClassDef]:
    """Return the functions and classes of a file by name, and the methods as `Class.method`."""
    found: dict[str, ast.FunctionDef | ast.ClassDef] = {}
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found[node.name] = node
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{part.name}": part for part in node.body if isinstance(part, ast.FunctionDef)}
    return found


def _first_line(node: ast.FunctionDef | ast.ClassDef) -> int:
    return min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])


def attempts_at(file: Path) -> Iterator[Attempt]:
    """Yield the attempts of a file `lab-NN.txt`."""
    lab = find_lab(file.stem, ROOT)
    for number, part in enumerate(file.read_text(encoding="utf-8").split("# fault: ")[1:], start=1):
        fault, _, text = part.partition("\n")
        yield Attempt(f"{file.stem} {number}", lab, fault, text)


def all_attempts(folder: Path = FOLDER) -> list[Attempt]:
    """Return the attempts at every lab, in order."""
    return [attempt for file in sorted(folder.glob("lab-*.txt")) for attempt in attempts_at(file)]


def answer_to(attempt: Attempt) -> Answer:
    """Run the lab's tests on the attempt; costs about a third of a second."""
    results = run_text(attempt.lab, "attempt", attempt.file())
    beliefs = sorted({belief.splitlines()[0] for belief in find_beliefs(attempt.lab, results).values()})
    failed = [result for result in results if result.state is State.FAIL]
    return Answer(not failed, "; ".join(beliefs), failed[0].message if failed else "")


def judged() -> dict[str, dict[str, Any]]:
    """Return what a reader has said, by the name of the attempt: `right`, a list of beliefs, and `leads`."""
    return tomllib.loads((FOLDER / "judged.toml").read_text(encoding="utf-8"))


def main(names: list[str]) -> None:
    """Run the attempts whose name begins with one of these, or all; with one name, print the message too."""
    counts = dict.fromkeys(("attempts", "full marks", "named rightly", "named wrongly", "first message leads"), 0)
    for attempt in all_attempts():
        if names and not attempt.name.startswith(tuple(names)):
            continue
        answer, said = answer_to(attempt), judged().get(attempt.name, {})
        is_right = answer.belief in said.get("right", [])
        counts["attempts"] += 1
        counts["full marks"] += answer.passed
        counts["named rightly"] += is_right
        counts["named wrongly"] += bool(answer.belief) and not is_right
        counts["first message leads"] += bool(said.get("leads")) and not answer.passed
        name = "FULL MARKS" if answer.passed else answer.belief or "-"
        print(f"{attempt.name}\n  fault  {attempt.fault}\n  named  {name}")
        if names:
            print(answer.message)
    print(*(f"{count:>3} {what}" for what, count in counts.items()), sep="\n")


if __name__ == "__main__":
    main(sys.argv[1:])

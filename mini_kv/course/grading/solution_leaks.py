"""Finds the code of solutions where it should not be: in a tree for students, or in a built book.

A leak is the body of a function of five statements or more, or any five consecutive lines of it. Indentation and
comments do not count. Lines that are also in the engine, the starters or the labs' tests are not leaks.
"""

import ast
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

_STATEMENTS = 5
PUBLIC = ("mini_kv/**/*.py", "labs/**/*.py")


class Body(NamedTuple):
    """The code of a function in a solution."""

    where: str
    lines: list[str]


def bare(text: str) -> str:
    """Return a text without comments and white space.

    >>> bare("    free.append( block )  # at the end")
    'free.append(block)'
    """
    return re.sub(r"\s+", "", re.sub(r"(^|\s)#[^\r\n]*", "", text, flags=re.MULTILINE))


def bodies(path: Path, root: Path) -> list[Body]:
    """Return the functions of a file that have five statements or more, docstrings left out."""
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines()
    found = []
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.FunctionDef):
            continue
        body = node.body[1:] if ast.get_docstring(node) is not None else node.body
        if sum(isinstance(inner, ast.stmt) for statement in body for inner in ast.walk(statement)) < _STATEMENTS:
            continue
        code = [bare(line) for line in lines[body[0].lineno - 1 : node.end_lineno]]
        found.append(Body(f"{path.relative_to(root).as_posix()}: {node.name}", [line for line in code if line]))
    return found


def runs(body: Body) -> list[str]:
    """Return every run of five lines of a body, or the whole body if it has fewer lines."""
    last = max(1, len(body.lines) - _STATEMENTS + 1)
    return ["".join(body.lines[start : start + _STATEMENTS]) for start in range(last)]


def public(root: Path) -> list[str]:
    """Return the code that every learner has, file by file."""
    paths = [path for pattern in PUBLIC for path in sorted(root.glob(pattern))]
    return [bare(path.read_text(encoding="utf-8")) for path in paths]


class Runs:
    """Runs of lines that are looked for in a text together, which takes hardly longer than looking for one.

    Of a text every `step`th place is looked at. A run that stands in the text covers the `size` characters behind one
    of these places, because no run is shorter than `step + size - 1`.
    """

    def __init__(self, runs: Iterable[str]) -> None:
        self.runs = set(runs)
        shortest = min(map(len, self.runs), default=1)
        self.size = (shortest + 1) // 2
        self.step = shortest - self.size + 1
        self.with_piece: dict[str, set[str]] = {}
        for run in self.runs:
            for start in range(self.step):
                self.with_piece.setdefault(run[start : start + self.size], set()).add(run)

    def found_in(self, text: str) -> set[str]:
        """Return the runs that stand in a text."""
        pieces = {text[start : start + self.size] for start in range(0, len(text), self.step)}
        perhaps = set[str]().union(*(self.with_piece[piece] for piece in pieces & self.with_piece.keys()))
        return {run for run in perhaps if run in text}


class Secrets:
    """The functions of solutions, and for each the runs of its lines that are in no file that every learner has."""

    def __init__(self, runs_of: Mapping[str, list[str]]) -> None:
        self.runs_of = runs_of
        self.runs = Runs(run for runs in runs_of.values() for run in runs)

    def found_in(self, text: str) -> list[str]:
        """Return the functions that this text, in the form of `bare`, gives away in whole or in part."""
        found = self.runs.found_in(text)
        return [where for where, runs in self.runs_of.items() if not found.isdisjoint(runs)]


def secrets(root: Path) -> Secrets:
    """Return what no text for learners may have."""
    runs_of: dict[str, list[str]] = {}
    for path in sorted((root / "solutions").glob("lab-*/*.py")):
        for body in bodies(path, root):  # several classes may have a method of this name
            runs_of.setdefault(body.where, []).extend(runs(body))
    all_runs = Runs(run for runs in runs_of.values() for run in runs)
    known = set[str]().union(*map(all_runs.found_in, public(root)))
    return Secrets({where: [run for run in runs if run not in known] for where, runs in runs_of.items()})

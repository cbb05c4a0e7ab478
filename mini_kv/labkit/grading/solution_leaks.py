"""Finds the code of solutions where it should not be: in a tree for students, or in a built book.

A leak is the body of a function of five statements or more, or any five consecutive lines of it. Indentation and
comments do not count. Lines that are also in the engine, the starters or the labs' tests are not leaks.
"""

import ast
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

STATEMENTS = 5
PUBLIC = ("mini_kv/**/*.py", "labs/**/*.py")


class Body(NamedTuple):
    """The code of a function in a solution."""

    where: str
    lines: list[str]


def bare(line: str) -> str:
    """Return a line without comment and white space.

    >>> bare("    free.append( block )  # at the end")
    'free.append(block)'
    """
    return re.sub(r"\s+", "", re.sub(r"(^|\s)#.*", "", line))


def bare_text(text: str) -> str:
    """Return all lines of a text in the form of `bare`, joined."""
    return "".join(bare(line) for line in text.splitlines())


def bodies(path: Path, root: Path) -> list[Body]:
    """Return the functions of a file that have five statements or more, docstrings left out."""
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines()
    found = []
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.FunctionDef):
            continue
        body = node.body[1:] if ast.get_docstring(node) is not None else node.body
        if sum(isinstance(inner, ast.stmt) for statement in body for inner in ast.walk(statement)) < STATEMENTS:
            continue
        code = [bare(line) for line in lines[body[0].lineno - 1 : node.end_lineno]]
        found.append(Body(f"{path.relative_to(root).as_posix()}: {node.name}", [line for line in code if line]))
    return found


def runs(body: Body) -> list[str]:
    """Return every run of five lines of a body, or the whole body if it has fewer lines."""
    last = max(1, len(body.lines) - STATEMENTS + 1)
    return ["".join(body.lines[start : start + STATEMENTS]) for start in range(last)]


def public(root: Path) -> str:
    """Return the code that every learner has."""
    paths = [path for pattern in PUBLIC for path in sorted(root.glob(pattern))]
    return "".join(bare_text(path.read_text(encoding="utf-8")) for path in paths)


def secrets(root: Path) -> dict[str, list[str]]:
    """Return, for each function of a solution, the runs of its lines that are in no file that every learner has."""
    known = public(root)
    return {
        body.where: [run for run in runs(body) if run not in known]
        for path in sorted((root / "solutions").glob("lab-*/*.py"))
        for body in bodies(path, root)
    }


def found_in(text: str, guarded: Mapping[str, list[str]]) -> list[str]:
    """Return the functions that this text, in the form of `bare_text`, gives away in whole or in part."""
    return [where for where, lines in guarded.items() if any(line in text for line in lines)]

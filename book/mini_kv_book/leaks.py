"""Find the solutions' code in a built book, pages, search index and archives alike.

    python -m mini_kv_book.leaks book/site

A leak is the body of a function of solutions/, five statements or more, or any five lines of it in a row: whatever the
highlighting, the indentation and the comments. Lines that the engine, the starters or the labs' tests have too give
nothing away.
"""

import ast
import functools
import html
import io
import re
import sys
import zipfile
from pathlib import Path
from typing import NamedTuple

from mini_kv_book.places import ROOT

_STATEMENTS = 5
_READ = {".html", ".json", ".js", ".txt", ".md", ".py", ".toml", ".zip", ".whl"}
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


def bodies(path: Path) -> list[Body]:
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
        found.append(Body(f"{path.relative_to(ROOT).as_posix()}: {node.name}", [line for line in code if line]))
    return found


def shown(name: str, content: bytes) -> str:
    """Return what a built file shows: its text without tags, comments and white space."""
    if name.endswith((".zip", ".whl")):
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            return "".join(shown(member, archive.read(member)) for member in archive.namelist())
    text = content.decode("utf-8", errors="ignore")
    if name.endswith((".html", ".json", ".js")):
        text = html.unescape(re.sub(r"<[^>]*>", "", text.replace("\\n", "\n").replace('\\"', '"')))
    return "".join(bare(line) for line in text.splitlines())


@functools.cache
def public() -> str:
    """Return the code that every learner has, in the form of `shown`."""
    paths = [path for pattern in PUBLIC for path in sorted(ROOT.glob(pattern))]
    return "".join(bare(line) for path in paths for line in path.read_text(encoding="utf-8").splitlines())


def runs(body: Body) -> list[str]:
    """Return every run of five lines of a body, or the whole body if it has fewer lines."""
    last = max(1, len(body.lines) - _STATEMENTS + 1)
    return ["".join(body.lines[start : start + _STATEMENTS]) for start in range(last)]


@functools.cache
def secrets() -> dict[str, list[str]]:
    """Return, for each function of a solution, the runs of its lines that are in no file that every learner has."""
    return {
        body.where: [run for run in runs(body) if run not in public()]
        for path in sorted((ROOT / "solutions").glob("lab-*/*.py"))
        for body in bodies(path)
    }


def leaks(site: Path) -> list[str]:
    """Return a sentence for each function of a solution that the site gives away, in whole or in part."""
    found = []
    for path in sorted(path for path in site.rglob("*") if path.suffix in _READ):
        text = shown(path.name, path.read_bytes())
        found += [f"{path}: {name}" for name, lines in secrets().items() if any(line in text for line in lines)]
    return found


def main() -> int:
    """Check the site named on the command line; return the exit status."""
    found = leaks(Path(sys.argv[1]))
    for line in found:
        print(line, file=sys.stderr)
    print(f"{len(found)} solutions in {sys.argv[1]}")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())

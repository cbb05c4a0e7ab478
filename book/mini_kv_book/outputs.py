"""Results of fences and pictures of pages: kept for the next build, and stored for a build without PyTorch.

    python -m mini_kv_book.outputs          writes the stored ones: part of `make book-whole`

`book/.cache/fences` keeps results for the next build. `make clean` removes them. A result is used again while all that
it can depend on is the same: the fence, the cells before it on its page, the files of mini_kv, labs and mini_kv_book,
the pinned packages, and Python. The result of a failed fence is not kept.

`book/data/outputs` is in git and has what a reader without PyTorch, matplotlib and Node cannot compute. A result is
used while the fence and the cells before it are the same. There is one file per page: the results of its fences, each
under the digest of its inputs. It is written if one of its fences loaded PyTorch or matplotlib. Commands are always
stored, because another process loads what they need. A stored result is kept if the new one differs only in decimal
fractions: times, and the noise of floating-point numbers.
"""

import functools
import hashlib
import importlib.util
import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from mini_kv_book.places import DOCS, ROOT
from mini_kv_book.runs import (
    FenceError,
    run_chart,
    run_command,
    run_instrument,
    run_planes,
    run_play,
    run_python,
    run_story,
)

FOLDER = ROOT / "book" / ".cache" / "fences"
_USED = ("mini_kv", "labs", "book/mini_kv_book")
LEFT_OUT = {"tests", "__pycache__"}
OUTPUTS = ROOT / "book" / "data" / "outputs"
PACKAGES = ("torch", "matplotlib")
"""Packages that some fences need."""
Results = Callable[[object, Callable[[], Any]], Any]
"""`results(key, compute)` returns what `compute` returns, or an earlier result for this key. Both are JSON."""


def digest_of(key: object) -> str:
    """Return the name of a result: a digest of its inputs."""
    return hashlib.sha256(json.dumps(key).encode()).hexdigest()[:16]


def stamps() -> dict[Path, tuple[int, int]]:
    """Return size and time of the last change of every file that a fence can depend on, in order."""
    paths = [ROOT / "constraints.txt"]
    for name in _USED:
        for folder, folders, files in os.walk(ROOT / name):
            folders[:] = sorted(set(folders) - LEFT_OUT)
            paths += [Path(folder, file) for file in sorted(files)]
    return {path: (found.st_size, found.st_mtime_ns) for path in paths for found in [path.stat()]}


class Kept:
    """A folder of results, each under a digest of its inputs."""

    def __init__(self, folder: Path, stamps: Callable[[], dict[Path, tuple[int, int]]] = stamps) -> None:
        """Begin with the current files, and remove the results of other versions."""
        self.stamps, self.before = stamps, stamps()
        digest = hashlib.sha256(sys.version.encode())
        for path in self.before:
            digest.update(f"\0{path.relative_to(ROOT).as_posix()}\0".encode() + path.read_bytes())
        self.folder = folder / digest.hexdigest()[:16]
        for other in folder.glob("*"):
            if other != self.folder:
                shutil.rmtree(other, ignore_errors=True)

    def __call__(self, key: object, compute: Callable[[], Any]) -> Any:
        """Return what `compute` returned for this key in an earlier build, or compute and keep it. Both are JSON.

        After a change of a file during this process no result is kept, because Python has imported the old file.
        """
        if self.stamps() != self.before:
            return compute()
        path = self._path_of(key)
        if path.is_file():
            return json.loads(path.read_text(encoding="utf-8"))
        result = compute()
        self.keep(key, result)
        return result

    def keep(self, key: object, result: Any) -> None:
        """Keep a result for the next build."""
        path = self._path_of(key)
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_suffix(f".{os.getpid()}")  # another build may keep the same result at this moment
        unfinished.write_text(json.dumps(result), encoding="utf-8")
        unfinished.replace(path)

    def _path_of(self, key: object) -> Path:
        return self.folder / f"{digest_of(key)}.json"


@functools.cache
def kept() -> Kept:
    """Return the results of the book's fences."""
    return Kept(FOLDER)


@functools.cache
def uses_stored() -> bool:
    """Return whether the build uses stored results, because this machine lacks PyTorch, matplotlib or Node."""
    return shutil.which("node") is None or any(importlib.util.find_spec(name) is None for name in PACKAGES)


@functools.cache
def stored() -> dict[str, Any]:
    """Return the stored results of all pages, by the digests of their inputs."""
    files = sorted(OUTPUTS.rglob("*.json"))
    return {name: result for file in files for name, result in json.loads(file.read_text(encoding="utf-8")).items()}


def kept_or_stored(key: object, compute: Callable[[], Any]) -> Any:
    """Return the stored result if the build uses it and has it, else the kept or computed one."""
    if uses_stored() and (name := digest_of(key)) in stored():
        return stored()[name]
    return kept()(key, compute)


def result_of(run: Callable[..., Any], *args: str, results: Results = kept_or_stored) -> Any:
    """Return the result of `run(*args)`."""
    return results([run.__name__, *args], lambda: run(*args))


class Cells:
    """The Python of a page, one fence after the other: run only if a result is missing, and then all of them."""

    def __init__(self, results: Results = kept_or_stored) -> None:
        self.results = results
        self.names: dict[str, Any] = {"__name__": "__main__"}
        """The names that the cells have defined."""
        self.cells: list[tuple[Callable[[str, dict[str, Any]], Any], str]] = []
        self.num_run = 0

    def result(self, run: Callable[[str, dict[str, Any]], Any], body: str) -> Any:
        """Return the result of `run(body, names)` after the cells before. Newlines at the end change nothing."""
        self.cells.append((run, body.rstrip("\n")))
        return self.results([[run.__name__, body] for run, body in self.cells], self._catch_up)

    def _catch_up(self) -> Any:
        """Run every cell that has not run in this build. Return the last one's result."""
        result = None
        while self.num_run < len(self.cells):
            run, body = self.cells[self.num_run]
            self.num_run += 1
            result = run(body, self.names)
        return result


# The stored results ---------------------------------------------------------------------------------------------------

_FENCE = re.compile(r"^( *)```(kv-\w+) *\n(.*?)^\1```", re.MULTILINE | re.DOTALL)
_CELLS: dict[str, Callable[[str, dict[str, Any]], Any]] = {
    "kv-python": run_python,
    "kv-chart": run_chart,
    "kv-instrument": run_instrument,
}
"""Fences of Python that share the names of their page."""
_ALONE: dict[str, Callable[[str], Any]] = {
    "kv-output": run_command,
    "kv-planes": run_planes,
    "kv-play": run_play,
}
"""Fences whose result depends on nothing else of their page."""
_STORIES = {"kv-story", "kv-beside"}
"""Fences with a story on each line."""
_FRACTION = re.compile(r"\d+\.\d+(?:e[-+]?\d+)?")


def fences(text: str) -> Iterator[tuple[str, str]]:
    """Yield kind and body of the fences of a page, in order."""
    for indent, kind, body in _FENCE.findall(text):
        yield kind, re.sub(f"^{indent}", "", body, flags=re.MULTILINE)


def first_instrument(chapter: str) -> str:
    """Return the first instrument of a chapter, as its page shows it. Raises `FenceError` if it has none."""
    cells = Cells()
    for kind, body in fences((DOCS / "chapters" / f"{chapter}.md").read_text(encoding="utf-8")):
        if kind in _CELLS:
            result = cells.result(_CELLS[kind], body)
            if kind == "kv-instrument":
                return str(result)
    raise FenceError(f"chapters/{chapter}.md has no kv-instrument")


def run_fences(page: str, text: str, of_cells: Results, of_commands: Results) -> None:
    """Run the fences of a page that have results, and hand these over: those of commands, and all others."""
    lang = "zh" if page.startswith("zh/") else "en"
    cells = Cells(of_cells)
    for kind, body in fences(text):
        if kind in _CELLS:
            cells.result(_CELLS[kind], body)
        elif kind in _ALONE:
            result_of(_ALONE[kind], body.strip(), results=of_commands)
        elif kind in _STORIES:
            for line in body.strip().splitlines():
                result_of(run_story, line, lang, results=of_cells)


def _to_store(page: str) -> dict[str, Any]:
    """Run all fences of a page, keep their results, and return those to store. It needs a process of its own."""
    of_cells: dict[str, Any] = {}
    of_commands: dict[str, Any] = {}

    def recorder(found: dict[str, Any]) -> Callable[[object, Callable[[], Any]], None]:
        def record(key: object, compute: Callable[[], Any]) -> None:
            result = compute()
            kept().keep(key, result)
            found[digest_of(key)] = result

        return record

    run_fences(page, (DOCS / page).read_text(encoding="utf-8"), recorder(of_cells), recorder(of_commands))
    return of_commands | (of_cells if set(PACKAGES) & set(sys.modules) else {})


def same(stored: Any, found: Any) -> bool:
    """Return whether two results differ only in decimal fractions.

    >>> same(["print(x)", "0.501 ms"], ["print(x)", "0.499 ms"]), same("3 blocks", "4 blocks")
    (True, False)
    """
    return _FRACTION.sub("#", json.dumps(stored)) == _FRACTION.sub("#", json.dumps(found))


def file_of(page: str) -> Path:
    """Return the file with the stored results of a page."""
    return (OUTPUTS / page).with_suffix(".json")


def write(file: Path, found: dict[str, Any]) -> None:
    """Write a page's file, or delete it if there is nothing to store."""
    if not found:
        file.unlink(missing_ok=True)
        return
    before = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    found = {name: before[name] if same(before.get(name), new) else new for name, new in found.items()}
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8", newline="\n")


def main() -> None:
    """Write the files of all pages, and delete those of pages that are gone."""
    pages = [path.relative_to(DOCS).as_posix() for path in sorted(DOCS.rglob("*.md"))]
    for file in set(OUTPUTS.rglob("*.json")) - {file_of(page) for page in pages}:
        file.unlink()
    with ProcessPoolExecutor(max_tasks_per_child=1) as pool:
        for page, found in zip(pages, pool.map(_to_store, pages), strict=True):
            write(file_of(page), found)


if __name__ == "__main__":
    main()

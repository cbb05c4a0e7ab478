"""Writes the results that a machine without PyTorch, matplotlib and Node cannot compute into `book/data/outputs`.

    python -m mini_kv_book.outputs          part of `make book-whole`

There is one file per page: the results of its fences, each under the digest of its inputs. It is written if one of its
fences loaded PyTorch or matplotlib. Commands are always stored, because another process loads what they need. A stored
result is kept if the new one differs only in decimal fractions: times, and the noise of floating-point numbers.
"""

import json
import re
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from mini_kv_book.fence_cache import OUTPUTS, PACKAGES, Cells, digest_of, kept, result_of
from mini_kv_book.places import DOCS
from mini_kv_book.runs import run_chart, run_command, run_instrument, run_planes, run_python, run_story

FENCE = re.compile(r"^( *)```(kv-\w+) *\n(.*?)^\1```", re.MULTILINE | re.DOTALL)
CELLS: dict[str, Callable[[str, dict[str, Any]], Any]] = {
    "kv-python": run_python,
    "kv-chart": run_chart,
    "kv-instrument": run_instrument,
}
"""Fences of Python that share the names of their page."""
ALONE: dict[str, Callable[[str], Any]] = {"kv-output": run_command, "kv-planes": run_planes}
"""Fences whose result depends on nothing else of their page."""
STORIES = {"kv-story", "kv-beside"}
"""Fences with a story on each line."""
FRACTION = re.compile(r"\d+\.\d+(?:e[-+]?\d+)?")


class Fence(NamedTuple):
    """A fence of the book."""

    where: str
    kind: str
    body: str


def fences(page: str, text: str) -> list[Fence]:
    """Return the fences of a page, in order."""
    name, found = f"book/docs/{page}", []
    for match in FENCE.finditer(text):
        body = re.sub(f"^{match[1]}", "", match[3], flags=re.MULTILINE)
        found.append(Fence(f"{name}:{text.count(chr(10), 0, match.start()) + 2}", match[2], body))
    return found


def to_store(page: str) -> dict[str, Any]:
    """Run all fences of a page, keep their results, and return those to store. It needs a process of its own."""
    of_cells: dict[str, Any] = {}
    of_commands: dict[str, Any] = {}

    def recorder(found: dict[str, Any]) -> Callable[[object, Callable[[], Any]], None]:
        def record(key: object, compute: Callable[[], Any]) -> None:
            result = compute()
            kept().keep(key, result)
            found[digest_of(key)] = result

        return record

    cells = Cells(recorder(of_cells))
    for fence in fences(page, (DOCS / page).read_text(encoding="utf-8")):
        if fence.kind in CELLS:
            cells.result(CELLS[fence.kind], fence.body)
        elif fence.kind in ALONE:
            result_of(ALONE[fence.kind], fence.body.strip(), results=recorder(of_commands))
        elif fence.kind in STORIES:
            for line in fence.body.strip().splitlines():
                result_of(run_story, line, "zh" if page.startswith("zh/") else "en", results=recorder(of_cells))
    return of_commands | (of_cells if set(PACKAGES) & set(sys.modules) else {})


def same(stored: Any, found: Any) -> bool:
    """Return whether two results differ only in decimal fractions.

    >>> same(["print(x)", "0.501 ms"], ["print(x)", "0.499 ms"]), same("3 blocks", "4 blocks")
    (True, False)
    """
    return FRACTION.sub("#", json.dumps(stored)) == FRACTION.sub("#", json.dumps(found))


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
        for page, found in zip(pages, pool.map(to_store, pages), strict=True):
            write(file_of(page), found)


if __name__ == "__main__":
    main()

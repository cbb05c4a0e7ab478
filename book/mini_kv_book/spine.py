"""The reading path through the engine: the files that pyproject.toml names as its spine, with their code lines."""

import ast
import tomllib
from functools import cache
from typing import Any

from mini_kv_book import source_text
from mini_kv_book.places import ROOT
from mini_kv_book.runs import FenceError, source_of


@cache
def spine() -> dict[str, Any]:
    """Return the table `[tool.mini_kv.spine]` of pyproject.toml."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    table: dict[str, Any] = settings["tool"]["mini_kv"]["spine"]
    return table


@cache
def code_lines() -> dict[str, int]:
    """Return the code lines of each file of the spine, in reading order."""
    sources = {name: (ROOT / "mini_kv" / name).read_text(encoding="utf-8") for name in spine()["files"]}
    return {name: len(source_text.code_lines(source)) for name, source in sources.items()}


def _module_of(name: str) -> str:
    """Return the module of a file of the spine.

    >>> _module_of("core/sched/output.py")
    'mini_kv.core.sched.output'
    """
    return "mini_kv." + name.removesuffix(".py").replace("/", ".")


def stop_as_markdown(name: str, *symbols: str) -> str:
    """Return the line below a file's heading: its place, its code lines, and its first symbol to read."""
    if name not in code_lines():
        raise ValueError(f"{name} is no file of the spine: {', '.join(code_lines())}")
    links = [link_to(_module_of(name), symbol) for symbol in symbols]
    return f"[`mini_kv/{name}`](api/{_module_of(name)}.md), {code_lines()[name]} lines. Read first: {', '.join(links)}."


def link_to(module: str, symbol: str) -> str:
    """Return a link to a symbol on the page of its module, seen from docs. Raises `ValueError` if it has none."""
    try:
        source_of(f"{module}.{symbol}")
    except FenceError as error:
        raise ValueError(f"{module} has no {symbol}") from error
    is_public = not any(part.startswith("_") for part in symbol.split("."))
    return f"[`{symbol.rpartition('.')[2]}`](api/{module}.md{f'#{module}.{symbol}' if is_public else ''})"


def total() -> str:
    """Return a sentence with the numbers of files and code lines of the path."""
    return f"The path has {len(code_lines())} files and {sum(code_lines().values()):,} lines of code."


def imports() -> dict[str, set[str]]:
    """Return for each file the other files of the spine that it imports."""
    files = {_module_of(name): name for name in spine()["files"]}
    found = {}
    for name in files.values():
        tree = ast.parse((ROOT / "mini_kv" / name).read_text(encoding="utf-8"))
        modules = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        found[name] = {files[module] for module in modules if module in files}
    return found


def picture() -> str:
    """Return a diagram: an arrow from each file to those that import it, without indirect ones."""
    below = imports()
    for name in spine()["files"]:  # reading order is import order: what is below is complete by now
        below[name] |= {lower for other in below[name] for lower in below[other]}
    lines = ["```mermaid", "flowchart TD", "    accTitle: The files of the spine, each below those that it stands on"]
    for name, size in code_lines().items():
        label = name.removesuffix(".py").rpartition("/")[2]
        in_two = label.replace("_kv_", "_<br>kv_")  # a longer line than 200 px would be cut off
        lines.append(f'    {label}["{in_two}<br>{size}"]')
        for other in sorted(below[name]):
            if not any(other in below[between] for between in below[name]):
                lines.append(f"    {other.removesuffix('.py').rpartition('/')[2]} --> {label}")
    return "\n".join([*lines, "```"])

"""Print the sizes of the project on one page of Markdown: code, names, words, bytes. None of them is a limit.

    python .ci/report.py                 the working tree
    python .ci/report.py --since v1      before, now, and the difference

A code line holds at least one token of code. Blank lines, comments and docstrings are not counted. Decisions are the
branches of a function and those inside its expressions: `and`, `or`, and each `for` and `if` of a comprehension.
"""

import argparse
import ast
import gzip
import io
import json
import re
import subprocess
import sys
import tarfile
import tokenize
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "book"))

from mini_kv_book.source_text import code_lines, span  # noqa: E402

DISCOURAGED = (
    *("known", "named", "nameless", "remembered", "forgotten", "written", "filled", "is no", "is none"),
    *("somebody", "someone", "anybody", "everybody", "nobody", "whoever", "so many", "so much"),
    *("stands", "lies", "hangs", "behind", "says", "tells"),
)
"""Words for which plain style has a better one."""
PLACES = {".js": "JavaScript", ".mjs": "JavaScript", ".toml": "TOML", ".ipynb": "notebooks"}

_FUNCTION = ast.FunctionDef | ast.AsyncFunctionDef
_BRANCH = ast.If | ast.For | ast.AsyncFor | ast.While | ast.ExceptHandler | ast.match_case | _FUNCTION


class Table(NamedTuple):
    """Numbers by name. With `top`, only that many of the largest are printed."""

    title: str
    rows: Mapping[str, int]
    top: int | None = None

    def names(self) -> list[str]:
        """Return the rows that are printed."""
        return sorted(self.rows, key=lambda name: -self.rows[name])[: self.top] if self.top else [*self.rows]


class Module(NamedTuple):
    """A file of Python with the numbers of its code lines."""

    tree: ast.Module
    lines: set[int]


def git(root: Path, *args: str) -> bytes:
    """Return what a git command prints. Raises `ValueError` with git's message if it fails."""
    done = subprocess.run(["git", "-C", str(root), *args], check=False, capture_output=True)
    if done.returncode:
        raise ValueError(done.stderr.decode().strip())
    return done.stdout


def working_tree(root: Path) -> dict[str, bytes]:
    """Return path and content of the files that git tracks or would add."""
    names = git(root, "ls-files", "-z", "--cached", "--others", "--exclude-standard").decode().split("\0")
    return {name: (root / name).read_bytes() for name in sorted({*names}) if (root / name).is_file()}


def revision(root: Path, name: str) -> dict[str, bytes]:
    """Return path and content of the files of a revision. Raises `ValueError` if git does not know it."""
    with tarfile.open(fileobj=io.BytesIO(git(root, "archive", "--format=tar", name))) as archive:
        members = ((member.name, archive.extractfile(member)) for member in archive)
        return {path: file.read() for path, file in members if file is not None}


def place(path: str) -> str:
    """Return what a file of code is counted for, or an empty string for another file."""
    folder, *rest = path.split("/")
    if Path(path).suffix in PLACES:
        return PLACES[Path(path).suffix]
    if folder == ".ci" or (rest and path.endswith(".py")):
        return f"mini_kv/{rest[0]}" if folder == "mini_kv" and len(rest) > 1 else folder
    return ""


def is_package(place: str) -> bool:
    """Return whether a place holds the code that a user runs: a package of mini_kv, or the book's."""
    return place.startswith(("mini_kv", "book")) and place != "mini_kv/tests"


def parse(source: str) -> Module:
    """Return a file's syntax tree and code lines. What is not Python has an empty tree."""
    try:
        return Module(ast.parse(source), code_lines(source))
    except (SyntaxError, tokenize.TokenError):
        return Module(ast.Module([], []), set(range(plain_lines(source, "#"))))


def plain_lines(text: str, *comments: str) -> int:
    """Return the number of lines that are not blank and do not begin like a comment."""
    return sum(bool(line.strip()) and not line.strip().startswith(comments) for line in text.splitlines())


def num_lines(path: str, text: str) -> int:
    """Return the number of code lines of a file that is not Python."""
    if path.endswith(".ipynb"):
        return sum(plain_lines(cell, "#") for cell in cells(text))
    return plain_lines(text, *(["#"] if path.endswith(".toml") else ["//", "/*", "*"]))


def cells(notebook: str) -> list[str]:
    """Return the code cells of a notebook."""
    return ["".join(cell["source"]) for cell in json.loads(notebook)["cells"] if cell["cell_type"] == "code"]


def public_names(tree: ast.Module) -> list[str]:
    """Return the functions, classes and values of a module's top level that have no leading underscore."""
    names = [node.name for node in tree.body if isinstance(node, ast.ClassDef | _FUNCTION)]
    for node in tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names += [leaf.id for target in targets for leaf in ast.walk(target) if isinstance(leaf, ast.Name)]
    return [name for name in names if not name.startswith("_")]


def functions(node: ast.AST, prefix: str) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Yield the functions below a node with their names, a method's as `Class.method`."""
    for child in ast.iter_child_nodes(node):
        name = prefix + getattr(child, "name", "") if isinstance(child, ast.ClassDef | _FUNCTION) else ""
        if isinstance(child, _FUNCTION):
            yield name, child
        yield from functions(child, f"{name}." if name else prefix)


def decisions(function: ast.AST) -> int:
    """Return 1 plus the number of decisions in a function and in the functions nested in it."""
    nodes = [*ast.walk(function)]
    found = sum(isinstance(node, _BRANCH) for node in nodes)  # the function itself is the first
    found += sum(len(node.values) - 1 for node in nodes if isinstance(node, ast.BoolOp))
    return found + sum(1 + len(node.ifs) for node in nodes if isinstance(node, ast.comprehension))


def machinery(module: Module) -> int:
    """Return the percentage of a lab's tests that is neither an import nor a test function with its decorators."""
    story: set[int] = set()
    for node in module.tree.body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            story |= span(node)
        elif isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            story |= span(node).union(*map(span, node.decorator_list))
    return round(100 * len(module.lines - story) / max(len(module.lines), 1))


def docstrings(tree: ast.Module) -> str:
    """Return a module's statements that are only a string: docstrings, and the notes below attributes."""
    strings = (node.value for node in ast.walk(tree) if isinstance(node, ast.Expr))
    return "\n".join(node.value for node in strings if isinstance(node, ast.Constant) and isinstance(node.value, str))


def measure(tree: Mapping[str, bytes], spine: Sequence[str]) -> list[Table]:
    """Return the sizes of a revision; `spine` are the files of the reading path."""
    code = {path: tree[path].decode() for path in sorted(tree, key=place) if place(path)}
    texts = {path: content.decode() for path, content in tree.items() if path.endswith(".md")}
    modules = {path: parse(text) for path, text in code.items() if Path(path).suffix not in PLACES}
    packages = {path: module for path, module in modules.items() if is_package(place(path))}
    labs = {path: module for path, module in modules.items() if path.startswith("labs/")}
    found = {
        f"{path}: {name}": (len(module.lines & span(function)), decisions(function))
        for path, module in packages.items()
        for name, function in functions(module.tree, "")
    }
    sizes, names, words = Counter[str](), Counter[str](), Counter[str]()
    for path, text in code.items():
        sizes[place(path)] += len(modules[path].lines) if path in modules else num_lines(path, text)
    for path, module in packages.items():
        names[place(path)] += len(public_names(module.tree))
    for path, text in texts.items():
        folder, _, name = path.rpartition("/")
        words[folder if folder.startswith("book/docs") else name] += len(text.split())
    sizes["all packages"] = sum(len(module.lines) for module in packages.values())
    sizes["the spine"] = sum(len(modules[path].lines) for path in spine if path in modules)
    names["all packages"] = names.total()
    told = "\n".join(docstrings(module.tree) for module in packages.values())
    inside = {path: machinery(module) for path, module in labs.items() if path.endswith("/test_lab.py")}
    shown = [cell.splitlines() for path, text in code.items() if path.endswith(".ipynb") for cell in cells(text)]
    counts = {
        "files in git": len(tree),
        "functions of the packages": len(found),
        "functions with more than 10 decisions": sum(number > 10 for _, number in found.values()),
        "lines of the longest notebook cell": max(map(len, shown), default=0),
        "columns of the widest notebook cell": max((len(line) for cell in shown for line in cell), default=0),
    }
    return [
        Table("code lines", sizes),
        Table("public names", names),
        Table("code lines of a lab", {path: len(module.lines) for path, module in labs.items()}),
        Table("% of a lab's tests that is machinery", inside),
        Table("counts", counts),
        Table("code lines of the longest functions", {name: lines for name, (lines, _) in found.items()}, top=10),
        Table("decisions of the most complex functions", {name: number for name, (_, number) in found.items()}, top=10),
        Table("words", words),
        Table("discouraged words in docstrings", {word: occurrences(word, told) for word in DISCOURAGED}),
        Table("bytes of the largest files in git", {path: len(content) for path, content in tree.items()}, top=10),
    ]


def occurrences(word: str, text: str) -> int:
    """Return how often a word occurs, in small or capital letters."""
    return len(re.findall(rf"\b{word}\b", text, re.IGNORECASE))


def weigh(site: Path) -> list[Table]:
    """Return the bytes of the built pages, each with the files of the site that it names."""
    files = {path: path.stat().st_size for path in site.rglob("*") if path.is_file()}
    pages = {}
    for path, size in files.items():
        if path.suffix == ".html":
            named = re.findall(r'(?:src|href)="([^":?#]+\.(?:css|js|mjs|png|svg|woff2))', path.read_text("utf-8"))
            loaded = {(path.parent / name).resolve() for name in named}
            pages[path.relative_to(site).as_posix()] = size + sum(files.get(each, 0) for each in loaded)
    parts = ("**/*", "search/*.json", "assets/stylesheets/*.css", "assets/kv-lab/*", "*.pdf")
    sums = {part: sum(files.get(path, 0) for path in site.glob(part)) for part in parts}
    index = [gzip.compress(path.read_bytes()) for path in site.glob("search/*.json")]
    sums["search/*.json, compressed"] = sum(map(len, index))
    return [
        Table("bytes of the built site", sums),
        Table("bytes of the heaviest pages, with the files that they name", pages, top=10),
    ]


def show(now: Table, before: Table | None = None) -> str:
    """Return a table in Markdown; with an older one, the columns before, now and difference."""
    if before is None:
        lines = [f"| {now.title} | now |", "|---|---:|", *(f"| {name} | {now.rows[name]:,} |" for name in now.names())]
    else:
        lines = [f"| {now.title} | before | now | difference |", "|---|---:|---:|---:|"]
        for name in dict.fromkeys([*now.names(), *before.names()]):
            values = [f"{table.rows[name]:,}" if name in table.rows else "-" for table in (before, now)]
            lines.append(f"| {name} | {' | '.join(values)} | {now.rows.get(name, 0) - before.rows.get(name, 0):+,} |")
    return "\n".join(lines)


def page(root: Path, since: str | None) -> str:
    """Return the whole page. Raises `ValueError` if git does not know the revision."""
    before = revision(root, since) if since else None
    settings = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))
    spine = [f"mini_kv/{name}" for name in settings["tool"]["mini_kv"]["spine"]["files"]]
    tables = measure(working_tree(root), spine)
    older: Sequence[Table | None] = [None] * len(tables) if before is None else measure(before, spine)
    parts = [show(*pair) for pair in zip(tables, older, strict=True)]
    site = root.resolve() / "book/site"
    parts += map(show, weigh(site)) if site.is_dir() else ["The bytes of pages: run `make site` first."]
    return "\n\n".join(parts)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the page; return the exit status: 2 for a revision that git does not know, else 0."""
    parser = argparse.ArgumentParser(description="Print the sizes of the project as tables in Markdown.")
    parser.add_argument("--since", metavar="REV", help="an older revision: print before, now and difference")
    try:
        print(page(ROOT, parser.parse_args(arguments).since))
    except ValueError as error:
        print(f"report.py: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())

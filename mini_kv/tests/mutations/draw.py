"""Draws one-line mutations of the code by a seed, and finds their lines again after other edits."""

import ast
import random
import re
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

LEAST_PER_ROOM = 4
PAIRS = (("==", "!="), ("===", "!=="), ("is", "is not"), ("in", "not in"))
TURNED: dict[str, tuple[str, ...]] = {"<": (">=", "<="), ">": ("<=", ">="), "<=": (">", "<"), ">=": ("<", ">")}
TURNED |= {old: (new,) for pair in PAIRS for old, new in (pair, pair[::-1])}
LEFT_OUT = re.compile(r"__all__|if __name__|if TYPE_CHECKING|(log|logger|logging|warnings)\.")
HEADER = re.compile(
    r"\s*(?:(?:export|default|async|static) )*(?:(?:def|class|function\*?) (\w+)|(?:const|let) (\w+) = .*=>"
    r"|(?!if|for|while|switch|catch|return)(#?\w+)\(.*\) \{$)"
)
JS_TEXT = re.compile(r"/\*.*?\*/|//[^\n]*|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'|`(?:\\.|[^`\\])*`", re.DOTALL)
PARENS = r"\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)"  # up to three in each other

Change = tuple[str, int, str]  # kind, number of the line from 0, the new line


class Mutation(NamedTuple):
    """One changed line: in the function `where` of `file`, after `nth` equal ones."""

    id: str
    kind: str
    file: str
    where: str
    nth: int
    old: str
    new: str


def tracked(root: Path) -> dict[str, str]:
    """Return the text of the Python files and scripts that git tracks, by path."""
    command = ["git", "ls-files", "*.py", "*.js", "*.mjs"]
    paths = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout.splitlines()
    return {path: (root / path).read_text(encoding="utf-8") for path in paths if (root / path).is_file()}


def room_of(path: str) -> str | None:
    """Return the room of a file, `None` if it is not mutated. The top level of mini_kv is the room `cli`."""
    parts = path.split("/")
    if parts[:2] == ["mini_kv", "tests"] or path == "mini_kv/story/kv_story.js" or parts[0] not in ("mini_kv", "book"):
        return None  # that script is joined from others
    room = "book" if parts[0] == "book" else parts[1] if len(parts) > 2 else "cli"
    return room if path.endswith(".py") else f"{room}-js"


def python_changes(text: str) -> Iterator[Change]:
    """Yield the changes of a module, without those in messages, annotations, decorators and `__all__`."""
    lines = text.encode().splitlines()
    todo: list[ast.AST] = [ast.parse(text)]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.JoinedStr | ast.Raise):
            continue
        if isinstance(node, ast.stmt) and LEFT_OUT.match(ast.unparse(node)):
            continue
        for kind, number, start, end, new in _edits(node, lines):
            yield kind, number, (lines[number][:start] + new + lines[number][end:]).decode()
        for field, value in ast.iter_fields(node):
            if field not in ("annotation", "returns", "decorator_list"):
                todo += [
                    child for child in (value if isinstance(value, list) else [value]) if isinstance(child, ast.AST)
                ]


def _edits(node: ast.AST, lines: list[bytes]) -> Iterator[tuple[str, int, int, int, bytes]]:
    """Yield kind, line, start, end and new text of each change of this node that is on one line."""
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and node.lineno == node.end_lineno:
        start, end = node.left.end_col_offset or 0, node.comparators[0].col_offset
        between = lines[node.lineno - 1][start:end].decode()
        operator = between.strip(" ()")
        for turned in TURNED.get(operator, ()):
            yield "comparison turned", node.lineno - 1, start, end, between.replace(operator, turned, 1).encode()
    place = node.value if isinstance(node, ast.Expr) else node.test if isinstance(node, ast.If | ast.IfExp) else node
    if not isinstance(place, ast.expr) or place.lineno != place.end_lineno:
        return
    number, start, end = place.lineno - 1, place.col_offset, place.end_col_offset or 0
    text = lines[number][start:end]
    if isinstance(node, ast.If | ast.IfExp):
        yield "branch swapped", number, start, end, b"not (" + text + b")"
    elif isinstance(node, ast.Expr) and isinstance(place, ast.Call):
        yield "call removed", number, start, end, b"pass"
    elif isinstance(node, ast.Constant) and text.isdigit():
        yield "constant plus one", number, start, end, str(int(text) + 1).encode()


def js_changes(text: str) -> Iterator[Change]:
    """Yield the changes of a script, found by patterns in what is neither a string nor a comment."""
    code = JS_TEXT.sub(lambda found: re.sub(r"[^\n]", "_", found[0]), text).split("\n")
    for number, (line, was) in enumerate(zip(code, text.split("\n"), strict=True)):
        for found in re.finditer(r" ([=!]==|[<>]=?) ", line):
            for turned in TURNED[found[1]]:
                yield "comparison turned", number, was[: found.start(1)] + turned + was[found.end(1) :]
        for found in re.finditer(r"(?<![\w.#$])\d+(?![\w.])", line):
            yield "constant plus one", number, f"{was[: found.start()]}{int(found[0]) + 1}{was[found.end() :]}"
        if call := re.fullmatch(rf"(\s*)(?!super|return|throw|console|import)[\w.$?#]+{PARENS};", line):
            yield "call removed", number, f"{call[1]};"
        if test := re.search(rf"\bif ({PARENS})", line):
            condition = was[test.start(1) : test.end(1)]
            yield "branch swapped", number, f"{was[: test.start(1)]}(!{condition}){was[test.end(1) :]}"


def scopes(text: str) -> list[tuple[str, str]]:
    """Return for each line the dotted name of the function or class that it is in, and the line."""
    result, stack = [], list[tuple[int, str]]()
    for line in text.split("\n"):
        indent = len(line) - len(line.lstrip())
        while stack and line.strip() and line.strip()[0] not in ")]}" and stack[-1][0] >= indent:
            stack.pop()
        if found := HEADER.match(line):
            stack.append((indent, found[found.lastindex or 0]))
        result.append((".".join(name for _, name in stack), line))
    return result


def draw(files: Mapping[str, str], count: int, seed: int) -> list[Mutation]:
    """Return mutations of all rooms: at least four each, the others by the rooms' lines, the kinds in turn."""
    rooms: dict[str, list[str]] = {}
    for path in sorted(files):
        if room := room_of(path):
            rooms.setdefault(room, []).append(path)
    drawn, done, rest = list[Mutation](), 0, count - LEAST_PER_ROOM * len(rooms)
    total = sum(files[path].count("\n") for paths in rooms.values() for path in paths)
    for room, paths in rooms.items():
        before, done = done, done + sum(files[path].count("\n") for path in paths)
        wanted = LEAST_PER_ROOM + rest * done // total - rest * before // total
        drawn += _draw_room(room, {path: files[path] for path in paths}, wanted, random.Random(f"{seed} {room}"))
    return drawn


def _draw_room(room: str, files: Mapping[str, str], wanted: int, rng: random.Random) -> list[Mutation]:
    of_kind: dict[str, list[tuple[str, Change]]] = {}
    for path, text in files.items():
        for change in python_changes(text) if path.endswith(".py") else js_changes(text):
            of_kind.setdefault(change[0], []).append((path, change))
    for changes in of_kind.values():
        rng.shuffle(changes)
    mutations: dict[tuple[str, int], Mutation] = {}
    while any(of_kind.values()):
        for changes in of_kind.values():
            path, (kind, number, new) = changes.pop() if changes else ("", ("", 0, ""))
            if path and (path, number) not in mutations and len(mutations) < wanted:
                lines = scopes(files[path])
                where, old = lines[number]
                nth, name = lines[:number].count((where, old)), f"{room}-{len(mutations) + 1:02}"
                mutations[path, number] = Mutation(name, kind, path, where, nth, old, new)
    return list(mutations.values())


def find(mutation: Mutation, files: Mapping[str, str]) -> tuple[str, int] | None:
    """Return the file and line of a mutation, perhaps moved; `None` if the line is gone or there are several."""
    old, name, here, moved = mutation.old.strip(), mutation.where.rpartition(".")[2], [], []
    for path, text in files.items():
        if old in text and room_of(path) and Path(path).suffix == Path(mutation.file).suffix:
            for number, (where, line) in enumerate(scopes(text)):
                if line.strip() == old and where.rpartition(".")[2] == name:
                    moved.append((path, number))
                    here += moved[-1:] * ((path, where) == (mutation.file, mutation.where))
    if mutation.nth < len(here):
        return here[mutation.nth]
    return moved[0] if len(moved) == 1 else None


def apply(mutation: Mutation, text: str, number: int) -> str:
    """Return the text with this one line changed, indented as it is there."""
    lines = text.split("\n")
    indent = len(lines[number]) - len(lines[number].lstrip())
    lines[number] = " " * indent + mutation.new.strip()
    return "\n".join(lines)

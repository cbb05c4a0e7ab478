"""Draws one-line mutations of the code by a seed, and finds their lines again after other edits."""

import ast
import random
import re
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

LEAST_PER_ROOM = 4
TURNED = {
    "<": (">=", "<="),
    ">": ("<=", ">="),
    "<=": (">", "<"),
    ">=": ("<", ">"),
    "==": ("!=",),
    "!=": ("==",),
    "===": ("!==",),
    "!==": ("===",),
    "is": ("is not",),
    "is not": ("is",),
    "in": ("not in",),
    "not in": ("in",),
}
HEADER = re.compile(
    r"\s*(?:(?:export|default|async|static) )*(?:(?:def|class|function\*?) (\w+)|(?:const|let) (\w+) = .*=>"
    r"|(?!if|for|while|switch|catch|return)(#?\w+)\(.*\) \{$)"
)
JS_TEXT = re.compile(r"/\*.*?\*/|//[^\n]*|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'|`(?:\\.|[^`\\])*`", re.DOTALL)


class Mutation(NamedTuple):
    """One changed line: in the function `where` of `file`, after `nth` equal ones."""

    id: str
    kind: str
    file: str
    where: str
    nth: int
    old: str
    new: str


class Change(NamedTuple):
    """A possible mutation: the line's number counts from 0."""

    kind: str
    number: int
    new: str


def tracked(root: Path, *patterns: str) -> dict[str, str]:
    """Return the text of the files that git tracks, by path."""
    listed = subprocess.run(["git", "ls-files", *patterns], cwd=root, capture_output=True, text=True, check=True).stdout
    return {path: (root / path).read_text(encoding="utf-8") for path in listed.split("\n") if (root / path).is_file()}


def room_of(path: str) -> str | None:
    """Return the room of a file, `None` if it is not mutated. The top level of mini_kv is the room `cli`."""
    parts = path.split("/")
    if parts[:2] == ["mini_kv", "tests"] or path == "mini_kv/viz/kv_story.js" or parts[0] not in ("mini_kv", "book"):
        return None  # that script is joined from others
    room = "book" if parts[0] == "book" else parts[1] if len(parts) > 2 else "cli"
    return room if path.endswith(".py") else f"{room}-js"


def python_changes(text: str) -> Iterator[Change]:
    """Yield the changes of a module, without those in messages, annotations, decorators and `__all__`."""
    lines = text.encode().splitlines()
    todo: list[ast.AST] = [ast.parse(text)]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.JoinedStr | ast.Raise) or (isinstance(node, ast.stmt) and _is_left(node)):
            continue
        for kind, number, start, end, new in _edits(node, lines):
            yield Change(kind, number, (lines[number][:start] + new + lines[number][end:]).decode())
        for field, value in ast.iter_fields(node):
            if field not in ("annotation", "returns", "decorator_list"):
                nodes = value if isinstance(value, list) else [value]
                todo += [child for child in nodes if isinstance(child, ast.AST)]


def _is_left(node: ast.stmt) -> bool:
    start = ast.unparse(node).partition("\n")[0]
    return re.match(r"__all__|if __name__|if TYPE_CHECKING|(log|logger|logging|warnings)\.", start) is not None


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
                yield Change("comparison turned", number, f"{was[: found.start(1)]}{turned}{was[found.end(1) :]}")
        for found in re.finditer(r"(?<![\w.#$])\d+(?![\w.])", line):
            yield Change("constant plus one", number, f"{was[: found.start()]}{int(found[0]) + 1}{was[found.end() :]}")
        call = re.fullmatch(r"(\s*)(?!super|return|throw|console|import)[\w.$?#]+(\(.*\));", line)
        if call and _closing(call[2], 0) == len(call[2]) - 1:
            yield Change("call removed", number, f"{call[1]};")
        start = line.find("(", line.find("if ("))
        if re.search(r"\bif \(", line) and (end := _closing(line, start)):
            yield Change("branch swapped", number, f"{was[:start]}(!{was[start : end + 1]}){was[end + 1 :]}")


def _closing(line: str, start: int) -> int:
    """Return the place of the parenthesis that closes the one at `start`, 0 if it is on another line."""
    depth = 0
    for place in range(start, len(line)):
        depth += {"(": 1, ")": -1}.get(line[place], 0)
        if depth == 0:
            return place
    return 0


def scopes(text: str) -> list[str]:
    """Return for each line the dotted name of the function or class that it is in, by indentation."""
    result, stack = [], list[tuple[int, str]]()
    for line in text.split("\n"):
        indent = len(line) - len(line.lstrip())
        if line.strip() and line.strip()[0] not in ")]}":
            while stack and stack[-1][0] >= indent:
                stack.pop()
        if found := HEADER.match(line):
            stack.append((indent, found[found.lastindex or 0]))
        result.append(".".join(name for _, name in stack))
    return result


def draw(files: Mapping[str, str], count: int, seed: int) -> list[Mutation]:
    """Return mutations of all rooms: at least four each, the others by the rooms' lines of code, the kinds in turn."""
    rooms: dict[str, list[str]] = {}
    for path in sorted(files):
        if (room := room_of(path)) is not None:
            rooms.setdefault(room, []).append(path)
    sizes = {room: sum(files[path].count("\n") for path in paths) for room, paths in rooms.items()}
    rest, total, done = count - LEAST_PER_ROOM * len(rooms), sum(sizes.values()), 0
    drawn = []
    for room, paths in rooms.items():
        shares = [rest * lines // total for lines in (done, done + sizes[room])]
        done += sizes[room]
        rng = random.Random(f"{seed} {room}")
        drawn += _draw_room(room, {path: files[path] for path in paths}, LEAST_PER_ROOM + shares[1] - shares[0], rng)
    return drawn


def _draw_room(room: str, files: Mapping[str, str], count: int, rng: random.Random) -> list[Mutation]:
    of_kind: dict[str, list[tuple[str, Change]]] = {}
    for path, text in files.items():
        for change in python_changes(text) if path.endswith(".py") else js_changes(text):
            of_kind.setdefault(change.kind, []).append((path, change))
    for changes in of_kind.values():
        rng.shuffle(changes)
    mutations, lines = list[Mutation](), set[tuple[str, int]]()
    while len(mutations) < count and any(of_kind.values()):
        for kind, changes in of_kind.items():
            if changes and len(mutations) < count:
                path, change = changes.pop()
                if (path, change.number) not in lines:
                    lines.add((path, change.number))
                    mutations.append(_mutation(f"{room}-{len(mutations) + 1:02}", kind, path, files[path], change))
    return mutations


def _mutation(name: str, kind: str, path: str, text: str, change: Change) -> Mutation:
    lines, where = text.split("\n"), scopes(text)
    old = lines[change.number]
    nth = list(zip(where, lines, strict=True))[: change.number].count((where[change.number], old))
    return Mutation(name, kind, path, where[change.number], nth, old, change.new)


def find(mutation: Mutation, files: Mapping[str, str]) -> tuple[str, int] | None:
    """Return the file and line of a mutation, perhaps moved; `None` if the line is gone or there are several."""
    same = []
    for path, text in files.items():
        if path.endswith(Path(mutation.file).suffix) and room_of(path) and mutation.old.strip() in text:
            for number, (where, line) in enumerate(zip(scopes(text), text.split("\n"), strict=True)):
                if line.strip() == mutation.old.strip():
                    same.append((path, number, where))
    here = [found[:2] for found in same if found[0] == mutation.file and found[2] == mutation.where]
    if mutation.nth < len(here):
        return here[mutation.nth]
    name = mutation.where.rpartition(".")[2]
    moved = [found[:2] for found in same if found[2].rpartition(".")[2] == name]
    return moved[0] if len(moved) == 1 else None


def apply(mutation: Mutation, text: str, number: int) -> str:
    """Return the text with this one line changed, indented as it is there."""
    lines = text.split("\n")
    indent = lines[number][: len(lines[number]) - len(lines[number].lstrip())]
    lines[number] = indent + mutation.new.strip()
    return "\n".join(lines)

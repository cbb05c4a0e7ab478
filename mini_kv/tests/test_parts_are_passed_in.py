"""Nothing is patched from outside: parts are passed in through arguments.

Looks for the ways in which Python lets a program change another object behind its back. Three things are let be: tests
that take a package or a terminal away from the process, Triton's interpreter, which takes no observer, and tests that
are about what no argument can bring about, each with its reason.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TRITON = ROOT / "mini_kv" / "course" / "given" / "kernels" / "interpreter.py"
FOLDERS = ("mini_kv", "labs", "solutions", "book/mini_kv_book")
FILES = [ROOT / "conftest.py", *(file for folder in FOLDERS for file in sorted((ROOT / folder).rglob("*.py")))]
OWN = "mini_kv", "labs", "solutions"
FILES_THAT_MUST = {
    "mini_kv/tests/test_fail_at_every_call.py": (2, "an exception inside of every call, wherever it may come from"),
    "mini_kv/tests/attention/test_backends.py": (2, "the choice on a GPU, on a machine without one"),
    "mini_kv/tests/attention/test_triton.py": (1, "Triton without its interpreter, on a machine without a GPU"),
    "mini_kv/tests/attention/test_torch_backend.py": (5, "pieces so small that little tensors make many"),
    "mini_kv/tests/serve/test_endpoint.py": (1, "ten seconds of silence in a fifth of one: uvicorn makes the protocol"),
    "mini_kv/course/labkit/fixture.py": (1, "the engine's class with any one method of a learner's, for each test"),
    "mini_kv/course/labkit/plugin.py": (
        1,
        "pytest has no other way to name a case of a parametrized test by its id alone",
    ),
    "mini_kv/course/given/kernels/compiled.py": (1, "a setting of triton that is a function: told of each launch"),
    "mini_kv/dev/recorders/record_planning.py": (15, "vLLM that plans for a GPU, on a machine without one"),
    "mini_kv/other_engines.py": (3, "another engine, written for a GPU, on a machine without one"),
    "mini_kv/dev/peers/nano_vllm.py": (1, "another engine, whose configuration would load its model's library"),
}
"""How often a file patches, and what it is about that nothing could be passed in for."""


def patchings(source: str, *, is_test: bool = False) -> list[tuple[int, str]]:
    """Return the lines of a file that change something behind its back, and how."""
    tree = ast.parse(source)
    functions = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    foreign = {name for node in ast.walk(tree) for name in _foreign_names(node)}
    found = []
    for node in ast.walk(tree):
        found += [(getattr(node, "lineno", 0), what) for what in _patching(node, functions, foreign, is_test)]
    return sorted(found)


def _foreign_names(node: ast.AST) -> list[str]:
    """Return the names under which the statement imports what is not of this project."""
    if isinstance(node, ast.Import):
        return [(name.asname or name.name).partition(".")[0] for name in node.names if not name.name.startswith(OWN)]
    if isinstance(node, ast.ImportFrom) and not (node.module or "").startswith(OWN):
        return [name.asname or name.name for name in node.names]
    return []


def _patching(node: ast.AST, functions: set[str], foreign: set[str], is_test: bool) -> Iterator[str]:
    """Yield what a node changes behind its back: by an import, an attribute, a call or an assignment."""
    match node:
        case ast.Import() | ast.ImportFrom() if _imports_mock(node):
            yield "mock"
        case ast.Attribute(attr="__dict__" | "__code__", ctx=ast.Store()):
            yield "an object's inside replaced"
        case ast.Attribute(attr="co_name") if not is_test:
            yield "names of functions in tracebacks"
        case ast.Call():
            yield from _called(node, foreign)
        case ast.Assign(targets=targets, value=value):
            yield from _assigned(targets, value, functions, is_test)


def _imports_mock(node: ast.Import | ast.ImportFrom) -> bool:
    module = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
    return any(f"{module}{name.name}".startswith("unittest.mock") for name in node.names)


def _called(call: ast.Call, foreign: set[str]) -> Iterator[str]:
    match call:
        case ast.Call(func=ast.Name("type"), args=[_, _, _]) | ast.Call(func=ast.Attribute(attr="new_class")):
            yield "a class made by a call"
        case ast.Call(func=ast.Attribute(value=ast.Call(func=ast.Name("vars")), attr="update" | "setdefault")):
            yield "vars() changed"
        case ast.Call(func=ast.Attribute(attr="setattr"), args=[target, *_]) if not _is_foreign(target, foreign):
            yield "an attribute of this project replaced"
        case ast.Call(func=ast.Name("setattr"), args=[_, name, *_]) if not _is_public(name):
            yield "an attribute set by its name"


def _assigned(targets: list[ast.expr], value: ast.expr, functions: set[str], is_test: bool) -> Iterator[str]:
    is_function = isinstance(value, ast.Lambda) or (isinstance(value, ast.Name) and value.id in functions)
    for target in targets:
        match target:
            case ast.Attribute(value=ast.Name("self" | "cls")):
                pass
            case ast.Attribute(attr=name) if is_function:
                yield f"{name} replaced by a function"
            case ast.Attribute(attr=name) if name.startswith("_") and not name.endswith("__") and not is_test:
                yield f"{name} of another object"
            case ast.Subscript(value=ast.Call(func=ast.Name("vars"))):
                yield "vars() changed"


def _is_foreign(target: ast.expr, foreign: set[str]) -> bool:
    """Return whether it is of another package: `sys`, `torch.cuda`, "builtins.__import__"."""
    if isinstance(target, ast.Constant):
        return not str(target.value).startswith(OWN)
    while isinstance(target, ast.Attribute):
        target = target.value
    return isinstance(target, ast.Name) and target.id in foreign


def _is_public(name: ast.expr) -> bool:
    return isinstance(name, ast.Constant) and not str(name.value).startswith("_")


@pytest.mark.parametrize(
    ("source", "what"),
    [
        ("from unittest import mock", "mock"),
        ("import unittest.mock", "mock"),
        ("Own = type('Own', (Base,), {})", "a class made by a call"),
        ("vars(lookup).update(vars(group))", "vars() changed"),
        ("vars(kv)['free'] = free", "vars() changed"),
        ("mine.__dict__ = yours.__dict__", "an object's inside replaced"),
        ("kv._block_hasher = hasher", "_block_hasher of another object"),
        ("kv.make_pool = lambda new_block: pool", "make_pool replaced by a function"),
        ("def noting(output): ...\nrunner.execute_model = noting", "execute_model replaced by a function"),
        ("frame.f_code.co_name == '_abort'", "names of functions in tracebacks"),
        ("from mini_kv import cli\nmonkeypatch.setattr(cli, 'run', run)", "an attribute of this project replaced"),
        ("monkeypatch.setattr('mini_kv.cli.run', run)", "an attribute of this project replaced"),
        ("setattr(kv, name, value)", "an attribute set by its name"),
    ],
)
def test_each_way_of_patching_is_seen(source: str, what: str) -> None:
    assert [seen for _, seen in patchings(source)] == [what]


@pytest.mark.parametrize(
    "source",
    [
        "self._pool = pool",
        "super().__init__()\nself.hook = lambda: None",
        "import sys\nmonkeypatch.setattr(sys, 'stdin', stdin)",
        "monkeypatch.setattr('builtins.__import__', without_torch)",
        "pool.free_block_queue = queue",
        "class Pool(lab.BlockPool):\n    free_blocks = BlockPool.free_blocks",
    ],
)
def test_plain_code_is_let_be(source: str) -> None:
    assert patchings(source) == []


@pytest.mark.slow
def test_parts_are_passed_in_and_nothing_is_patched() -> None:
    """In the package, its tests, the labs, the solutions and the book's code."""
    found = {
        str(file.relative_to(ROOT)): lines
        for file in FILES
        if (lines := patchings(file.read_text(encoding="utf-8"), is_test="tests" in file.parts)) and file != TRITON
    }
    allowed = {file: number for file, (number, _) in FILES_THAT_MUST.items()}
    assert {file: lines for file, lines in found.items() if file not in allowed} == {}
    assert {file: len(lines) for file, lines in found.items() if file in allowed} == allowed


def test_the_one_file_that_patches_says_why() -> None:
    source = TRITON.read_text(encoding="utf-8")
    assert "has no argument for an observer" in " ".join(source.split())
    assert {what for _, what in patchings(source)} == {"mock"}

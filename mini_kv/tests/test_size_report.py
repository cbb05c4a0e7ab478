"""The size report counts what it says that it counts."""

import ast
import doctest
import importlib.util
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def size():
    spec = importlib.util.spec_from_file_location("size_report", ROOT / ".ci/size.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


BUDGETS = """
whole = 1200
[packages]
core = 500
viz = 900
bench = 20
[spine]
lines = 30
files = ["core/block.py", "core/pool.py"]
"""


@pytest.fixture
def write(tmp_path):
    """Write a file below mini_kv/ in a tree that has nothing but budgets, and return the tree."""
    (tmp_path / ".ci").mkdir()
    (tmp_path / ".ci/budgets.toml").write_text(BUDGETS, encoding="utf-8")

    def write(path, source):
        target = tmp_path / "mini_kv" / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(source, encoding="utf-8")
        return tmp_path

    return write


@pytest.fixture
def problems(size, capsys):
    """Return what the report complains of: its lines after the tables."""

    def problems(root):
        status = size.main([str(root)])
        found = capsys.readouterr().out.replace("\\", "/").rpartition("\n\n")[2].splitlines()
        assert (status == 0) == (found == ["size: within budget"])
        return found

    return problems


def test_examples_in_docstrings(size):
    assert doctest.testmod(size).failed == 0


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ("", 0),
        ("# a comment\n\nx = 1  # another\n", 1),
        ('"""A docstring\n\nof three lines."""\nx = 1\n', 1),
        ("class A:\n    x: int\n    'a note below an attribute'\n", 2),
        ("text = '''a string\nthat is\ndata'''\n", 3),
        ("call(\n    1,\n\n    # why\n    2,\n)\n", 4),
    ],
)
def test_a_code_line_holds_code(size, source, lines):
    assert len(size.code_lines(source)) == lines


def test_within_budget(problems, write):
    assert problems(write("core/block.py", "x = 1\n")) == ["size: within budget"]


def test_a_package_over_its_number_or_without_one(problems, write):
    """Subpackages count for their package."""
    write("core/part.py", "x = 1\n" * 391)
    write("core/sched/part.py", "x = 1\n" * 110)
    assert problems(write("tiers/memory.py", "x = 1\n" * 7)) == [
        "mini_kv/core: 501 code lines, the budget is 500",
        "mini_kv/tiers: 7 code lines, the budget is 0",
    ]


def test_a_number_rises_with_a_reason_which_is_shown(size, problems, write, capsys):
    root = write("policy/lru.py", "x = 1\n" * 7)
    (root / ".ci/budgets.toml").write_text(BUDGETS.replace("[spine]", "policy = 5\n[spine]"), encoding="utf-8")
    assert problems(root) == ["mini_kv/policy: 7 code lines, the budget is 5"]
    with (root / ".ci/budgets.toml").open("a", encoding="utf-8") as budgets:
        budgets.write('[[rise]]\npackage = "policy"\nlines = 2\n')
    assert problems(root) == ["policy rose without a reason"]
    with (root / ".ci/budgets.toml").open("a", encoding="utf-8") as budgets:
        budgets.write('reason = "a second strategy"\n')
    assert problems(root) == ["size: within budget"]
    size.main([str(root)])
    assert "policy rose by 2: a second strategy" in capsys.readouterr().out


def test_the_whole_and_the_spine(problems, write):
    for room in ("core", "viz"):
        write(f"{room}/one.py", "x = 1\n" * 390)
    write("core/block.py", "x = 1\n" * 20)
    write("viz/two.py", "x = 1\n" * 390)
    assert problems(write("core/pool.py", "x = 1\n" * 11)) == [
        "the spine: 31 code lines, the budget is 30",
        "the whole: 1201 code lines, the budget is 1200",
    ]


def test_a_long_file_and_a_long_function(problems, write):
    write("viz/long.py", "x = 1\n" * 401)
    assert problems(write("viz/tall.py", "def tall():\n" + "    x = 1\n" * 60)) == [
        "mini_kv/viz/long.py: 401 code lines, the budget is 400",
        "mini_kv/viz/tall.py:1: tall has 61 code lines, one screen is 60",
    ]


def test_a_function_that_decides_too_much(problems, write):
    """Tests may be long, but they are read as well."""
    asks = "def ask(a):\n    return a" + " or a" * 11 + "\n"
    write("viz/fine.py", asks)
    write("viz/asks.py", asks.replace("\n    return", "\n    if a: a = 1\n    return"))
    assert problems(write("tests/test_asks.py", asks.replace("or a\n", "or [b for b in a if b]\n"))) == [
        "mini_kv/tests/test_asks.py:1: ask has complexity 14, the limit is 12",
        "mini_kv/viz/asks.py:1: ask has complexity 13, the limit is 12",
    ]


def test_tests_are_free_and_benchmarks_are_a_package(size, problems, write, capsys):
    write("tests/test_long.py", "x = 1\n" * 900)
    root = write("bench/deep/speed.py", "x = 1\n" * 10)
    assert problems(root) == ["size: within budget"]
    size.main([str(root)])
    assert capsys.readouterr().out.split("package\n")[1].split()[:6] == ["10", "20", "bench", "10", "1200", "all"]


def test_set_prints_the_numbers_with_air(size, write, capsys):
    write("core/block.py", "x = 1\n" * 100)
    assert size.main(["--set", str(write("cli.py", "x = 1\n"))]) == 0
    assert tomllib.loads(capsys.readouterr().out) == {"packages": {".": 2, "core": 105}}


def test_the_spine_imports_no_other_room():
    """Who reads the engine in one evening is sent nowhere else."""
    spine = tomllib.loads((ROOT / ".ci/budgets.toml").read_text("utf-8"))["spine"]
    imported = {
        (node.module or "").split(".")[1]
        for name in spine["files"]
        for node in ast.walk(ast.parse((ROOT / "mini_kv" / name).read_text("utf-8")))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("mini_kv")
    }
    assert imported == set(spine["rooms"])

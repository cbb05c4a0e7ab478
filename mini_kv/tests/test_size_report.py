"""The size report counts what it says that it counts."""

import doctest
import importlib.util
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


@pytest.fixture
def write(tmp_path):
    """Write a file below mini_kv/ in an empty tree and return the tree."""

    def write(path, source):
        target = tmp_path / "mini_kv" / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(source, encoding="utf-8")
        return tmp_path

    return write


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


def test_within_budget(size, write, capsys):
    assert size.main(write("core/block.py", "x = 1\n")) == 0
    assert "size: within budget" in capsys.readouterr().out


def test_a_package_over_its_budget_is_named(size, write, capsys):
    for i in range(5):
        root = write(f"core/part{i}.py", "x = 1\n" * 391)
    assert size.main(root) == 1
    assert "mini_kv/core: 1955 code lines, the budget is 1950" in capsys.readouterr().out


def test_a_long_file_and_a_long_function_are_named(size, write, capsys):
    write("viz/long.py", "x = 1\n" * 401)
    root = write("viz/tall.py", "def tall():\n" + "    x = 1\n" * 60)
    assert size.main(root) == 1
    out = capsys.readouterr().out
    assert "long.py: 401 code lines, the budget is 400" in out
    assert "tall.py:1: tall has 61 code lines, one screen is 60" in out


def test_tests_are_free_and_benchmarks_count_for_no_package(size, write, capsys):
    write("tests/test_long.py", "x = 1\n" * 900)
    root = write("bench/speed.py", "x = 1\n" * 10)
    assert size.main(root) == 0
    assert "bench/speed.py" in (out := capsys.readouterr().out).replace("\\", "/")
    assert out.split("package\n")[1].split()[:3] == ["0", "-", "all"]

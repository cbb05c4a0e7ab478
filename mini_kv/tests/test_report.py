"""`make report` counts what it says that it counts, and compares with an older revision."""

import doctest
import importlib.util
import subprocess

import pytest
from mini_kv_book import counting
from mini_kv_book.places import ROOT

SETTINGS = '[tool.mini_kv.spine]\nfiles = ["core/block.py"]\n'
BLOCK = '''"""Named and known."""

LIMIT, _most = 1, 2


class Block:
    def ask(self, a):
        return [b for b in a if b] or a
'''
TEST_LAB = "import os\n\nLIMIT = 1\n\n\n@points(\n    1,\n)\ndef test_1(lab):\n    assert lab\n"


@pytest.fixture(scope="module")
def report():
    spec = importlib.util.spec_from_file_location("report", ROOT / ".ci/report.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def measured(report):
    """Return the tables of some files, by title."""

    def measured(files):
        tree = {path: text.encode() for path, text in files.items()}
        return {table.title: dict(table.rows) for table in report.measure(tree, ["mini_kv/core/block.py"])}

    return measured


def git(folder, *args):
    name = ("-c", "user.name=a", "-c", "user.email=a@b")
    subprocess.run(["git", *name, *args], cwd=folder, check=True, capture_output=True)


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
def test_a_code_line_holds_code(source, lines):
    assert len(counting.code_lines(source)) == lines


def test_the_example_in_its_docstring():
    assert doctest.testmod(counting).failed == 0


def test_code_names_words_and_functions_of_a_package(measured):
    tables = measured({"mini_kv/core/block.py": BLOCK, "README.md": "# Two words\n"})
    assert tables["code lines"] == {"mini_kv/core": 4, "all packages": 4, "the spine": 4}
    assert tables["public names"] == {"mini_kv/core": 2, "all packages": 2}
    assert tables["code lines of the longest functions"] == {"mini_kv/core/block.py: Block.ask": 2}
    assert tables["decisions of the most complex functions"] == {"mini_kv/core/block.py: Block.ask": 4}
    assert tables["words"] == {"README.md": 3}
    told = tables["discouraged words in docstrings"]
    assert (told["named"], told["known"], told["stands"]) == (1, 1, 0)


def test_each_kind_of_code_has_its_row(measured):
    tables = measured(
        {
            "mini_kv/tests/test_a.py": "x = 1\n",
            "mini_kv/cli.py": "x = 1\n",
            "book/a.js": "// why\n\nlet a\nlet b\n",
            "labs/lab-01/lab.toml": "# why\na = 1\n",
            "labs/lab-01/starter.py": "def half_written(\n",
            "notebooks/01.ipynb": '{"cells": [{"cell_type": "code", "source": ["# why\\n", "a = 1"]}]}',
            ".ci/run": "# why\ntrue\n",
            "setup.py": "x = 1\n",
        }
    )
    assert tables["code lines"] == {
        ".ci": 1,
        "JavaScript": 2,
        "TOML": 1,
        "labs": 1,
        "mini_kv": 1,
        "mini_kv/tests": 1,
        "notebooks": 1,
        "all packages": 1,
        "the spine": 0,
    }
    assert tables["counts"]["lines of the longest notebook cell"] == 2


def test_machinery_is_what_is_between_a_labs_tests(measured):
    """A test's decorator is part of the test."""
    tables = measured({"labs/lab-01/test_lab.py": TEST_LAB})
    assert tables["code lines of a lab"] == {"labs/lab-01/test_lab.py": 7}
    assert tables["% of a lab's tests that is machinery"] == {"labs/lab-01/test_lab.py": 14}


def test_an_older_revision_is_printed_with_the_difference(report, tmp_path):
    (tmp_path / "mini_kv/core").mkdir(parents=True)
    (tmp_path / "pyproject.toml").write_text(SETTINGS, encoding="utf-8")
    (tmp_path / "mini_kv/core/block.py").write_text(BLOCK, encoding="utf-8")
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "-m", "first")
    git(tmp_path, "tag", "v1")
    (tmp_path / "mini_kv/core/block.py").write_text(f"{BLOCK}\n\nx = 1\n", encoding="utf-8")
    (tmp_path / "mini_kv/viz").mkdir()
    (tmp_path / "mini_kv/viz/text.py").write_text("x = 1\n", encoding="utf-8")
    rows = report.page(tmp_path, "v1").splitlines()
    assert rows[:2] == ["| code lines | before | now | difference |", "|---|---:|---:|---:|"]
    assert {"| mini_kv/core | 4 | 5 | +1 |", "| mini_kv/viz | - | 1 | +1 |", "| TOML | 2 | 2 | +0 |"} <= set(rows)
    assert "| mini_kv/core | 5 |" in report.page(tmp_path, None).splitlines()


def test_an_unknown_revision_is_one_line(report, capsys):
    assert report.main(["--since", "no-such-revision"]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith("report.py: ") and "no-such-revision" in err


def test_a_page_weighs_as_much_as_it_loads(report, tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "style.css").write_bytes(b"x" * 70)
    html = '<link href="../style.css"><link href="../style.css"><script src="https://there/x.js"></script>'
    (tmp_path / "a/index.html").write_bytes(html.encode())
    whole, pages = report.weigh(tmp_path)
    assert whole.rows["**/*"] == 70 + len(html)
    assert pages.rows == {"a/index.html": 70 + len(html)}

"""A lab's tests are read as a story: few lines, and little between the tests."""

import importlib
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[3]
LABS = sorted(file.parent for file in ROOT.glob("labs/lab-*/test_lab.py"))
MOST_LINES = 450
MOST_MACHINERY = 0.15
MOST_HELPERS = 200


class Size(NamedTuple):
    """What a lab's test file holds."""

    lines: int
    """All of them, blank ones and docstrings too."""
    code: int
    """Lines of code; see `.ci/size.py`."""
    machinery: int
    """Lines of code outside imports and tests."""

    @property
    def share(self) -> float:
        return self.machinery / self.code


def measure(source: str) -> Size:
    """As the table of `.ci/house.py` counts, which imports its neighbour by name."""
    sys.path.insert(0, str(ROOT / ".ci"))
    try:
        machinery, code = importlib.import_module("house").machinery(source)
    finally:
        sys.path.remove(str(ROOT / ".ci"))
    return Size(len(source.splitlines()), code, machinery)


EXAMPLE = '''"""A lab."""

import os

LIMIT = 3


@points(
    1,
    "f",
)
def test_1(lab):
    """What it shows."""

    def check():
        assert lab

    check()  # in a test


def helper():
    # as it says
    return os.sep
'''


def test_machinery_is_what_stands_between_the_tests():
    """LIMIT and `helper` are machinery; the test's decorator and what is defined in it are the test's."""
    assert measure(EXAMPLE) == Size(lines=23, code=12, machinery=3)


@pytest.mark.parametrize("lab", LABS, ids=lambda lab: lab.name)
def test_a_labs_tests_are_a_story(lab: Path):
    size = measure((lab / "test_lab.py").read_text(encoding="utf-8"))
    assert (size.lines <= MOST_LINES, size.share <= MOST_MACHINERY) == (True, True), size


@pytest.mark.parametrize("lab", LABS, ids=lambda lab: lab.name)
def test_what_a_lab_needs_besides_is_small_and_has_no_tests(lab: Path):
    """Tests are found, told and counted in `test_lab.py` alone."""
    for besides in set(lab.glob("*.py")) - {lab / name for name in ("starter.py", "test_lab.py", "__init__.py")}:
        source = besides.read_text(encoding="utf-8")
        assert "def test_" not in source
        assert measure(source).code <= MOST_HELPERS

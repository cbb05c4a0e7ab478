"""A fresh copy of a lab's tests, with a few that no code can pass."""

import shutil
from pathlib import Path

from mini_kv.labkit.lab import Lab

CANARY = "(canary)"
"""The function that the tests below name. No code can pass these tests."""


CANARIES = f'''

class _EqualToAll:
    def __eq__(self, other):
        return True

    __hash__ = None


@points(1, "{CANARY}")
def test_NAME_a(lab):
    lab.expect("a number", 1, True)


@points(1, "{CANARY}")
def test_NAME_b(lab):
    lab.expect("a list", [1, 2], [1, 3])


@points(1, "{CANARY}")
def test_NAME_c(lab):
    lab.expect("a number", 7, _EqualToAll())


@points(1, "{CANARY}")
def test_NAME_d(lab):
    raise AssertionError("this always fails")
'''
"""Tests that always fail. If one passes, the submission has changed the judge itself."""


def fresh_copy(lab: Lab, folder: Path, name: str) -> list[str]:
    """Copy the files for the lab's tests to `folder`, with the canaries under this name. Return the canaries' names."""
    for file in ("conftest.py", "pyproject.toml"):
        shutil.copyfile(lab.root / file, folder / file)
    copy = folder / "labs" / lab.lab_id
    ignore = shutil.ignore_patterns("starter.py", "__pycache__", "README.md")
    shutil.copytree(lab.folder, copy, ignore=ignore)
    with (copy / "test_lab.py").open("a", encoding="utf-8") as file_:
        file_.write(CANARIES.replace("NAME", name))
    return [f"test_{name}_{letter}" for letter in "abcd"]

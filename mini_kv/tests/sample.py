"""A pytest plugin that runs a sample: the files that a package may be missing for, and a quarter of the other tests.

    pytest -p mini_kv.tests.sample

Every file is imported. A file that skips tests where something is missing runs whole, because that is what a machine
without the package tests. The quarter follows from the last commit's tree, so that all tests have their turn.
"""

import functools
import os
from pathlib import Path

import pytest

from mini_kv.tests.tree import drawn

ONE_OF = 4
SIGNS = ("importorskip", "skipif")


def pytest_configure() -> None:
    """Keep the option that loads this plugin from the pytests that tests start: they run what they ask for."""
    os.environ.pop("PYTEST_ADDOPTS", None)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out three of four tests of the files that run everywhere alike."""
    chosen, left_out = list[pytest.Item](), list[pytest.Item]()
    for item in items:
        (chosen if may_skip(item.path) or drawn(item.nodeid, ONE_OF) == 0 else left_out).append(item)
    config.hook.pytest_deselected(items=left_out)
    items[:] = chosen


@functools.cache
def may_skip(path: Path) -> bool:
    """Return whether tests of the file are skipped where a package is missing."""
    return any(sign in path.read_text(encoding="utf-8") for sign in SIGNS)

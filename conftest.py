"""Hands pytest to the labs' harness and the rule about skips. A run of one mark imports only the files that have it."""

from pathlib import Path

import pytest

FEW = ("audit", "book", "browser", "notebooks", "prose")
"""Marks of which few files have one. Each has a command of its own, such as `make e2e`."""

pytest_plugins = ["mini_kv.course.labkit.plugin", "mini_kv.tests.skips"]


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out a test file that does not contain the one mark asked for. To import all of them takes many seconds.

    Another mark, or an expression of several words, leaves out no file.
    """
    mark = config.option.markexpr
    if mark not in FEW or collection_path.suffix != ".py":
        return None
    return True if f"mark.{mark}" not in collection_path.read_text(encoding="utf-8") else None

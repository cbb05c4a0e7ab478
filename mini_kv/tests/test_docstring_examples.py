"""What docstrings show is what comes out."""

import doctest
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MODULES = [
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for path in sorted((ROOT / "mini_kv").rglob("*.py"))
    if "tests" not in path.parts and ">>> " in path.read_text(encoding="utf-8")
]


@pytest.mark.parametrize("name", MODULES)
def test_examples_come_out(name: str) -> None:
    module = pytest.importorskip(name, reason="some examples need PyTorch: make test")
    result = doctest.testmod(module)
    assert result.failed == 0 < result.attempted

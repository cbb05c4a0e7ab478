"""What the page of lab-16 says its commands print: how often each attack succeeds, and what isolation costs."""

import re
from pathlib import Path

import pytest

from mini_kv.cli import main

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(("test", "num_lines"), [("test_all", 8), ("test_15", 3)])
def test_the_page_quotes_what_the_story_prints(test: str, num_lines: int, monkeypatch, capsys):
    """Each naive function lets its attack succeed for all twenty seeds, and the solution for none."""
    page = (ROOT / "labs" / "lab-16" / "README.md").read_text(encoding="utf-8")
    block = re.search(rf"LAB_IMPL=solution mini-kv story 16 {test}\n```\n\n```text\n(.*?)```", page, re.DOTALL)
    monkeypatch.setenv("LAB_IMPL", "solution")
    monkeypatch.chdir(ROOT)
    assert main(["story", "16", test]) == 0
    printed = [line for line in capsys.readouterr().out.splitlines() if line.startswith("[")]
    assert block is not None
    assert block[1].splitlines() == printed[:num_lines]

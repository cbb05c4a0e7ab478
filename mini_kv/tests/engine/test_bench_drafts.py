"""The bench of drafts: the figures that the book shows are those that it finds."""

import json
from pathlib import Path

import pytest

from mini_kv.dev.draft_acceptance import main

RECORDED = Path(__file__).parents[3] / "book" / "data" / "drafts.json"


@pytest.mark.slow
def test_the_recorded_figures_are_found_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In float64 every machine finds the same tokens, so the same steps; drafts help where a text repeats itself."""
    assert main(["--json", str(tmp_path / "drafts.json")]) == 0
    found = json.loads((tmp_path / "drafts.json").read_text())
    assert found == json.loads(RECORDED.read_text(encoding="utf-8"))
    told = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in told[1:]] == ["told", "chat", "random"]
    saved = {name: row["steps"] - row["steps_with_drafts"] for name, row in found.items()}
    assert min(saved["told again"], saved["chat"]) > 50
    assert 0 <= saved["random"] < 5

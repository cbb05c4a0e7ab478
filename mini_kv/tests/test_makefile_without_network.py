"""What `make` says when pip cannot get anything: a sentence, whatever was asked of it."""

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PYTHON_WITHOUT_A_NETWORK = """#!/bin/sh
case "$*" in *"-m pip install"*) echo "ERROR: No matching distribution found" >&2; exit 1 ;; esac
"""
"""Stands in for the environment's Python: all is well with it, but its pip fails as it does without a network."""

EVERYTHING = (".ready", ".torch", ".book", ".lint", ".e2e", ".notebooks")


@pytest.mark.parametrize(
    ("target", "missing"),
    [
        ("start", ".ready"),
        ("lab-05", ".ready"),
        ("test", ".torch"),
        ("audit", ".torch"),
        ("lint", ".lint"),
        ("site", ".book"),
        ("e2e", ".e2e"),
        ("notebooks", ".notebooks"),
        ("constraints", ".lint"),
    ],
)
@pytest.mark.slow
def test_without_a_network_make_says_so(target: str, missing: str, tmp_path: Path) -> None:
    """Each target in an environment that lacks the one step it needs: pip's line, then ours."""
    make = shutil.which("make")
    if make is None:
        pytest.skip("what make says: there is no make on this machine")
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.write_text(PYTHON_WITHOUT_A_NETWORK, encoding="utf-8")
    python.chmod(0o755)
    for step in EVERYTHING:
        if step != missing:
            (tmp_path / step).touch()
    command = [make, "--no-print-directory", f"VENV={tmp_path}", target]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, encoding="utf-8", check=False)
    assert done.returncode == 2
    said = [line for line in done.stderr.splitlines() if not line.startswith("make")]
    assert said == [
        "ERROR: No matching distribution found",
        "pip could not install what is needed for this: see above. Is there a network?",
    ]
    assert not (tmp_path / missing).exists()

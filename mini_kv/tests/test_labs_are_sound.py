"""The audit of every lab, as `python -m mini_kv.labkit.audit` makes it: right code passes, wrong code is caught."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mini_kv.labkit.lab import load_lab

pytestmark = pytest.mark.audit
ROOT = Path(__file__).parents[2]
LABS = sorted((path.parent.name for path in ROOT.glob("labs/lab-*/lab.toml")), key=lambda lab: (lab != "lab-10", lab))
"""The one that compiles takes longest, so it comes first: two processes share them."""


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("lab", [pytest.param(lab, marks=pytest.mark.xdist_group(lab)) for lab in LABS])
def test_audit_finds_nothing_wrong(lab: str):
    """Full marks for the solution and each alternative, none for the starter, and no mutant survives."""
    audit = run_audit(lab)
    assert audit["findings"] == []
    full = audit["scores"]["solution"]
    right = {name: score for name, score in audit["scores"].items() if name == "solution" or name.startswith("alt_")}
    assert right == dict.fromkeys(right, full)
    assert len(right) >= 3
    assert audit["scores"]["starter"].startswith("0/")
    learners = [mutant for mutant in audit["kills"] if not mutant.startswith("engine-")]
    assert len(learners) >= 12
    assert all(audit["kills"].values())


@pytest.mark.xdist_group("lab-05")
def test_lab_05_catches_bugs_of_the_engine():
    """Behind `lab.make_kv` at least 14 bugs were put into the engine, one at a time; the story catches each."""
    bugs = {mutant: tests for mutant, tests in run_audit("lab-05")["kills"].items() if mutant.startswith("engine-")}
    assert len(bugs) >= 14
    assert all(bugs.values())


_AUDITS: dict[str, dict[str, Any]] = {}


def run_audit(lab: str) -> dict[str, Any]:
    """Run the audit in a process of its own, once per lab, and return what it found."""
    missing = load_lab(ROOT / "labs" / lab).missing
    if missing is not None:
        pytest.skip(missing)
    if lab not in _AUDITS:
        environment = {name: value for name, value in os.environ.items() if name not in ("LAB_IMPL", "LAB_SEED")}
        command = [sys.executable, "-m", "mini_kv.labkit.audit", lab, "--json"]
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        assert done.stdout, done.stderr
        _AUDITS[lab] = json.loads(done.stdout)[lab]
    return _AUDITS[lab]

"""The audit of every lab, as `python -m mini_kv.course.labkit.audit` makes it: right code passes, wrong code is caught.

Of a lab whose files are those of the last `--write`, a quarter of the wrong versions is played, chosen by the commit's
tree. MINI_KV_LONG plays all.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mini_kv.course.labkit.audit import load_mutants
from mini_kv.course.labkit.lab import load_lab
from mini_kv.tests.tree import tree

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
    assert len([mutant for mutant in load_mutants(load_lab(ROOT / "labs" / lab)) if mutant.module is None]) >= 12
    assert audit["kills"]
    assert all(audit["kills"].values())


@pytest.mark.xdist_group("lab-05")
def test_lab_05_catches_bugs_of_the_engine():
    """Behind `lab.make_kv` at least 14 bugs were put into the engine, one at a time; the story catches each."""
    bugs = {mutant.id for mutant in load_mutants(load_lab(ROOT / "labs/lab-05")) if mutant.module is not None}
    assert len(bugs) >= 14
    kills = run_audit("lab-05")["kills"]
    assert [mutant for mutant in kills if mutant in bugs and not kills[mutant]] == []


_AUDITS: dict[str, dict[str, Any]] = {}


def run_audit(lab: str) -> dict[str, Any]:
    """Run the audit in a process of its own, once per lab, and return what it found. Print how to repeat it."""
    missing = load_lab(ROOT / "labs" / lab).missing
    if missing is not None:
        pytest.skip(missing)
    sample = [] if os.environ.get("MINI_KV_LONG") else ["--sample", tree()]
    command = ["-m", "mini_kv.course.labkit.audit", lab, *sample]
    if lab not in _AUDITS:
        environment = {name: value for name, value in os.environ.items() if name not in ("LAB_IMPL", "LAB_SEED")}
        done = subprocess.run(
            [sys.executable, *command, "--json"], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
        )
        assert done.stdout, done.stderr
        _AUDITS[lab] = json.loads(done.stdout)[lab]
    print("\n".join([f"again: python {' '.join(command)}", *_AUDITS[lab]["notes"]]))
    return _AUDITS[lab]

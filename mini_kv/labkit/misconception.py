"""Names the idea behind a wrong answer if the learner's failures are exactly those of a wrong version that is known.

Every mutant of a lab is a plausible wrong version with the belief that leads to it. The audit runs each and stores its
fingerprint: which tests fail, and what each of them saw. A learner's run with the same fingerprint, to the letter, gets
the sentence. A wrong guess would be worse than none, so near is not enough.
"""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

from mini_kv.labkit.lab import Lab
from mini_kv.labkit.scoreboard import LabResult, State, all_ran


def fingerprint(results: Sequence[LabResult]) -> str:
    """Return a digest of the failed tests and what each saw. Tests that wait or are to do say nothing."""
    seen = sorted((result.test, result.observed) for result in results if result.state is State.FAIL)
    return hashlib.sha256(json.dumps(seen).encode()).hexdigest()[:16]


def fingerprint_file(lab: Lab) -> Path:
    """Return the file that holds the lab's fingerprints, each with its sentence."""
    return lab.folder / "fingerprints.json"


def name_misconception(lab: Lab, results: Sequence[LabResult]) -> str | None:
    """Return the sentence for exactly this outcome; `None` if there is none, nothing failed, or not all tests ran."""
    failed = any(result.state is State.FAIL for result in results)
    if not failed or not all_ran(lab, results) or not fingerprint_file(lab).is_file():
        return None
    known: dict[str, str] = json.loads(fingerprint_file(lab).read_text(encoding="utf-8"))
    return known.get(fingerprint(results))

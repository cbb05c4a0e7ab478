"""Names the belief behind a wrong function, if its test results equal those of a known wrong version.

Every mutant of a lab is a plausible wrong version with the belief that leads to it. The audit runs each and stores a
fingerprint of the function that it changes: the results and values of all its tests. A learner's function
with exactly the same fingerprint gets the belief. Other functions have no influence. A wrong belief would be worse than
none, so a similar fingerprint is not enough. One wrong value may have many causes, so after a single one the learner
reads only the question.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from mini_kv.course.labkit.lab import Lab
from mini_kv.course.labkit.scoreboard import LabResult, State


def fingerprints(results: Sequence[LabResult]) -> dict[str, str]:
    """Return a digest per function with a failed test.

    Property tests are left out, because their values depend on a seed. Tests without values, as after a timeout, are
    left out too. If only a part of the tests ran, or a test is TODO, the digest differs from that of every whole run.
    """
    digests = {}
    for function in dict.fromkeys(result.function for result in results):
        own = [result for result in results if result.function == function and result.stage != "property"]
        seen = [result for result in own if result.state is not State.FAIL or result.observed]
        if any(result.state is State.FAIL for result in seen):
            told = sorted((result.test, result.state, result.observed) for result in seen)
            digests[function] = hashlib.sha256(json.dumps(told).encode()).hexdigest()[:16]
    return digests


@dataclass(frozen=True, slots=True)
class Stored:
    """The content of a lab's `fingerprints.json`."""

    digest: str = ""
    """Digest of the files on which the audit played every mutant and found nothing wrong. Empty if there are none."""
    beliefs: dict[str, dict[str, str]] = field(default_factory=dict)
    """The beliefs by function and fingerprint."""


def _fingerprint_file(lab: Lab) -> Path:
    return lab.folder / "fingerprints.json"


def load_stored(lab: Lab) -> Stored:
    """Return what the audit has stored, or nothing if it never has."""
    file = _fingerprint_file(lab)
    if not file.is_file():
        return Stored()
    values = json.loads(file.read_text(encoding="utf-8"))
    texts = values["texts"]
    beliefs = {
        function: {digest: texts[number] for digest, number in known.items()}
        for function, known in values["beliefs"].items()
    }
    return Stored(values["digest"], beliefs)


def store(lab: Lab, stored: Stored) -> None:
    """Write the lab's `fingerprints.json`: each text once, and its number for each digest."""
    texts = sorted({text for known in stored.beliefs.values() for text in known.values()})
    beliefs = {
        function: {digest: texts.index(text) for digest, text in known.items()}
        for function, known in stored.beliefs.items()
    }
    values = {"digest": stored.digest, "texts": texts, "beliefs": beliefs}
    text = json.dumps(values, indent=1, sort_keys=True, ensure_ascii=False)
    _fingerprint_file(lab).write_text(text + "\n", encoding="utf-8")


def signs_of(results: Sequence[LabResult], function: str) -> int:
    """Return how many wrong values a function's fingerprint rests on."""
    own = [result for result in results if result.function == function and result.stage != "property"]
    return sum(result.signs for result in own if result.state is State.FAIL and result.observed)


def find_beliefs(lab: Lab, results: Sequence[LabResult]) -> dict[str, str]:
    """Return `Mutant.belief` for each function whose test results are exactly those of a known mutant."""
    known = load_stored(lab).beliefs
    found = {function: known.get(function, {}).get(digest) for function, digest in fingerprints(results).items()}
    return {function: belief for function, belief in found.items() if belief is not None}


def beliefs_for_learner(lab: Lab, results: Sequence[LabResult]) -> dict[str, str]:
    """Return the beliefs as their learner reads them: after a single wrong value the question alone, or nothing."""
    told = {}
    for function, belief in find_beliefs(lab, results).items():
        words = belief if signs_of(results, function) > 1 else belief.partition("\n")[2]
        if words:
            told[function] = words
    return told

"""What lab-05-examples needs: it runs a learner's examples on correct versions and on faulty ones."""

from collections.abc import Sequence

from mini_kv.labkit.detective.admissions import CORRECT_VERSIONS, FAULTY_VERSIONS, run_on_version
from mini_kv.labkit.detective.trial import Outcome
from mini_kv.labkit.fixture import InWords, LabUnderTest

LAST_CALLS = 4
"""The most calls that a failure lists."""


def accepts_all(lab: LabUnderTest, check: str) -> None:
    """Fail unless the examples pass every correct version and accuse a faulty one."""
    for version in CORRECT_VERSIONS:
        outcome, told = run_on_version(getattr(lab, check), version)
        what = f"{check} on a correct version: {version.title}"
        _no_mistake(lab, outcome, what, "no exception", told)
        if outcome.accused is not None:
            lab.fail(what, "no exception", outcome.accused, "", _last(told), seen=told)
    numbers = [number for number, version in enumerate(FAULTY_VERSIONS, start=1) if version.check == check]
    caught = [n for n in numbers if run_on_version(getattr(lab, check), FAULTY_VERSIONS[n - 1])[0].accused]
    if not caught:
        why = "examples without an assertion raise no false alarm, and find no fault"
        wanted = f"at least one of {', '.join(map(str, numbers))}"
        lab.fail(f"versions that {check} accuses", wanted, InWords("none"), why)


def catches(lab: LabUnderTest, number: int) -> None:
    """Fail unless the examples of its area accuse this version."""
    version = FAULTY_VERSIONS[number - 1]
    outcome, told = run_on_version(getattr(lab, version.check), version)
    _no_mistake(lab, outcome, f"{version.check} on version {number}", "AssertionError", told)
    if outcome.accused is None:
        what = f"version {number} passed {version.check}"
        lab.fail(what, "AssertionError", InWords("no exception"), "", _last(told))
    lab.note(f"{version.check} accuses version {number}: {outcome.said}")
    for call in told:
        lab.note(f"   {call}")


def _no_mistake(lab: LabUnderTest, outcome: Outcome, what: str, want: str, told: Sequence[str]) -> None:
    if outcome.mistake is not None:
        why = "only an AssertionError accuses a version: assert what you know before the call that fails"
        lab.fail(what, want, outcome.mistake, why, _last(told))


def _last(told: Sequence[str]) -> list[str]:
    return [call[:96] for call in told[-LAST_CALLS:]]

"""Grades a learner's examples: they must not accuse correct subjects, and must accuse the faulty ones.

For lab-02-examples and lab-05-examples, whose subjects are queues and versions of the admission.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mini_kv.course.given.outcomes import Outcome, run_check
from mini_kv.course.given.subjects import Correct, Faulty
from mini_kv.course.labkit.fixture import InWords, LabUnderTest

LAST_CALLS = 4
"""The most calls that a failure lists."""


@dataclass(frozen=True, slots=True)
class Examples:
    """The subjects of a lab, and how its examples run on one of them."""

    noun: str
    """What a failure calls a subject."""
    kind: Callable[..., Any]
    """Makes what an example gets, such as `QueueUnderTest`."""
    correct: Sequence[Correct]
    faulty: Sequence[Faulty]
    hint: str
    """What a learner reads whose examples raise another exception than an AssertionError on a correct subject."""
    contract: Mapping[str, str]
    """The sentences of README for each call."""
    left_free: str
    """What README leaves free."""

    def accepts_all(self, lab: LabUnderTest, check: str) -> None:
        """Fail unless the examples pass every correct subject and accuse a faulty one."""
        for correct in self.correct:
            outcome = self._run(lab, check, correct)
            what = f"{check} on a correct {self.noun}: {correct.title}"
            self._no_mistake(lab, outcome, what, "no exception")
            if outcome.accused is not None:
                why = self._why(lab, check, outcome.calls)
                lab.fail(what, "no exception", outcome.accused, why, _last(outcome), seen=outcome.calls)
        numbers = [number for number, faulty in enumerate(self.faulty, start=1) if faulty.check == check]
        if not any(self._run(lab, check, self.faulty[number - 1]).failed for number in numbers):
            why = "examples without an assertion raise no false alarm, and find no fault"
            wanted = f"at least one of {', '.join(map(str, numbers))}"
            lab.fail(f"{self.noun}s that {check} accuses", wanted, InWords("none"), why)

    def _run(self, lab: LabUnderTest, check: str, subject: Correct | Faulty) -> Outcome:
        """Run a function of the learner's on one subject."""
        return run_check(getattr(lab, check), subject.make, self.kind)

    def _why(self, lab: LabUnderTest, check: str, told: Sequence[str]) -> str:
        """Return what the contract says on the last call before the false alarm, or that it leaves the result free."""
        accused = [correct for correct in self.correct if self._run(lab, check, correct).accused]
        if len(accused) < len(self.correct):
            return f"not every correct {self.noun} is accused. The contract leaves free: {self.left_free}"
        names = [call.strip().partition("(")[0] for call in reversed(told)]
        return next((f"the contract: {self.contract[name]}" for name in names if name in self.contract), "")

    def catches(self, lab: LabUnderTest, number: int) -> None:
        """Fail unless the examples of its area accuse this subject.

        An `AssertionError` accuses it. So does another exception, if the examples pass every correct subject.
        """
        faulty = self.faulty[number - 1]
        check = faulty.check
        outcome = self._run(lab, check, faulty)
        if not (outcome.failed and self._passes_correct(lab, check)):
            self._no_mistake(lab, outcome, f"{check} on {self.noun} {number}", "AssertionError")
        if not outcome.failed:
            what = f"{self.noun} {number} passed {check}"
            lab.fail(what, "AssertionError", InWords("no exception"), "", _last(outcome))
        lab.note(f"{check} accuses {self.noun} {number}: {outcome.said}")
        for call in outcome.calls:
            lab.note(f"   {call}")

    def _passes_correct(self, lab: LabUnderTest, check: str) -> bool:
        """Return whether the examples raise no exception on any correct subject."""
        outcomes = (self._run(lab, check, correct) for correct in self.correct)
        return not any(outcome.accused or outcome.mistake for outcome in outcomes)

    def _no_mistake(self, lab: LabUnderTest, outcome: Outcome, what: str, want: str) -> None:
        if outcome.mistake is not None:
            lab.fail(what, want, outcome.mistake, self.hint, _last(outcome))


def _last(outcome: Outcome) -> list[str]:
    return [call[:96] for call in outcome.calls[-LAST_CALLS:]]

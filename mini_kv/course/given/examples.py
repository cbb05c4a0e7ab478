"""Grades a learner's examples: they must not accuse correct subjects, and must accuse the faulty ones.

For lab-02-examples and lab-05-examples, whose subjects are queues and versions of the admission.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mini_kv.course.given.checks import Outcome
from mini_kv.course.labkit.fixture import InWords, LabUnderTest

LAST_CALLS = 4
"""The most calls that a failure lists."""


@dataclass(frozen=True, slots=True)
class Examples:
    """The subjects of a lab, and how its examples run on one of them."""

    noun: str
    """What a failure calls a subject."""
    correct: Sequence[tuple[str, Any]]
    """Titles and correct subjects."""
    faulty: Sequence[tuple[str, Any]]
    """For each faulty subject the function whose examples must accuse it, and the subject."""
    run: Callable[[Any, Any], tuple[Outcome, list[str]]]
    """Runs a function on a subject. Returns the outcome, and the calls that it made."""
    hint: str
    """What a learner reads whose examples raise another exception than an AssertionError on a correct subject."""
    contract: Mapping[str, str]
    """The sentences of README for each call."""
    left_free: str
    """What README leaves free."""

    def accepts_all(self, lab: LabUnderTest, check: str) -> None:
        """Fail unless the examples pass every correct subject and accuse a faulty one."""
        for title, subject in self.correct:
            outcome, told = self.run(getattr(lab, check), subject)
            what = f"{check} on a correct {self.noun}: {title}"
            self._no_mistake(lab, outcome, what, "no exception", told)
            if outcome.accused is not None:
                lab.fail(what, "no exception", outcome.accused, self._why(lab, check, told), _last(told), seen=told)
        numbers = [number for number, (name, _) in enumerate(self.faulty, start=1) if name == check]
        if not any(self.run(getattr(lab, check), self.faulty[number - 1][1])[0].failed for number in numbers):
            why = "examples without an assertion raise no false alarm, and find no fault"
            wanted = f"at least one of {', '.join(map(str, numbers))}"
            lab.fail(f"{self.noun}s that {check} accuses", wanted, InWords("none"), why)

    def _why(self, lab: LabUnderTest, check: str, told: Sequence[str]) -> str:
        """Return what the contract says on the last call before the false alarm, or that it leaves the result free."""
        accused = [title for title, subject in self.correct if self.run(getattr(lab, check), subject)[0].accused]
        if len(accused) < len(self.correct):
            return f"not every correct {self.noun} is accused. The contract leaves free: {self.left_free}"
        names = [call.strip().partition("(")[0] for call in reversed(told)]
        return next((f"the contract: {self.contract[name]}" for name in names if name in self.contract), "")

    def catches(self, lab: LabUnderTest, number: int) -> None:
        """Fail unless the examples of its area accuse this subject.

        An `AssertionError` accuses it. So does another exception, if the examples pass every correct subject.
        """
        check, subject = self.faulty[number - 1]
        outcome, told = self.run(getattr(lab, check), subject)
        if not (outcome.failed and self._passes_correct(lab, check)):
            self._no_mistake(lab, outcome, f"{check} on {self.noun} {number}", "AssertionError", told)
        if not outcome.failed:
            what = f"{self.noun} {number} passed {check}"
            lab.fail(what, "AssertionError", InWords("no exception"), "", _last(told))
        lab.note(f"{check} accuses {self.noun} {number}: {outcome.said}")
        for call in told:
            lab.note(f"   {call}")

    def _passes_correct(self, lab: LabUnderTest, check: str) -> bool:
        """Return whether the examples raise no exception on any correct subject."""
        outcomes = (self.run(getattr(lab, check), subject)[0] for _, subject in self.correct)
        return not any(outcome.accused or outcome.mistake for outcome in outcomes)

    def _no_mistake(self, lab: LabUnderTest, outcome: Outcome, what: str, want: str, told: Sequence[str]) -> None:
        if outcome.mistake is not None:
            lab.fail(what, want, outcome.mistake, self.hint, _last(told))


def _last(told: Sequence[str]) -> list[str]:
    return [call[:96] for call in told[-LAST_CALLS:]]

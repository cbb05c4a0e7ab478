"""Grades a learner's examples: they must not accuse correct subjects, and must accuse the faulty ones.

For lab-02-examples and lab-05-examples, whose subjects are queues and versions of the admission.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mini_kv.course.given.outcomes import Outcome, contradicted_rule, run_check
from mini_kv.course.given.subjects import Correct, Faulty, Misread
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
    misread: Sequence[Misread]
    """What readers expect who have misread the contract."""
    rules: Mapping[str, int]
    """The sentence of README's contract that is most likely meant, by the last call before a false alarm."""
    left_free: str
    """What README leaves free."""

    def accepts_all(self, lab: LabUnderTest, check: str) -> None:
        """Fail unless the examples pass every correct subject and accuse a faulty one."""
        for correct in self.correct:
            outcome = self._run(lab, check, correct)
            what = f"{check} on a correct {self.noun}: {correct.title}"
            if outcome.mistake is not None:
                why = self._why(lab, check, outcome) or self.hint
                lab.fail(what, "no exception", outcome.mistake, why, _last(outcome))
            if outcome.accused is not None:
                why = self._why(lab, check, outcome)
                lab.fail(what, "no exception", outcome.accused, why, _last(outcome), seen=outcome.calls)
        numbers = [number for number, faulty in enumerate(self.faulty, start=1) if faulty.check == check]
        if not any(self._run(lab, check, self.faulty[number - 1]).failed for number in numbers):
            why = "examples without an assertion raise no false alarm, and find no fault"
            wanted = f"at least one of {', '.join(map(str, numbers))}"
            lab.fail(f"{self.noun}s that {check} accuses", wanted, InWords("none"), why)

    def _run(self, lab: LabUnderTest, check: str, subject: Correct | Faulty) -> Outcome:
        """Run a function of the learner's on one subject."""
        return run_check(getattr(lab, check), subject.make, self.kind)

    def _why(self, lab: LabUnderTest, check: str, alarm: Outcome) -> str:
        """Return the sentence of the contract that a false alarm contradicts, or that it leaves the result free."""
        accused = [correct for correct in self.correct if self._run(lab, check, correct).failed]
        if alarm.accused is not None and len(accused) < len(self.correct):
            return f"not every correct {self.noun} is accused. The contract leaves free: {self.left_free}"
        wrong = [*self.misread, *self.faulty]
        rule = contradicted_rule(getattr(lab, check), alarm, wrong, lab.implementation.file, self.kind)
        if alarm.accused is not None and not rule:
            names = [call.strip().partition("(")[0] for call in reversed(alarm.calls)]
            rule = next((self.rules[name] for name in names if name in self.rules), 0)
        return f"your example contradicts {lab.sentence(rule)}" if rule else ""

    def catches(self, lab: LabUnderTest, number: int) -> None:
        """Fail unless the examples of its area accuse this subject.

        An `AssertionError` accuses it. So does another exception, if the examples pass every correct subject.
        """
        faulty = self.faulty[number - 1]
        check = faulty.check
        outcome = self._run(lab, check, faulty)
        if outcome.mistake is not None and not (outcome.failed and self._passes_correct(lab, check)):
            what = f"{check} on {self.noun} {number}"
            lab.fail(what, "AssertionError", outcome.mistake, self.hint, _last(outcome))
        if not outcome.failed:
            what = f"{self.noun} {number} passed {check}"
            why = f"no example of yours covers {lab.sentence(faulty.rule)}"
            lab.fail(what, "AssertionError", InWords("no exception"), why, _last(outcome))
        lab.note(f"{check} accuses {self.noun} {number}: {outcome.said}")
        for call in outcome.calls:
            lab.note(f"   {call}")

    def _passes_correct(self, lab: LabUnderTest, check: str) -> bool:
        """Return whether the examples raise no exception on any correct subject."""
        outcomes = (self._run(lab, check, correct) for correct in self.correct)
        return not any(outcome.accused or outcome.mistake for outcome in outcomes)


def _last(outcome: Outcome) -> list[str]:
    return [call[:96] for call in outcome.calls[-LAST_CALLS:]]

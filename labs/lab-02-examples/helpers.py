"""What lab-02-examples needs: it runs a learner's examples on correct queues and on faulty ones."""

from collections.abc import Sequence

from mini_kv.labkit.detective.queues import CORRECT_QUEUES, FAULTY_QUEUES, run_on_queue
from mini_kv.labkit.detective.trial import Outcome
from mini_kv.labkit.fixture import InWords, LabUnderTest

LAST_CALLS = 4
"""The most calls that a failure lists."""


def accepts_all(lab: LabUnderTest, check: str) -> None:
    """Fail unless the examples pass every correct queue and accuse a faulty one."""
    for title, make in CORRECT_QUEUES:
        outcome, told = run_on_queue(getattr(lab, check), make)
        what = f"{check} on a correct queue: {title}"
        _no_mistake(lab, outcome, what, "no exception", told)
        if outcome.accused is not None:
            lab.fail(what, "no exception", outcome.accused, "", _last(told), seen=told)
    numbers = [number for number, queue in enumerate(FAULTY_QUEUES, start=1) if queue.check == check]
    caught = [n for n in numbers if run_on_queue(getattr(lab, check), FAULTY_QUEUES[n - 1].make)[0].accused]
    if not caught:
        why = "examples without an assertion raise no false alarm, and find no fault"
        wanted = f"at least one of {', '.join(map(str, numbers))}"
        lab.fail(f"queues that {check} accuses", wanted, InWords("none"), why)


def catches(lab: LabUnderTest, number: int) -> None:
    """Fail unless the examples of its area accuse this queue."""
    queue = FAULTY_QUEUES[number - 1]
    outcome, told = run_on_queue(getattr(lab, queue.check), queue.make)
    _no_mistake(lab, outcome, f"{queue.check} on queue {number}", "AssertionError", told)
    if outcome.accused is None:
        lab.fail(f"queue {number} passed {queue.check}", "AssertionError", InWords("no exception"), "", _last(told))
    lab.note(f"{queue.check} accuses queue {number}: {outcome.said}")
    for call in told:
        lab.note(f"   {call}")


def _no_mistake(lab: LabUnderTest, outcome: Outcome, what: str, want: str, told: Sequence[str]) -> None:
    if outcome.mistake is not None:
        why = "only an AssertionError accuses a queue. Use is_refused for a call that must raise"
        lab.fail(what, want, outcome.mistake, why, _last(told))


def _last(told: Sequence[str]) -> list[str]:
    return [call[:96] for call in told[-LAST_CALLS:]]

"""What lab-15 needs: it runs a learner's check on correct managers and on suspects, and tells the story."""

from mini_kv.labkit.detective.correct_managers import CORRECT, Correct, shuffled
from mini_kv.labkit.detective.manager_under_test import MAX_CALLS, TooManyCallsError
from mini_kv.labkit.detective.replay import find_difference
from mini_kv.labkit.detective.suspects import SUSPECTS
from mini_kv.labkit.detective.trial import Outcome, run_check, suspects_of
from mini_kv.labkit.fixture import InWords, LabUnderTest

CHECKS = ("check_sharing", "check_slots", "check_refusals", "check_freeing", "check_eviction", "check_identity")
SHUFFLED = tuple(shuffled(seed) for seed in (1, 2, 3))
LAST_CALLS = 12
"""The most calls of a check that its story lists."""
NOT_AN_ACCUSATION = (
    "only an AssertionError accuses a manager. Another exception may be a mistake of the check,"
    " so assert what you know before the call that fails"
)


def accepts_all(lab: LabUnderTest, check: str) -> None:
    """Fail unless the check passes every correct manager and accuses a suspect."""
    alarms: list[tuple[Correct, Outcome]] = []
    for correct in (*CORRECT, *SHUFFLED):
        outcome = run_check(getattr(lab, check), correct.make)
        _no_mistake(lab, outcome, f"{check} on a correct manager ({correct.title})", "no exception")
        if outcome.accused is not None:
            alarms.append((correct, outcome))
    if alarms:
        _fail_for_alarm(lab, check, *alarms[0], [correct.title for correct, _ in alarms])
    suspects = suspects_of(check)
    numbers = ", ".join(str(suspect.number) for suspect in suspects)
    if not any(run_check(getattr(lab, check), suspect.make).accused for suspect in suspects):
        why = "a check that accuses no manager raises no false alarm, and finds no fault"
        lab.fail(f"managers that {check} accuses", f"at least one of {numbers}", InWords("none"), why)


def accepts_shuffled(lab: LabUnderTest, check: str, seed: int) -> None:
    """Fail unless the check passes a correct manager that allocates unused blocks in a random order."""
    correct = shuffled(seed)
    outcome = run_check(getattr(lab, check), correct.make)
    _no_mistake(lab, outcome, f"{check} on a correct manager ({correct.title})", "no exception")
    if outcome.accused is not None:
        _fail_for_alarm(lab, check, correct, outcome, [correct.title])


def catches(lab: LabUnderTest, number: int) -> None:
    """Fail unless the check of its area accuses this suspect. If it does, tell the shortest story of the fault."""
    suspect = SUSPECTS[number - 1]
    outcome = run_check(getattr(lab, suspect.check), suspect.make)
    _no_mistake(lab, outcome, f"{suspect.check} on {suspect.name}", "AssertionError")
    if outcome.accused is None:
        _note_calls(lab, outcome)
        what = f"{suspect.name} passed {suspect.check}"
        lab.fail(what, "AssertionError", InWords("no exception"), picture=[f"the check made {outcome.told}"])
    difference = find_difference(outcome.session.managers[-1], suspect.make)
    said = str(outcome.accused) or "an assertion without a message"
    lab.note(f"{suspect.check} accuses {suspect.name}: {said}")
    if difference is None:
        lab.note("Its answers to these calls are those of the engine's own manager.")
        return
    how_many = "The fewest of its calls that show" if difference.is_shortest else "Calls that show"
    lab.note(f"{how_many} the fault: {len(difference.calls)} (#=cached  xN=ref_cnt)")
    for text in difference.told():
        lab.note(text)


def _no_mistake(lab: LabUnderTest, outcome: Outcome, what: str, want: str) -> None:
    """Fail if the check ended with another exception, or made too many calls."""
    if isinstance(outcome.mistake, TooManyCallsError):
        lab.fail(f"calls of {what}", f"at most {MAX_CALLS}", outcome.mistake, "use a smaller pool, or shorter stories")
    if outcome.mistake is not None:
        lab.fail(what, want, outcome.mistake, NOT_AN_ACCUSATION)


def _fail_for_alarm(lab: LabUnderTest, check: str, correct: Correct, outcome: Outcome, titles: list[str]) -> None:
    """Fail with the false alarm on this manager. `titles` are all that the check accuses."""
    _note_calls(lab, outcome)
    num_correct = len(CORRECT) + len(SHUFFLED)
    picture = [f"{len(titles)} of {num_correct} correct managers are accused"] * (len(titles) > 1)
    why = "no manager that keeps the contract does this: read its sentence again" if len(titles) == num_correct else ""
    what = f"{check} on a correct manager: {correct.title}"
    lab.fail(what, "no exception", outcome.accused, why, picture, titles)


def _note_calls(lab: LabUnderTest, outcome: Outcome) -> None:
    """Tell the last calls of the check."""
    if outcome.session.managers:
        lab.note("The last calls of the check:")
        for call in outcome.session.managers[-1].calls[-LAST_CALLS:]:
            lab.note(f"   {call}")

"""What lab-15 needs: it runs a learner's check on correct managers and on suspects, and tells the story."""

import textwrap
from collections.abc import Sequence

from mini_kv.course.given.correct_managers import CORRECT, shuffled
from mini_kv.course.given.faulty_managers import FAULTY_MANAGERS, MISREAD_MANAGERS
from mini_kv.course.given.manager_under_test import MAX_CALLS, TooManyCallsError
from mini_kv.course.given.outcomes import Outcome, contradicted_rule, run_check
from mini_kv.course.given.replayed_checks import find_difference
from mini_kv.course.given.subjects import Correct
from mini_kv.course.labkit.fixture import InWords, LabUnderTest

CHECKS = ("check_sharing", "check_slots", "check_refusals", "check_freeing", "check_eviction", "check_identity")
MEANT = {"get_computed_blocks": 1, "get_block_ids": 5, "num_free_blocks": 11, "allocate_slots": 8}
"""The sentence that a check most likely contradicts, by its last call, if no wrong manager does what it expects."""
SHUFFLED = tuple(shuffled(seed) for seed in (1, 2, 3))
LAST_CALLS = 12
"""The most calls of a check that its story lists."""
TOLD_CALLS = 3
"""The most calls of a check that its failure lists."""
WIDTH = 96
NOT_AN_ACCUSATION = "an exception accuses a manager only if the check passes every correct one: see its test above"
OWN_MISTAKE = "this manager is correct, so the exception is a mistake in your check"
NOTHING_EVICTED = (
    "no block of your pools was allocated twice, so none was evicted: use pools that are too small for all requests"
)
FAILS_ELSEWHERE = "the check accuses the engine's own manager, too. Mend that first: see its test above"


def check_of(number: int) -> str:
    """Return the check that has to accuse this suspect."""
    return FAULTY_MANAGERS[number - 1].check


def accepts_all(lab: LabUnderTest, check: str) -> None:
    """Fail unless the check passes every correct manager and accuses a suspect."""
    alarms: list[tuple[Correct, Outcome]] = []
    for correct in (*CORRECT, *SHUFFLED):
        outcome = run_check(getattr(lab, check), correct.make)
        _no_mistake(lab, outcome, f"{check} on a correct manager ({correct.title})", "no exception", OWN_MISTAKE)
        if outcome.accused is not None:
            alarms.append((correct, outcome))
    if len(alarms) == len(CORRECT) + len(SHUFFLED):
        _fail_on_all(lab, check, alarms[0][1])
    if alarms:
        titles = [correct.title for correct, _ in alarms]
        what = f"correct managers that are accused: {len(titles)} of {len(CORRECT) + len(SHUFFLED)}"
        _fail_for_alarm(lab, check, *alarms[0], picture=[what], seen=titles)
    numbers = [number for number, faulty in enumerate(FAULTY_MANAGERS, start=1) if faulty.check == check]
    if not any(run_check(getattr(lab, check), FAULTY_MANAGERS[number - 1].make).failed for number in numbers):
        why = "a check that accuses no manager raises no false alarm, and finds no fault"
        if check == "check_eviction" and not _allocates_a_block_again(run_check(getattr(lab, check), CORRECT[0].make)):
            why = NOTHING_EVICTED
        wanted = f"at least one of {', '.join(map(str, numbers))}"
        lab.fail(f"managers that {check} accuses", wanted, InWords("none"), why)


def accepts_shuffled(lab: LabUnderTest, check: str, seed: int) -> None:
    """Fail unless the check passes a correct manager that allocates the uncached blocks in a random order."""
    correct = shuffled(seed)
    outcome = run_check(getattr(lab, check), correct.make)
    _no_mistake(lab, outcome, f"{check} on a correct manager ({correct.title})", "no exception", OWN_MISTAKE)
    if outcome.accused is not None:
        why = FAILS_ELSEWHERE if run_check(getattr(lab, check), CORRECT[0].make).accused else ""
        _fail_for_alarm(lab, check, correct, outcome, why)


def catches(lab: LabUnderTest, number: int) -> None:
    """Fail unless the check of its area accuses this suspect. If it does, tell the shortest story of the fault.

    An `AssertionError` accuses it. So does another exception, if the check passes every correct manager.
    """
    suspect, name = FAULTY_MANAGERS[number - 1], f"manager {number} of {len(FAULTY_MANAGERS)}"
    outcome = run_check(getattr(lab, suspect.check), suspect.make)
    if not (outcome.failed and _passes_correct(lab, suspect.check)):
        _no_mistake(lab, outcome, f"{suspect.check} on {name}", "AssertionError", NOT_AN_ACCUSATION)
    if not outcome.failed:
        _note_calls(lab, outcome)
        what = f"{name} passed {suspect.check}"
        picture = [f"the check made {outcome.told}"]
        why = f"your check does not cover {lab.sentence(suspect.rule)} Ask: {suspect.ask}"
        lab.fail(what, "AssertionError", InWords("no exception"), why, picture)
    difference = find_difference(outcome.session.made[-1], suspect.make)
    lab.note(f"{suspect.check} accuses {name}: {outcome.said}")
    if difference is None:
        lab.note("Its answers to these calls are those of the engine's own manager.")
        return
    how_many = "The fewest of its calls that show" if difference.is_shortest else "Calls that show"
    lab.note(f"{how_many} the fault: {len(difference.calls)} (#=cached  xN=ref_cnt)")
    for text in difference.told():
        lab.note(text)


def _passes_correct(lab: LabUnderTest, check: str) -> bool:
    """Return whether the check raises no exception on any correct manager."""
    outcomes = (run_check(getattr(lab, check), correct.make) for correct in (*CORRECT, *SHUFFLED))
    return not any(outcome.accused or outcome.mistake for outcome in outcomes)


def _no_mistake(lab: LabUnderTest, outcome: Outcome, what: str, want: str, why: str) -> None:
    """Fail if the check ended with another exception, or made too many calls."""
    if outcome.mistake is None:
        return
    _note_calls(lab, outcome)
    if isinstance(outcome.mistake, TooManyCallsError):
        lab.fail(f"calls of {what}", f"at most {MAX_CALLS}", outcome.mistake, "use a smaller pool, or shorter stories")
    text = str(outcome.mistake)
    is_cut = len(text) > WIDTH // 2  # the comparison shows only its beginning
    picture = textwrap.wrap(text, WIDTH, max_lines=2) if is_cut else []
    lab.fail(what, want, outcome.mistake, why, [*picture, *_last_calls(outcome)[-2:]])


def _fail_on_all(lab: LabUnderTest, check: str, outcome: Outcome) -> None:
    """Fail with a false alarm on each correct manager. `outcome` is that of the engine's own.

    Checks with different mistakes all fail in this way, so the names of all calls and the last answer distinguish them.
    """
    why = _not_counted(outcome) or _contradicted(lab, check, outcome)
    calls = outcome.session.made[-1].calls if outcome.session.made else []
    seen = [[call.name for call in calls], calls[-1].answer if calls else ""]
    _fail_for_alarm(lab, check, CORRECT[0], outcome, why, ["all correct managers are accused"], seen)


def _fail_for_alarm(
    lab: LabUnderTest,
    check: str,
    correct: Correct,
    outcome: Outcome,
    why: str = "",
    picture: Sequence[str] = (),
    seen: object = None,
) -> None:
    """Fail with the false alarm on this manager, and the last answers of the manager."""
    _note_calls(lab, outcome)
    what = f"{check} on a correct manager: {correct.title}"
    lab.fail(what, "no exception", outcome.accused, why, [*picture, *_last_calls(outcome)], seen)


def _contradicted(lab: LabUnderTest, check: str, outcome: Outcome) -> str:
    """Return the sentence of the contract that a check contradicts which accuses all correct managers."""
    wrong = [*MISREAD_MANAGERS, *FAULTY_MANAGERS]
    own = [manager for manager in wrong if manager.check == check]
    rule = contradicted_rule(getattr(lab, check), outcome, own, lab.implementation.file)
    rule = rule or contradicted_rule(getattr(lab, check), outcome, wrong, lab.implementation.file)
    calls = outcome.session.made[-1].calls if outcome.session.made else []
    asked = next((call.name for call in reversed(calls) if call.name in MEANT), "")
    rule = rule or (MEANT[asked] if asked else 0)
    return f"your check contradicts {lab.sentence(rule)}" if rule else "no correct manager does what the check expects"


def _not_counted(outcome: Outcome) -> str:
    """Return the reason of a failure if the check forgot to count the tokens of a step, or ""."""
    counts: dict[str, int] = {}
    for call in outcome.session.made[-1].calls if outcome.session.made else []:
        name = call.request_id
        if call.name in ("new_request", "free"):
            counts.pop(name, None)
        if call.name == "allocate_slots" and call.answer != "refused":
            if counts.get(name) == call.num_computed_tokens:
                same = f"`num_computed_tokens` of {name} is {counts[name]} in two calls of `allocate_slots`"
                return f"{same}: after a step, set it to the tokens that are computed"
            counts[name] = call.num_computed_tokens
    return ""


def _allocates_a_block_again(outcome: Outcome) -> bool:
    """Return whether a manager of the check allocated a block for the second time, as an eviction does."""
    for manager in outcome.session.made:
        answers = [call.answer for call in manager.calls if call.answer.startswith("new blocks ")]
        block_ids = [block_id for answer in answers for block_id in answer.split()[2:]]
        if len(set(block_ids)) < len(block_ids):
            return True
    return False


def _note_calls(lab: LabUnderTest, outcome: Outcome) -> None:
    """Tell the last calls of the check, with their answers."""
    if outcome.session.made:
        lab.note("The last calls of the check:")
        for call in outcome.calls[-LAST_CALLS:]:
            lab.note(f"   {call}")


def _last_calls(outcome: Outcome) -> list[str]:
    """Return the last calls of the check with their answers, each in a line."""
    return [textwrap.shorten(call, WIDTH, placeholder=" ...") for call in outcome.calls[-TOLD_CALLS:]]

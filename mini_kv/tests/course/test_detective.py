"""lab-15: the reference checks accuse every faulty manager and no correct one. Five students' checks do less."""

import random
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from mini_kv.core.request import MultiModalFeature, Request
from mini_kv.course import LabTodo
from mini_kv.course.finale import own_manager
from mini_kv.course.finale.learner_files import LabFile, own_parts
from mini_kv.course.finale.own_manager import manager_of
from mini_kv.course.given.correct_managers import CORRECT, shuffled
from mini_kv.course.given.faulty_managers import FAULTY_MANAGERS
from mini_kv.course.given.manager_under_test import MAX_CALLS, ManagerUnderTest, Session, TooManyCallsError, prefill
from mini_kv.course.given.outcomes import run_check
from mini_kv.course.given.replayed_checks import find_difference
from mini_kv.course.given.subjects import Correct
from mini_kv.course.labkit.audit import run_text
from mini_kv.course.labkit.implementation import load_file
from mini_kv.course.labkit.lab import load_lab
from mini_kv.course.labkit.learner_parts import OwnParts
from mini_kv.course.labkit.misconception import find_beliefs
from mini_kv.course.labkit.scoreboard import LabResult, State

ROOT = Path(__file__).parents[3]
SUITES = Path(__file__).parent / "detective_suites"
CHECKS = list(dict.fromkeys(faulty.check for faulty in FAULTY_MANAGERS))
REFERENCE = ROOT / "solutions" / "lab-15" / "solution.py"
ALTERNATIVES = sorted(path for number in (2, 3, 4, 6, 7) for path in ROOT.glob(f"solutions/lab-{number:02}/alt_*.py"))
"""Other solutions of the labs whose parts are in the manager. lab-05 has no such part."""
BY_NUMBER = dict(enumerate(FAULTY_MANAGERS, start=1))


@pytest.mark.parametrize("number", BY_NUMBER)
def test_the_reference_check_accuses_the_faulty_manager_and_the_fewest_calls_show_its_fault(number: int):
    """The shortest calls still differ, and no single one can be left out."""
    faulty = BY_NUMBER[number]
    outcome = run_check(getattr(load_file(REFERENCE), faulty.check), faulty.make)
    assert outcome.accused is not None
    last = outcome.session.made[-1]
    difference = find_difference(last, faulty.make)
    assert difference is not None
    assert 1 <= len(difference.calls) <= len(last.calls)
    told = list(difference.told())
    assert len(told) == len(difference.calls)
    assert "a correct manager:" in told[-1]


def random_calls(seed: int) -> ManagerUnderTest:
    """Return a manager of the engine after random requests. No two of its blocks have the same content.

    Each prompt ends with a token after its last full block, so all cached blocks of the prompt are in its hit.
    """
    rng = random.Random(seed)
    kv: ManagerUnderTest = Session(ManagerUnderTest, CORRECT[0].make).make(9, 4)
    running: list[Request] = []
    for number in range(40):
        if running and rng.random() < 0.5:
            kv.free(running.pop(rng.randrange(len(running))))
        tokens = [rng.choice([1, 2]) // (place % 4 + 1) for place in range(4 * rng.randrange(5))]
        request = kv.new_request(f"R{number}", [*tokens, 9])
        if prefill(kv, request) is not None:
            running.append(request)
        assert kv.block_pool.num_free_blocks == 8 - len({block for r in running for block in table(kv, r)})
    return kv


def table(kv: ManagerUnderTest, request: Request) -> list[int]:
    """Return the request's block ids."""
    return kv.get_block_ids(request.request_id)[0]


RUNS = [random_calls(seed) for seed in range(20)]


@pytest.mark.parametrize("correct", [*CORRECT, shuffled(0), shuffled(1)], ids=lambda correct: correct.title)
def test_correct_managers_agree_in_random_calls(correct: Correct):
    """In hits, refusals, counts and sharing, with evictions."""
    assert [find_difference(kv, correct.make) for kv in RUNS] == [None] * len(RUNS)


def test_the_same_random_calls_differ_on_seventeen_faulty_managers():
    """The others need a whole block as prompt, a chunk, decoding, lookahead, a salt, an adapter or longer numbers."""
    same = [
        number for number, faulty in BY_NUMBER.items() if all(find_difference(kv, faulty.make) is None for kv in RUNS)
    ]
    assert same == [1, 5, 6, 7, 19, 22, 23, 25, 26]


@pytest.mark.parametrize("number", range(22, 27))
def test_a_faulty_hasher_has_one_fault(number: int):
    """Those that ignore a salt, an adapter, a path, the parent or the ends of numbers do not ignore images."""
    make_hasher = FAULTY_MANAGERS[number - 1].parts["make_block_hasher"]
    images = [MultiModalFeature(name, 0, 4) for name in ("cat", "dog")]
    cat, dog = (make_hasher(4)(Request("A", range(4), mm_features=[image])) for image in images)
    assert cat != dog


def with_parts_of(solution: Path) -> Callable[[int, int], Any]:
    """Return a factory of managers with this solution's parts."""
    lab = load_lab(ROOT / "labs" / solution.parent.name)
    file = LabFile(lab, str(solution), 1, ROOT, 5)
    own = own_parts(file.find(part) for part in lab.parts if part.goes_to)
    assert own != OwnParts()
    return manager_of(own)


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("solution", ALTERNATIVES, ids=lambda path: f"{path.parent.name} {path.stem}")
def test_the_reference_check_accuses_no_other_solution_of_the_labs(solution: Path, check: str):
    """Each runs in the manager in place of the engine's own part."""
    outcome = run_check(getattr(load_file(REFERENCE), check), with_parts_of(solution))
    assert (outcome.accused, outcome.mistake) == (None, None)


def test_a_learner_runs_the_checks_on_the_parts_that_are_finished(tmp_path, capsys):
    """One part of lab-07 is faulty, the others and the checks are the solutions'."""
    for number in (7, 15):
        text = (ROOT / "solutions" / f"lab-{number:02}" / "solution.py").read_text(encoding="utf-8")
        (tmp_path / f"lab-{number:02}.py").write_text(text.replace("request.num_tokens - 1", "request.num_tokens"))
    assert own_manager.main([str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[1] for line in lines if line.startswith("  lab-")] == [
        "BlockHashToBlockMap",
        "BlockPool",
        "FullAttentionManager",
        "KVCacheManager",
        "PrefixCacheStats",
    ]
    assert [line for line in lines if "accused" in line] == [
        "check_sharing    accused: A's 16 tokens, while A still runs"
    ]
    assert own_manager.main(["no such folder"]) == 2
    assert "no such folder" in capsys.readouterr().err


# The rules of a trial -----------------------------------------------------------------------------------------------


def test_an_assertion_and_another_exception_are_told_apart():
    """A mistake of the check's own lines and an exception of a manager are both reported as mistakes."""

    def own_mistake(make: Any) -> None:
        len(make(4, 4).block_pool.num_free_blocks)

    def repeats_a_request(make: Any) -> None:
        kv = make(4, 4)
        for _ in range(2):
            prefill(kv, kv.new_request("A", [1]))

    def asserts(make: Any) -> None:
        assert make(4, 4).block_pool.num_free_blocks == 4

    found = [run_check(check, CORRECT[0].make) for check in (own_mistake, repeats_a_request, asserts)]
    assert [type(outcome.mistake).__name__ for outcome in found] == ["TypeError", "RepeatedRequestError", "NoneType"]
    assert [type(outcome.accused).__name__ for outcome in found] == ["NoneType", "NoneType", "AssertionError"]
    assert [outcome.failed for outcome in found] == [True] * 3


THE_STARTERS_OWN_LINES = """def check_sharing(make_manager):
    kv = make_manager(9, 4)
    assert prefill(kv, kv.new_request("A", range(8))) == 0
    assert prefill(kv, kv.new_request("B", range(8))) == 4
"""


def test_an_exception_that_no_correct_manager_raises_accuses_the_manager():
    """Manager 1 finds all 8 tokens, so `prefill` asks for 0 new ones, which raises an `AllocationError`."""
    results = results_of(THE_STARTERS_OWN_LINES)
    sharing = {result.test: result.state for result in results if result.function == "check_sharing"}
    assert sharing["test_1_check_sharing_accuses_no_correct_manager"] is State.PASS
    assert sharing["test_manager_1_is_caught"] is State.PASS


def test_an_exception_that_a_correct_manager_raises_accuses_no_manager():
    """Alone, without the test of the correct managers before it."""
    lab = load_lab(ROOT / "labs" / "lab-15")
    text = (
        f"{REFERENCE.read_text(encoding='utf-8')}\n\ndef check_sharing(make_manager):\n    make_manager(9, 4).free(1)\n"
    )
    alone = [
        result for result in run_text(lab, "wrong", text, ["test_manager_1_is_caught"]) if "manager_1_" in result.test
    ]
    assert [result.state for result in alone] == [State.FAIL]
    assert "why: an exception accuses a manager only if the check passes every correct one" in alone[0].message


@pytest.mark.parametrize("num_tokens", [6, 2], ids=["after a full block", "alone"])
def test_no_check_may_order_a_freed_partial_block_before_a_never_used_one(num_tokens: int):
    """Both are free and not cached. A correct manager and the shuffled ones show that their order is left free."""

    def reuses_the_freed_block(make: Any) -> None:
        kv = make(5, 4)
        first = kv.new_request("A", range(num_tokens))
        prefill(kv, first)
        freed = table(kv, first)[-1]
        kv.free(first)
        second = kv.new_request("B", range(100, 104))
        prefill(kv, second)
        assert table(kv, second)[0] == freed

    accused = [correct.title for correct in CORRECT if run_check(reuses_the_freed_block, correct.make).accused]
    assert accused == ["of the blocks that are not cached, those never used are allocated first"]
    assert any(run_check(reuses_the_freed_block, shuffled(seed).make).accused for seed in range(20))


def test_the_calls_of_a_check_are_kept_with_their_answers():
    """A false alarm shows what a correct manager returned."""

    def asserts_a_larger_pool(make: Any) -> None:
        kv = make(3, 4)
        first = kv.new_request("A", range(5))
        prefill(kv, first)
        first.append_output_token_ids(7)
        kv.allocate_slots(first, 1)
        kv.free(first)
        prefill(kv, kv.new_request("B", range(12)))
        assert kv.block_pool.num_free_blocks == 3

    outcome = run_check(asserts_a_larger_pool, CORRECT[0].make)
    assert outcome.accused is not None
    assert [call.told for call in outcome.session.made[0].calls] == [
        "A has the tokens 0 1 2 3 4",
        "look up A: a hit of 0 tokens, no blocks",
        "allocate slots for A (5 new): new blocks 1 2",
        "allocate slots for A (5 computed, 1 new): no new blocks",
        "free A",
        "B has the tokens 0 1 2 3 4 5 6 7 8 9 10 11",
        "look up B: a hit of 4 tokens, blocks 1",
        "allocate slots for B (4 cached, 8 new): refused",
        "count the free blocks: 2",
    ]


def test_a_check_has_500_calls_also_if_it_catches_every_exception():
    def endless(make: Any) -> None:
        kv = make(4, 4)
        while True:
            assert kv.block_pool.num_free_blocks == 3

    def swallows(make: Any) -> None:
        kv = make(4, 4)
        for _ in range(MAX_CALLS):
            try:
                assert kv.block_pool.num_free_blocks == 3
            except TooManyCallsError:
                continue

    found = [run_check(check, CORRECT[0].make) for check in (endless, swallows)]
    assert [type(outcome.mistake) for outcome in found] == [TooManyCallsError] * 2
    assert [outcome.session.num_calls for outcome in found] == [MAX_CALLS + 1] * 2


def test_a_todo_is_no_mistake():
    def starter(make: Any) -> None:
        raise LabTodo("lab-15 check_slots: count")

    with pytest.raises(LabTodo):
        run_check(starter, CORRECT[0].make)


def test_a_manager_has_the_calls_of_the_contract_and_no_others():
    """A check cannot read counts, hashes or the free queue."""
    kv = ManagerUnderTest(Session(ManagerUnderTest, CORRECT[0].make), 4, 4)
    public = {name for name in dir(kv) if not name.startswith("_")}
    calls = {"new_request", "get_computed_blocks", "allocate_slots", "free", "get_block_ids", "block_pool"}
    assert public == calls | {"num_blocks", "block_size", "calls", "told", "answered", "session", "inner"}
    assert [name for name in dir(kv.block_pool) if not name.startswith("_")] == ["manager", "num_free_blocks"]


WRONG_CHECKS = {
    2: """def check_sharing(make_manager):
    kv = make_manager(9, 4)
    prefill(kv, kv.new_request("A", range(8)))
    assert kv.get_computed_blocks(kv.new_request("B", range(8)))[1] == 8
""",
    3: """def check_sharing(make_manager):
    kv = make_manager(9, 4)
    prefill(kv, kv.new_request("A", range(10)))
    assert kv.get_computed_blocks(kv.new_request("B", range(10)))[1] == 0
""",
    12: """def check_freeing(make_manager):
    kv = make_manager(9, 4)
    a = kv.new_request("A", range(10))
    prefill(kv, a)
    kv.free(a)
    assert kv.get_computed_blocks(kv.new_request("B", range(10)))[1] == 0
""",
    16: """def check_eviction(make_manager):
    kv = make_manager(5, 4)
    a = kv.new_request("A", range(16))
    prefill(kv, a)
    kv.free(a)
    prefill(kv, kv.new_request("B", range(20, 24)))
    assert kv.get_computed_blocks(kv.new_request("C", range(16)))[1] == 0
""",
}


@pytest.mark.parametrize("rule", WRONG_CHECKS)
def test_a_false_alarm_reads_the_sentence_that_its_failing_line_contradicts(rule):
    """A lookup that finds 0 or 8 tokens may contradict several sentences. A wrong manager that passes says which."""
    (message, *_) = [result.message for result in results_of(WRONG_CHECKS[rule]) if result.state is State.FAIL]
    assert f"your check contradicts rule {rule} of the contract" in " ".join(message.split())


# What a learner with a wrong check reads ----------------------------------------------------------------------------


def messages_of(check: str) -> list[str]:
    """Return the failures of the reference checks with this check in the place of its own. None names a belief."""
    results = results_of(check)
    assert find_beliefs(load_lab(ROOT / "labs" / "lab-15"), results) == {}
    return [result.message for result in results if result.state is State.FAIL]


def results_of(check: str) -> list[LabResult]:
    """Return the results of the reference checks with this check in the place of its own."""
    return run_text(load_lab(ROOT / "labs" / "lab-15"), "wrong", f"{REFERENCE.read_text(encoding='utf-8')}\n\n{check}")


def test_a_check_that_counts_the_null_block_reads_the_count_and_no_belief():
    first, second = messages_of("""def check_freeing(make_manager):
    assert make_manager(9, 4).block_pool.num_free_blocks == 9
""")
    assert "all correct managers are accused" in first
    assert "count the free blocks: 8" in first
    assert "your check contradicts rule 13 of the contract: Block 0, the null block," in " ".join(first.split())
    assert "the check accuses the engine's own manager, too" in second


def test_a_check_whose_pools_are_too_large_reads_that_no_block_was_evicted():
    check = """def check_eviction(make_manager):
    kv = make_manager({}, 4)
    kv.free(admit(kv, "A", range(8)))
    kv.free(admit(kv, "B", range(50, 58)))
"""
    (large,) = messages_of(check.format(5))
    (small,) = messages_of(check.format(4))
    assert "no block of your pools was allocated twice, so none was evicted" in large
    assert "a check that accuses no manager raises no false alarm, and finds no fault" in small


def test_a_check_that_forgets_to_count_the_computed_tokens_reads_that_it_did():
    first, _ = messages_of("""def check_slots(make_manager):
    kv = make_manager(9, 4)
    a = kv.new_request("A", range(12))
    kv.allocate_slots(a, 6)
    kv.allocate_slots(a, 6)
    assert len(table(kv, "A")) == 3
""")
    assert "allocate slots for A (6 new): no new blocks" in first
    assert "`num_computed_tokens` of A is 0 in two calls of `allocate_slots`" in first


def test_a_refusal_that_the_check_did_not_expect_is_shown():
    first, _ = messages_of("""def check_refusals(make_manager):
    kv = make_manager(3, 4)
    assert prefill(kv, kv.new_request("A", range(12))) == 0
""")
    assert "allocate slots for A (12 new): refused" in first


@pytest.mark.parametrize(
    "line", ["prefil(kv, a)", "kv.allocate_slots()", "kv.cached_blocks", "kv.allocate_slots(a, 0)"]
)
def test_an_exception_on_a_correct_manager_is_a_mistake_in_the_check(line: str):
    first, second = messages_of(f"""def check_identity(make_manager):
    kv = make_manager(9, 4)
    a = kv.new_request("A", range(12))
    {line}
""")
    for message in (first, second):
        assert "this manager is correct, so the exception is a mistake in your check" in message
        assert line in message.partition("at:  ")[2]


# Students -----------------------------------------------------------------------------------------------------------


def suites() -> Iterator[Path]:
    """Yield the files of the five students."""
    yield from sorted(SUITES.glob("*.py"))


def score_of(file: Path) -> tuple[list[int], list[str]]:
    """Return the numbers of the managers that the suite accuses, and its checks that fail on a correct one."""
    module = load_file(file)
    run = {check: partial(run_check, getattr(module, check)) for check in CHECKS}
    caught = [number for number, faulty in BY_NUMBER.items() if run[faulty.check](faulty.make).failed]
    alarms = [
        check for check in CHECKS if any(run[check](c.make).accused or run[check](c.make).mistake for c in CORRECT)
    ]
    return caught, alarms


SCORES: dict[str, tuple[list[int], list[str]]] = {
    "counts": ([2, 3, 4, 5, 10, 12, 14, 15, 16, 22], []),
    "from_a_printout": ([1, 2, 3, 4, 8, 9, 10, 11, 12, 15, 16, 17, 22], CHECKS),
    "nearly_all": ([*range(1, 19), 21, 22, 23, 24], []),
    "one_large_pool": ([1, 2, 3, 4, 5, 11, 12, 13, 14, 15, 16, 21, 22, 23, 24], []),
    "runs_without_error": ([4], []),
}
"""Per suite: the numbers of the caught managers, and the checks with false alarms."""


def test_the_suites_of_five_students_have_these_scores():
    assert {file.stem: score_of(file) for file in suites()} == SCORES

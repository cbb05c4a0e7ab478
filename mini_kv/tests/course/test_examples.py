"""lab-02-examples and lab-05-examples: how examples are run, and the messages of wrong ones."""

import re
from pathlib import Path
from typing import Any

import pytest
from inline_snapshot import snapshot

from mini_kv.core.free_queue import FreeKVCacheBlockQueue
from mini_kv.course.given.faulty_admissions import CacheUnderTest, MakeCache, Version
from mini_kv.course.given.faulty_managers import FAULTY_MANAGERS, MISREAD_MANAGERS
from mini_kv.course.given.faulty_queues import FAULTY_QUEUES, MakeQueue, QueueUnderTest
from mini_kv.course.given.manager_under_test import MAX_CALLS, TooManyCallsError
from mini_kv.course.given.outcomes import run_check
from mini_kv.course.labkit.audit import run_text
from mini_kv.course.labkit.failure import parts_of
from mini_kv.course.labkit.implementation import load_file
from mini_kv.course.labkit.lab import Lab, load_lab
from mini_kv.course.labkit.scoreboard import State

ROOT = Path(__file__).parents[3]


def test_an_error_of_the_queue_accuses_it_only_if_the_example_expects_it() -> None:
    def takes_too_many(make_queue: MakeQueue) -> None:
        make_queue([2, 0]).popleft_n(3)

    def expects_an_error(make_queue: MakeQueue) -> None:
        queue = make_queue([2, 0])
        assert not queue.is_refused(queue.popleft_n, 2)
        assert queue.is_refused(queue.popleft)

    outcome = run_check(takes_too_many, FreeKVCacheBlockQueue, QueueUnderTest)
    assert type(outcome.mistake).__name__ == "OutOfBlocksError"
    outcome = run_check(expects_an_error, FreeKVCacheBlockQueue, QueueUnderTest)
    assert (outcome.accused, outcome.mistake) == (None, None)
    assert outcome.calls == ["a queue of [2, 0]", "popleft_n(2): [2, 0]", "popleft()", "   raised OutOfBlocksError"]


def test_an_endless_example_accuses_no_queue() -> None:
    def endless(make_queue: MakeQueue) -> None:
        queue: Any = make_queue([0])
        for _ in range(MAX_CALLS + 1):
            queue.is_refused(queue.order)

    outcome = run_check(endless, FAULTY_QUEUES[0].make, QueueUnderTest)
    assert isinstance(outcome.mistake, TooManyCallsError)


# lab-05-examples ----------------------------------------------------------------------------------------------------


def test_the_calls_of_an_example_are_kept_with_their_answers() -> None:
    def makes_each_call(make_cache: MakeCache) -> None:
        cache = make_cache(3, 4)
        cache.prefill(range(9), "A")
        cache.prefill(range(9), "B")
        for call in (cache.computed, cache.table, cache.ref_counts, cache.free):
            call("A")
        cache.prefill(range(9), "C")
        cache.hit_rate()
        cache.num_free()

    assert run_check(makes_each_call, Version, CacheUnderTest).calls == snapshot(
        [
            "a cache of 3 blocks of 4 tokens",
            "prefill([0, 1, 2, 3, 4, 5, 6, 7, 8], 'A'): 0 found",
            "prefill([0, 1, 2, 3, 4, 5, 6, 7, 8], 'B'): None",
            "computed('A'): 9",
            "table('A'): [1, 2, 3]",
            "ref_counts('A'): [1, 1, 1]",
            "free('A'): None",
            "prefill([0, 1, 2, 3, 4, 5, 6, 7, 8], 'C'): 8 found",
            "hit_rate(): 0.4444444444444444",
            "num_free(): 0",
        ]
    )


def why_of(lab_id: str, check: str, example: str) -> str:
    """Return the reason that a false alarm of this example has."""
    reference = (ROOT / "solutions" / lab_id / "solution.py").read_text(encoding="utf-8")
    text = f"{reference}\n\ndef {check}(make):\n    it = make{example}\n"
    results = run_text(load_lab(ROOT / "labs" / lab_id), "wrong", text)
    (message,) = (result.message for result in results if result.function == check and result.state is State.FAIL)
    return " ".join(" ".join(parts_of(message)["why"]).split())


@pytest.mark.parametrize(
    ("check", "example", "why"),
    [
        ("prefill", "(6, 4); it.prefill(range(8), 'A'); assert it.prefill(range(8), 'B') == 8", "contradicts rule 2"),
        ("prefill", "(6, 4); it.prefill(range(8), 'A'); assert it.prefill(range(8), 'B') == 7", "contradicts rule 1"),
        (
            "prefill",
            "(4, 4); it.prefill(range(9), 'A'); assert it.prefill(range(9), 'B') is None",
            "contradicts rule 7",
        ),
        (
            "prefill",
            "(2, 4); it.prefill(range(8), 'A'); assert it.prefill(range(9, 17), 'B') == 0",
            "contradicts rule 7",
        ),
        ("prefill", "(6, 4); it.prefill(range(8), 'A'); assert it.table('A') == [1, 2]", "the ids of new blocks"),
        ("prefill", "(6, 4); it.prefill(range(8), 'A'); assert it.computed('A') == 7", "contradicts rule 4"),
        (
            "ref_counts",
            "(6, 4); it.prefill(range(9), 'A'); it.prefill(range(9), 'B'); it.free('A');"
            " assert it.ref_counts('B') == [2, 2, 1]",
            "contradicts rule 10",
        ),
        (
            "hit_rate",
            "(6, 4); it.prefill(range(8), 'A'); it.prefill(range(8), 'B'); assert it.hit_rate() == 0.5",
            "contradicts rule 11",
        ),
        ("hit_rate", "(6, 4); assert it.hit_rate(1) == 0.0", "an exception on a correct version is a mistake"),
    ],
)
def test_a_false_alarm_reads_the_sentence_that_its_failing_line_contradicts(check: str, example: str, why: str) -> None:
    """Rule 2 and not 1: the line passes on a version that finds all tokens of a cached prompt."""
    assert why in why_of("lab-05-examples", f"check_{check}", example)


@pytest.mark.parametrize(
    ("check", "example", "rule"),
    [
        ("removing", "([2, 0, 3]); it.remove(0); assert it.order() == [3, 2]", 8),
        ("removing", "([2, 0, 3]); it.remove(2); it.append(2); assert it.order() == [2, 0, 3]", 4),
        ("taking", "([2, 0, 3]); assert it.popleft_n(5) == [2, 0, 3]", 3),
        ("returning", "([2, 0, 3]); it.append(2); assert it.order() == [0, 3, 2]", 7),
    ],
)
def test_a_wrong_example_of_a_queue_reads_its_sentence_also_if_the_call_raises(
    check: str, example: str, rule: int
) -> None:
    assert f"contradicts rule {rule} of" in why_of("lab-02-examples", f"check_{check}", example)


SUBJECTS = {"lab-02-examples": "queue", "lab-05-examples": "version", "lab-15": "manager"}
"""What the examples of a lab are about."""


def subjects_of(lab: Lab) -> Any:
    """Return the faulty and the misread subjects."""
    if lab.lab_id == "lab-15":
        return FAULTY_MANAGERS, MISREAD_MANAGERS
    examples = load_file(lab.folder / "helpers.py").EXAMPLES
    return examples.faulty, examples.misread


@pytest.mark.parametrize("lab_id", SUBJECTS)
def test_every_sentence_has_a_subject_that_breaks_it(lab_id: str) -> None:
    """A wrong subject for each, so that a false alarm can be led to it, and no number beyond the list."""
    lab = load_lab(ROOT / "labs" / lab_id)
    faulty, misread = subjects_of(lab)
    assert {subject.rule for subject in (*faulty, *misread)} == {*range(1, len(lab.contract()) + 1)}


@pytest.mark.parametrize(("lab_id", "name"), SUBJECTS.items())
def test_the_third_hint_has_the_rule_of_each_faulty_subject_and_the_first_two_have_none(lab_id: str, name: str) -> None:
    lab = load_lab(ROOT / "labs" / lab_id)
    hints = {one.name: one.hints for one in lab.functions}
    faulty, _ = subjects_of(lab)
    for number, subject in enumerate(faulty, start=1):
        rule = rf"{name} {number} breaks rule {subject.rule}\b"
        told = [re.search(rule, level) is not None for level in hints[subject.check]]
        assert told == [False, False, True]


def test_a_fault_that_no_example_finds_reads_the_sentence_that_none_covers() -> None:
    reference = (ROOT / "solutions" / "lab-05-examples" / "solution.py").read_text(encoding="utf-8")
    weak = "def check_hit_rate(make_cache):\n    assert make_cache(6, 4).hit_rate() == 0.0\n"
    results = run_text(load_lab(ROOT / "labs" / "lab-05-examples"), "weak", f"{reference}\n\n{weak}")
    missed = {result.test: result.message for result in results if result.state is State.FAIL}
    assert list(missed) == ["test_version_11_is_caught", "test_version_12_is_caught"]
    assert "no example of yours covers rule 11 of the contract: `hit_rate` is" in missed["test_version_12_is_caught"]


def test_an_exception_that_no_correct_version_raises_accuses_the_version() -> None:
    """Version 7 has too few counts, so the last `assert` raises an `IndexError`."""
    examples = """def check_ref_counts(make_cache):
    cache = make_cache(6, 4)
    cache.prefill(range(9), "A")
    assert cache.ref_counts("A")[2] == 1
"""
    reference = (ROOT / "solutions" / "lab-05-examples" / "solution.py").read_text(encoding="utf-8")
    results = run_text(load_lab(ROOT / "labs" / "lab-05-examples"), "asks_for_three", f"{reference}\n\n{examples}")
    assert [result.state for result in results if "version_7_" in result.test] == [State.PASS]

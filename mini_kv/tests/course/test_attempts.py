"""Honest attempts: the tests find each fault, and none gets a name that is not its own."""

import pytest

from mini_kv.tests.course.attempts import Attempt, all_attempts, answer_to, judged

ATTEMPTS = all_attempts()


@pytest.mark.slow
@pytest.mark.parametrize("attempt", ATTEMPTS, ids=[attempt.name for attempt in ATTEMPTS])
def test_an_honest_attempt_is_found_out_and_named_rightly_or_not_at_all(attempt: Attempt) -> None:
    """If a belief has new words, judge again whether it is the right name, and say so in judged.toml."""
    if attempt.lab.missing is not None:
        pytest.skip(attempt.lab.missing)
    answer = answer_to(attempt)
    assert not answer.passed
    assert answer.belief in ["", *judged()[attempt.name]["right"]]


def test_every_attempt_is_judged() -> None:
    assert list(judged()) == [attempt.name for attempt in ATTEMPTS]

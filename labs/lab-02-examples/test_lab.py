"""lab-02, examples: yours are the tests here, and these tests check them.

First your examples run on correct queues, which they must not accuse. Then they run on twelve faulty queues.
"""

from typing import Any

import pytest

from mini_kv.course import points
from mini_kv.course.labkit.fixture import LabUnderTest

from .helpers import accepts_all, catches

AFTER = {
    "check_taking": "test_1_check_taking_accuses_no_correct_queue",
    "check_returning": "test_2_check_returning_accuses_no_correct_queue",
    "check_removing": "test_3_check_removing_accuses_no_correct_queue",
}
"""The test of each check that has to pass before its faulty queues count."""


def caught(name: str, number: int, check: str) -> Any:
    """Return a faulty queue as a case of a test: this check has to fail on it."""
    return pytest.param(number, id=name, marks=points(1, check, stage="adversary", after=AFTER[check]))


# The biography ------------------------------------------------------------------------------------------------------


@points(2, "check_taking")
def test_1_check_taking_accuses_no_correct_queue(lab: LabUnderTest) -> None:
    """The examples pass every correct queue, and accuse at least one faulty queue."""
    accepts_all(lab, "check_taking")


@points(2, "check_returning")
def test_2_check_returning_accuses_no_correct_queue(lab: LabUnderTest) -> None:
    """The examples pass every correct queue, and accuse at least one faulty queue."""
    accepts_all(lab, "check_returning")


@points(2, "check_removing")
def test_3_check_removing_accuses_no_correct_queue(lab: LabUnderTest) -> None:
    """The examples pass every correct queue, and accuse at least one faulty queue."""
    accepts_all(lab, "check_removing")


# The adversary ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "number",
    [
        caught("test_queue_1_is_caught", 1, "check_taking"),
        caught("test_queue_2_is_caught", 2, "check_taking"),
        caught("test_queue_3_is_caught", 3, "check_taking"),
        caught("test_queue_4_is_caught", 4, "check_taking"),
        caught("test_queue_5_is_caught", 5, "check_returning"),
        caught("test_queue_6_is_caught", 6, "check_returning"),
        caught("test_queue_7_is_caught", 7, "check_returning"),
        caught("test_queue_8_is_caught", 8, "check_returning"),
        caught("test_queue_9_is_caught", 9, "check_removing"),
        caught("test_queue_10_is_caught", 10, "check_removing"),
        caught("test_queue_11_is_caught", 11, "check_removing"),
        caught("test_queue_12_is_caught", 12, "check_removing"),
    ],
)
def test_a_faulty_queue_is_caught(lab: LabUnderTest, number: int) -> None:
    """The examples fail on this queue."""
    catches(lab, number)

"""lab-05, examples: yours are the tests here, and these tests check them.

First your examples run on correct versions, which they must not accuse. Then they run on twelve faulty versions.
"""

from typing import Any

import pytest

from mini_kv.course import points
from mini_kv.course.labkit.fixture import LabUnderTest

from .helpers import accepts_all, catches

AFTER = {
    "check_prefill": "test_1_check_prefill_accuses_no_correct_version",
    "check_ref_counts": "test_2_check_ref_counts_accuses_no_correct_version",
    "check_hit_rate": "test_3_check_hit_rate_accuses_no_correct_version",
}
"""The test of each check that has to pass before its faulty versions count."""


def caught(name: str, number: int, check: str) -> Any:
    """Return a faulty version as a case of a test: this check has to fail on it."""
    return pytest.param(number, id=name, marks=points(1, check, stage="adversary", after=AFTER[check]))


# The biography ------------------------------------------------------------------------------------------------------


@points(2, "check_prefill")
def test_1_check_prefill_accuses_no_correct_version(lab: LabUnderTest) -> None:
    """The examples pass every correct version, and accuse at least one faulty version."""
    accepts_all(lab, "check_prefill")


@points(2, "check_ref_counts")
def test_2_check_ref_counts_accuses_no_correct_version(lab: LabUnderTest) -> None:
    """The examples pass every correct version, and accuse at least one faulty version."""
    accepts_all(lab, "check_ref_counts")


@points(2, "check_hit_rate")
def test_3_check_hit_rate_accuses_no_correct_version(lab: LabUnderTest) -> None:
    """The examples pass every correct version, and accuse at least one faulty version."""
    accepts_all(lab, "check_hit_rate")


# The adversary ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "number",
    [
        caught("test_version_1_is_caught", 1, "check_prefill"),
        caught("test_version_2_is_caught", 2, "check_prefill"),
        caught("test_version_3_is_caught", 3, "check_prefill"),
        caught("test_version_4_is_caught", 4, "check_prefill"),
        caught("test_version_5_is_caught", 5, "check_prefill"),
        caught("test_version_6_is_caught", 6, "check_prefill"),
        caught("test_version_7_is_caught", 7, "check_ref_counts"),
        caught("test_version_8_is_caught", 8, "check_ref_counts"),
        caught("test_version_9_is_caught", 9, "check_ref_counts"),
        caught("test_version_10_is_caught", 10, "check_hit_rate"),
        caught("test_version_11_is_caught", 11, "check_hit_rate"),
        caught("test_version_12_is_caught", 12, "check_hit_rate"),
    ],
)
def test_a_faulty_version_is_caught(lab: LabUnderTest, number: int) -> None:
    """The examples fail on this version."""
    catches(lab, number)

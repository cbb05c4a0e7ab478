"""lab-15: detective. Your checks are the tests here, and these tests check them.

Each check runs on managers that it has never seen. First on correct ones, which it must not accuse. Then on its
suspects: managers with one fault each. The first section has the faults that public projects reported. The second one
has the others, in the same areas of the contract.
"""

from typing import Any

import pytest

from mini_kv.course import points
from mini_kv.course.labkit.fixture import LabUnderTest
from mini_kv.course.labkit.lives import seeds

from .helpers import CHECKS, accepts_all, accepts_shuffled, catches, check_of

AFTER = {
    "check_sharing": "test_1_check_sharing_accuses_no_correct_manager",
    "check_slots": "test_2_check_slots_accuses_no_correct_manager",
    "check_refusals": "test_3_check_refusals_accuses_no_correct_manager",
    "check_freeing": "test_4_check_freeing_accuses_no_correct_manager",
    "check_eviction": "test_5_check_eviction_accuses_no_correct_manager",
    "check_identity": "test_6_check_identity_accuses_no_correct_manager",
}
"""The test of each check that has to pass before its suspects count."""


def caught(name: str, number: int, value: int, stage: str) -> Any:
    """Return a suspect as a case of a test: its check has to fail on it."""
    check = check_of(number)
    return pytest.param(number, id=name, marks=points(value, check, stage=stage, after=AFTER[check]))


# The biography ------------------------------------------------------------------------------------------------------


@points(2, "check_sharing")
def test_1_check_sharing_accuses_no_correct_manager(lab: LabUnderTest) -> None:
    """The check passes every correct manager, and accuses at least one of its suspects."""
    accepts_all(lab, "check_sharing")


@points(2, "check_slots")
def test_2_check_slots_accuses_no_correct_manager(lab: LabUnderTest) -> None:
    """The check passes every correct manager, and accuses at least one of its suspects."""
    accepts_all(lab, "check_slots")


@points(2, "check_refusals")
def test_3_check_refusals_accuses_no_correct_manager(lab: LabUnderTest) -> None:
    """The check passes every correct manager, and accuses at least one of its suspects."""
    accepts_all(lab, "check_refusals")


@points(2, "check_freeing")
def test_4_check_freeing_accuses_no_correct_manager(lab: LabUnderTest) -> None:
    """The check passes every correct manager, and accuses at least one of its suspects."""
    accepts_all(lab, "check_freeing")


@points(2, "check_eviction")
def test_5_check_eviction_accuses_no_correct_manager(lab: LabUnderTest) -> None:
    """The check passes every correct manager, and accuses at least one of its suspects."""
    accepts_all(lab, "check_eviction")


@points(2, "check_identity")
def test_6_check_identity_accuses_no_correct_manager(lab: LabUnderTest) -> None:
    """The check passes every correct manager, and accuses at least one of its suspects."""
    accepts_all(lab, "check_identity")


@pytest.mark.parametrize(
    "number",
    [
        caught("test_manager_1_is_caught", 1, 2, "biography"),
        caught("test_manager_4_is_caught", 4, 2, "biography"),
        caught("test_manager_5_is_caught", 5, 2, "biography"),
        caught("test_manager_8_is_caught", 8, 2, "biography"),
        caught("test_manager_12_is_caught", 12, 2, "biography"),
        caught("test_manager_16_is_caught", 16, 2, "biography"),
        caught("test_manager_17_is_caught", 17, 2, "biography"),
        caught("test_manager_19_is_caught", 19, 2, "biography"),
        caught("test_manager_21_is_caught", 21, 2, "biography"),
        caught("test_manager_22_is_caught", 22, 2, "biography"),
    ],
)
def test_a_reported_fault_is_caught(lab: LabUnderTest, number: int) -> None:
    """The check fails on this manager."""
    catches(lab, number)


# The adversary ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "number",
    [
        caught("test_manager_2_is_caught", 2, 1, "adversary"),
        caught("test_manager_3_is_caught", 3, 1, "adversary"),
        caught("test_manager_6_is_caught", 6, 1, "adversary"),
        caught("test_manager_7_is_caught", 7, 1, "adversary"),
        caught("test_manager_9_is_caught", 9, 1, "adversary"),
        caught("test_manager_10_is_caught", 10, 1, "adversary"),
        caught("test_manager_11_is_caught", 11, 1, "adversary"),
        caught("test_manager_13_is_caught", 13, 1, "adversary"),
        caught("test_manager_14_is_caught", 14, 1, "adversary"),
        caught("test_manager_15_is_caught", 15, 1, "adversary"),
        caught("test_manager_18_is_caught", 18, 1, "adversary"),
        caught("test_manager_20_is_caught", 20, 1, "adversary"),
        caught("test_manager_23_is_caught", 23, 1, "adversary"),
        caught("test_manager_24_is_caught", 24, 1, "adversary"),
        caught("test_manager_25_is_caught", 25, 1, "adversary"),
        caught("test_manager_26_is_caught", 26, 1, "adversary"),
    ],
)
def test_another_fault_is_caught(lab: LabUnderTest, number: int) -> None:
    """The check fails on this manager."""
    catches(lab, number)


# The property -------------------------------------------------------------------------------------------------------


@points(
    3,
    "check_sharing",
    stage="property",
    why="the order of the free blocks that are not cached is left free, whether freed or never used",
)
def test_no_check_accuses_a_shuffled_manager(lab: LabUnderTest) -> None:
    """All checks on twenty correct managers that allocate the blocks that are not cached in a random order."""
    for check in CHECKS:
        lab.charge(check)
        for seed in seeds(20):
            accepts_shuffled(lab, check, seed)

"""lab-15: detective. Your checks are the tests here, and these tests check them.

Each check runs on managers that it has never seen. First on correct ones, which it must not accuse. Then on its
suspects: managers with one fault each. The first section has the faults that public projects reported. The second one
has the others, in the same areas of the contract.
"""

from mini_kv.course import points
from mini_kv.course.labkit.fixture import LabUnderTest
from mini_kv.course.labkit.lives import seeds

from .helpers import CHECKS, accepts_all, accepts_shuffled, catches

# The biography ------------------------------------------------------------------------------------------------------


@points(2, "check_sharing", why="the contract leaves this free, so a correct manager may do it")
def test_1_check_sharing_accuses_no_correct_manager(lab: LabUnderTest) -> None:
    """The check passes every correct manager, and accuses at least one of its suspects."""
    accepts_all(lab, "check_sharing")


@points(
    2,
    "check_sharing",
    after="test_1_check_sharing_accuses_no_correct_manager",
    why="the manager breaks one sentence of the contract, under Sharing",
)
def test_manager_1_is_caught(lab: LabUnderTest) -> None:
    """The check fails on manager 1."""
    catches(lab, 1)


@points(2, "check_slots", why="the contract leaves this free, so a correct manager may do it")
def test_2_check_slots_accuses_no_correct_manager(lab: LabUnderTest) -> None:
    """The check passes every correct manager, and accuses at least one of its suspects."""
    accepts_all(lab, "check_slots")


@points(
    2,
    "check_slots",
    after="test_2_check_slots_accuses_no_correct_manager",
    why="the manager breaks one sentence of the contract, under Slots",
)
def test_manager_4_is_caught(lab: LabUnderTest) -> None:
    """The check fails on manager 4."""
    catches(lab, 4)


@points(
    2,
    "check_slots",
    after="test_2_check_slots_accuses_no_correct_manager",
    why="the manager breaks one sentence of the contract, under Slots",
)
def test_manager_5_is_caught(lab: LabUnderTest) -> None:
    """The check fails on manager 5."""
    catches(lab, 5)


@points(2, "check_refusals", why="the contract leaves this free, so a correct manager may do it")
def test_3_check_refusals_accuses_no_correct_manager(lab: LabUnderTest) -> None:
    """The check passes every correct manager, and accuses at least one of its suspects."""
    accepts_all(lab, "check_refusals")


@points(
    2,
    "check_refusals",
    after="test_3_check_refusals_accuses_no_correct_manager",
    why="the manager breaks one sentence of the contract, under Refusals",
)
def test_manager_8_is_caught(lab: LabUnderTest) -> None:
    """The check fails on manager 8."""
    catches(lab, 8)


@points(2, "check_freeing", why="the contract leaves this free, so a correct manager may do it")
def test_4_check_freeing_accuses_no_correct_manager(lab: LabUnderTest) -> None:
    """The check passes every correct manager, and accuses at least one of its suspects."""
    accepts_all(lab, "check_freeing")


@points(
    2,
    "check_freeing",
    after="test_4_check_freeing_accuses_no_correct_manager",
    why="the manager breaks one sentence of the contract, under Freeing",
)
def test_manager_12_is_caught(lab: LabUnderTest) -> None:
    """The check fails on manager 12."""
    catches(lab, 12)


@points(2, "check_eviction", why="the contract leaves this free, so a correct manager may do it")
def test_5_check_eviction_accuses_no_correct_manager(lab: LabUnderTest) -> None:
    """The check passes every correct manager, and accuses at least one of its suspects."""
    accepts_all(lab, "check_eviction")


@points(
    2,
    "check_eviction",
    after="test_5_check_eviction_accuses_no_correct_manager",
    why="the manager breaks one sentence of the contract, under Eviction",
)
def test_manager_16_is_caught(lab: LabUnderTest) -> None:
    """The check fails on manager 16."""
    catches(lab, 16)


@points(
    2,
    "check_eviction",
    after="test_5_check_eviction_accuses_no_correct_manager",
    why="the manager breaks one sentence of the contract, under Eviction",
)
def test_manager_17_is_caught(lab: LabUnderTest) -> None:
    """The check fails on manager 17."""
    catches(lab, 17)


@points(
    2,
    "check_eviction",
    after="test_5_check_eviction_accuses_no_correct_manager",
    why="the manager breaks one sentence of the contract, under Eviction",
)
def test_manager_19_is_caught(lab: LabUnderTest) -> None:
    """The check fails on manager 19."""
    catches(lab, 19)


@points(
    2,
    "check_eviction",
    after="test_5_check_eviction_accuses_no_correct_manager",
    why="the manager breaks one sentence of the contract, under Eviction",
)
def test_manager_21_is_caught(lab: LabUnderTest) -> None:
    """The check fails on manager 21."""
    catches(lab, 21)


@points(2, "check_identity", why="the contract leaves this free, so a correct manager may do it")
def test_6_check_identity_accuses_no_correct_manager(lab: LabUnderTest) -> None:
    """The check passes every correct manager, and accuses at least one of its suspects."""
    accepts_all(lab, "check_identity")


@points(
    2,
    "check_identity",
    after="test_6_check_identity_accuses_no_correct_manager",
    why="the manager breaks one sentence of the contract, under Identity",
)
def test_manager_22_is_caught(lab: LabUnderTest) -> None:
    """The check fails on manager 22."""
    catches(lab, 22)


# The adversary ------------------------------------------------------------------------------------------------------


@points(
    1,
    "check_sharing",
    stage="adversary",
    after="test_1_check_sharing_accuses_no_correct_manager",
    why="the manager breaks one sentence of the contract, under Sharing",
)
def test_manager_2_is_caught(lab: LabUnderTest) -> None:
    """The check fails on manager 2."""
    catches(lab, 2)


@points(
    1,
    "check_sharing",
    stage="adversary",
    after="test_1_check_sharing_accuses_no_correct_manager",
    why="the manager breaks one sentence of the contract, under Sharing",
)
def test_manager_3_is_caught(lab: LabUnderTest) -> None:
    """The check fails on manager 3."""
    catches(lab, 3)


@points(
    1,
    "check_slots",
    stage="adversary",
    after="test_2_check_slots_accuses_no_correct_manager",
    why="the manager breaks one sentence of the contract, under Slots",
)
def test_manager_6_is_caught(lab: LabUnderTest) -> None:
    """The check fails on manager 6."""
    catches(lab, 6)


@points(
    1,
    "check_slots",
    stage="adversary",
    after="test_2_check_slots_accuses_no_correct_manager",
    why="the manager breaks one sentence of the contract, under Slots",
)
def test_manager_7_is_caught(lab: LabUnderTest) -> None:
    """The check fails on manager 7."""
    catches(lab, 7)


@points(
    1,
    "check_refusals",
    stage="adversary",
    after="test_3_check_refusals_accuses_no_correct_manager",
    why="the manager breaks one sentence of the contract, under Refusals",
)
def test_manager_9_is_caught(lab: LabUnderTest) -> None:
    """The check fails on manager 9."""
    catches(lab, 9)


@points(
    1,
    "check_refusals",
    stage="adversary",
    after="test_3_check_refusals_accuses_no_correct_manager",
    why="the manager breaks one sentence of the contract, under Refusals",
)
def test_manager_10_is_caught(lab: LabUnderTest) -> None:
    """The check fails on manager 10."""
    catches(lab, 10)


@points(
    1,
    "check_refusals",
    stage="adversary",
    after="test_3_check_refusals_accuses_no_correct_manager",
    why="the manager breaks one sentence of the contract, under Refusals",
)
def test_manager_11_is_caught(lab: LabUnderTest) -> None:
    """The check fails on manager 11."""
    catches(lab, 11)


@points(
    1,
    "check_freeing",
    stage="adversary",
    after="test_4_check_freeing_accuses_no_correct_manager",
    why="the manager breaks one sentence of the contract, under Freeing",
)
def test_manager_13_is_caught(lab: LabUnderTest) -> None:
    """The check fails on manager 13."""
    catches(lab, 13)


@points(
    1,
    "check_freeing",
    stage="adversary",
    after="test_4_check_freeing_accuses_no_correct_manager",
    why="the manager breaks one sentence of the contract, under Freeing",
)
def test_manager_14_is_caught(lab: LabUnderTest) -> None:
    """The check fails on manager 14."""
    catches(lab, 14)


@points(
    1,
    "check_freeing",
    stage="adversary",
    after="test_4_check_freeing_accuses_no_correct_manager",
    why="the manager breaks one sentence of the contract, under Freeing",
)
def test_manager_15_is_caught(lab: LabUnderTest) -> None:
    """The check fails on manager 15."""
    catches(lab, 15)


@points(
    1,
    "check_eviction",
    stage="adversary",
    after="test_5_check_eviction_accuses_no_correct_manager",
    why="the manager breaks one sentence of the contract, under Eviction",
)
def test_manager_18_is_caught(lab: LabUnderTest) -> None:
    """The check fails on manager 18."""
    catches(lab, 18)


@points(
    1,
    "check_eviction",
    stage="adversary",
    after="test_5_check_eviction_accuses_no_correct_manager",
    why="the manager breaks one sentence of the contract, under Eviction",
)
def test_manager_20_is_caught(lab: LabUnderTest) -> None:
    """The check fails on manager 20."""
    catches(lab, 20)


@points(
    1,
    "check_identity",
    stage="adversary",
    after="test_6_check_identity_accuses_no_correct_manager",
    why="the manager breaks one sentence of the contract, under Identity",
)
def test_manager_23_is_caught(lab: LabUnderTest) -> None:
    """The check fails on manager 23."""
    catches(lab, 23)


@points(
    1,
    "check_identity",
    stage="adversary",
    after="test_6_check_identity_accuses_no_correct_manager",
    why="the manager breaks one sentence of the contract, under Identity",
)
def test_manager_24_is_caught(lab: LabUnderTest) -> None:
    """The check fails on manager 24."""
    catches(lab, 24)


@points(
    1,
    "check_identity",
    stage="adversary",
    after="test_6_check_identity_accuses_no_correct_manager",
    why="the manager breaks one sentence of the contract, under Identity",
)
def test_manager_25_is_caught(lab: LabUnderTest) -> None:
    """The check fails on manager 25."""
    catches(lab, 25)


@points(
    1,
    "check_identity",
    stage="adversary",
    after="test_6_check_identity_accuses_no_correct_manager",
    why="the manager breaks one sentence of the contract, under Identity",
)
def test_manager_26_is_caught(lab: LabUnderTest) -> None:
    """The check fails on manager 26."""
    catches(lab, 26)


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

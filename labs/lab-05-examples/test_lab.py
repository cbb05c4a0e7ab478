"""lab-05, examples: yours are the tests here, and these tests check them.

First your examples run on correct versions, which they must not accuse. Then they run on twelve faulty versions.
"""

from mini_kv.course import points
from mini_kv.course.labkit.fixture import LabUnderTest

from .helpers import accepts_all, catches

# The biography ------------------------------------------------------------------------------------------------------


@points(2, "check_prefill", why="the contract allows what this version does")
def test_1_check_prefill_accuses_no_correct_version(lab: LabUnderTest) -> None:
    """The examples pass every correct version, and accuse at least one faulty version."""
    accepts_all(lab, "check_prefill")


@points(2, "check_ref_counts", why="the contract allows what this version does")
def test_2_check_ref_counts_accuses_no_correct_version(lab: LabUnderTest) -> None:
    """The examples pass every correct version, and accuse at least one faulty version."""
    accepts_all(lab, "check_ref_counts")


@points(2, "check_hit_rate", why="the contract allows what this version does")
def test_3_check_hit_rate_accuses_no_correct_version(lab: LabUnderTest) -> None:
    """The examples pass every correct version, and accuse at least one faulty version."""
    accepts_all(lab, "check_hit_rate")


# The adversary ------------------------------------------------------------------------------------------------------


@points(
    1,
    "check_prefill",
    stage="adversary",
    after="test_1_check_prefill_accuses_no_correct_version",
    why="the version breaks one sentence of the contract",
)
def test_version_1_is_caught(lab: LabUnderTest) -> None:
    """The examples fail on version 1."""
    catches(lab, 1)


@points(
    1,
    "check_prefill",
    stage="adversary",
    after="test_1_check_prefill_accuses_no_correct_version",
    why="the version breaks one sentence of the contract",
)
def test_version_2_is_caught(lab: LabUnderTest) -> None:
    """The examples fail on version 2."""
    catches(lab, 2)


@points(
    1,
    "check_prefill",
    stage="adversary",
    after="test_1_check_prefill_accuses_no_correct_version",
    why="the version breaks one sentence of the contract",
)
def test_version_3_is_caught(lab: LabUnderTest) -> None:
    """The examples fail on version 3."""
    catches(lab, 3)


@points(
    1,
    "check_prefill",
    stage="adversary",
    after="test_1_check_prefill_accuses_no_correct_version",
    why="the version breaks one sentence of the contract",
)
def test_version_4_is_caught(lab: LabUnderTest) -> None:
    """The examples fail on version 4."""
    catches(lab, 4)


@points(
    1,
    "check_prefill",
    stage="adversary",
    after="test_1_check_prefill_accuses_no_correct_version",
    why="the version breaks one sentence of the contract",
)
def test_version_5_is_caught(lab: LabUnderTest) -> None:
    """The examples fail on version 5."""
    catches(lab, 5)


@points(
    1,
    "check_prefill",
    stage="adversary",
    after="test_1_check_prefill_accuses_no_correct_version",
    why="the version breaks one sentence of the contract",
)
def test_version_6_is_caught(lab: LabUnderTest) -> None:
    """The examples fail on version 6."""
    catches(lab, 6)


@points(
    1,
    "check_ref_counts",
    stage="adversary",
    after="test_2_check_ref_counts_accuses_no_correct_version",
    why="the version breaks one sentence of the contract",
)
def test_version_7_is_caught(lab: LabUnderTest) -> None:
    """The examples fail on version 7."""
    catches(lab, 7)


@points(
    1,
    "check_ref_counts",
    stage="adversary",
    after="test_2_check_ref_counts_accuses_no_correct_version",
    why="the version breaks one sentence of the contract",
)
def test_version_8_is_caught(lab: LabUnderTest) -> None:
    """The examples fail on version 8."""
    catches(lab, 8)


@points(
    1,
    "check_ref_counts",
    stage="adversary",
    after="test_2_check_ref_counts_accuses_no_correct_version",
    why="the version breaks one sentence of the contract",
)
def test_version_9_is_caught(lab: LabUnderTest) -> None:
    """The examples fail on version 9."""
    catches(lab, 9)


@points(
    1,
    "check_hit_rate",
    stage="adversary",
    after="test_3_check_hit_rate_accuses_no_correct_version",
    why="the version breaks one sentence of the contract",
)
def test_version_10_is_caught(lab: LabUnderTest) -> None:
    """The examples fail on version 10."""
    catches(lab, 10)


@points(
    1,
    "check_hit_rate",
    stage="adversary",
    after="test_3_check_hit_rate_accuses_no_correct_version",
    why="the version breaks one sentence of the contract",
)
def test_version_11_is_caught(lab: LabUnderTest) -> None:
    """The examples fail on version 11."""
    catches(lab, 11)


@points(
    1,
    "check_hit_rate",
    stage="adversary",
    after="test_3_check_hit_rate_accuses_no_correct_version",
    why="the version breaks one sentence of the contract",
)
def test_version_12_is_caught(lab: LabUnderTest) -> None:
    """The examples fail on version 12."""
    catches(lab, 12)

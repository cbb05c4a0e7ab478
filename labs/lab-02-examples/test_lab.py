"""lab-02, examples: yours are the tests here, and these tests check them.

First your examples run on correct queues, which they must not accuse. Then they run on twelve faulty queues.
"""

from mini_kv.course import points
from mini_kv.course.labkit.fixture import LabUnderTest

from .helpers import accepts_all, catches

# The biography ------------------------------------------------------------------------------------------------------


@points(2, "check_taking", why="the contract allows what this queue does")
def test_1_check_taking_accuses_no_correct_queue(lab: LabUnderTest) -> None:
    """The examples pass every correct queue, and accuse at least one faulty queue."""
    accepts_all(lab, "check_taking")


@points(2, "check_returning", why="the contract allows what this queue does")
def test_2_check_returning_accuses_no_correct_queue(lab: LabUnderTest) -> None:
    """The examples pass every correct queue, and accuse at least one faulty queue."""
    accepts_all(lab, "check_returning")


@points(2, "check_removing", why="the contract allows what this queue does")
def test_3_check_removing_accuses_no_correct_queue(lab: LabUnderTest) -> None:
    """The examples pass every correct queue, and accuse at least one faulty queue."""
    accepts_all(lab, "check_removing")


# The adversary ------------------------------------------------------------------------------------------------------


@points(
    1,
    "check_taking",
    stage="adversary",
    after="test_1_check_taking_accuses_no_correct_queue",
    why="the queue breaks one sentence of the contract",
)
def test_queue_1_is_caught(lab: LabUnderTest) -> None:
    """The examples fail on queue 1."""
    catches(lab, 1)


@points(
    1,
    "check_taking",
    stage="adversary",
    after="test_1_check_taking_accuses_no_correct_queue",
    why="the queue breaks one sentence of the contract",
)
def test_queue_2_is_caught(lab: LabUnderTest) -> None:
    """The examples fail on queue 2."""
    catches(lab, 2)


@points(
    1,
    "check_taking",
    stage="adversary",
    after="test_1_check_taking_accuses_no_correct_queue",
    why="the queue breaks one sentence of the contract",
)
def test_queue_3_is_caught(lab: LabUnderTest) -> None:
    """The examples fail on queue 3."""
    catches(lab, 3)


@points(
    1,
    "check_taking",
    stage="adversary",
    after="test_1_check_taking_accuses_no_correct_queue",
    why="the queue breaks one sentence of the contract",
)
def test_queue_4_is_caught(lab: LabUnderTest) -> None:
    """The examples fail on queue 4."""
    catches(lab, 4)


@points(
    1,
    "check_returning",
    stage="adversary",
    after="test_2_check_returning_accuses_no_correct_queue",
    why="the queue breaks one sentence of the contract",
)
def test_queue_5_is_caught(lab: LabUnderTest) -> None:
    """The examples fail on queue 5."""
    catches(lab, 5)


@points(
    1,
    "check_returning",
    stage="adversary",
    after="test_2_check_returning_accuses_no_correct_queue",
    why="the queue breaks one sentence of the contract",
)
def test_queue_6_is_caught(lab: LabUnderTest) -> None:
    """The examples fail on queue 6."""
    catches(lab, 6)


@points(
    1,
    "check_returning",
    stage="adversary",
    after="test_2_check_returning_accuses_no_correct_queue",
    why="the queue breaks one sentence of the contract",
)
def test_queue_7_is_caught(lab: LabUnderTest) -> None:
    """The examples fail on queue 7."""
    catches(lab, 7)


@points(
    1,
    "check_returning",
    stage="adversary",
    after="test_2_check_returning_accuses_no_correct_queue",
    why="the queue breaks one sentence of the contract",
)
def test_queue_8_is_caught(lab: LabUnderTest) -> None:
    """The examples fail on queue 8."""
    catches(lab, 8)


@points(
    1,
    "check_removing",
    stage="adversary",
    after="test_3_check_removing_accuses_no_correct_queue",
    why="the queue breaks one sentence of the contract",
)
def test_queue_9_is_caught(lab: LabUnderTest) -> None:
    """The examples fail on queue 9."""
    catches(lab, 9)


@points(
    1,
    "check_removing",
    stage="adversary",
    after="test_3_check_removing_accuses_no_correct_queue",
    why="the queue breaks one sentence of the contract",
)
def test_queue_10_is_caught(lab: LabUnderTest) -> None:
    """The examples fail on queue 10."""
    catches(lab, 10)


@points(
    1,
    "check_removing",
    stage="adversary",
    after="test_3_check_removing_accuses_no_correct_queue",
    why="the queue breaks one sentence of the contract",
)
def test_queue_11_is_caught(lab: LabUnderTest) -> None:
    """The examples fail on queue 11."""
    catches(lab, 11)


@points(
    1,
    "check_removing",
    stage="adversary",
    after="test_3_check_removing_accuses_no_correct_queue",
    why="the queue breaks one sentence of the contract",
)
def test_queue_12_is_caught(lab: LabUnderTest) -> None:
    """The examples fail on queue 12."""
    catches(lab, 12)

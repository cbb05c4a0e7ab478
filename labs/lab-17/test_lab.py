"""lab-17: a KV cache from an empty file. Each test is a topic of the board, and plays its scenarios in turn.

The calls and the answers were recorded from vLLM 0.33. A failure has the first call after which a state differs.
"""

from mini_kv.course import points
from mini_kv.course.labkit.fixture import LabUnderTest

from .helpers import check_topic


@points(6, "answer")
def test_1_cold(lab: LabUnderTest) -> None:
    """A prompt that nobody has sent before gets slots, and its full blocks get hashes."""
    check_topic(lab, "cold")


@points(7, "answer")
def test_2_hits(lab: LabUnderTest) -> None:
    """A prompt finds the blocks of an earlier one that begins like it."""
    check_topic(lab, "hits")


@points(6, "answer")
def test_3_sharing(lab: LabUnderTest) -> None:
    """A block is in several tables, and of two blocks with one hash the older one is found."""
    check_topic(lab, "sharing")


@points(7, "answer")
def test_4_freeing(lab: LabUnderTest) -> None:
    """Freed blocks go to their places in the free queue."""
    check_topic(lab, "freeing")


@points(7, "answer")
def test_5_eviction(lab: LabUnderTest) -> None:
    """A block that is taken is not found any more. Four long runs with many requests are among these."""
    check_topic(lab, "eviction")


@points(7, "answer")
def test_6_refusal(lab: LabUnderTest) -> None:
    """A request that does not fit is refused, and nothing changes."""
    check_topic(lab, "refusal")


@points(2, "answer")
def test_7_caching_off(lab: LabUnderTest) -> None:
    """Extra: without caching no block gets a hash."""
    check_topic(lab, "caching-off")


@points(2, "answer")
def test_8_salts(lab: LabUnderTest) -> None:
    """Extra: requests with different salts or adapters share nothing."""
    check_topic(lab, "salts")


@points(3, "answer")
def test_9_windows(lab: LabUnderTest) -> None:
    """Extra: layers with a window give up the blocks behind it."""
    check_topic(lab, "windows")


@points(3, "answer")
def test_10_groups(lab: LabUnderTest) -> None:
    """Extra: several groups of layers share a pool, and a hit is one that all of them have."""
    check_topic(lab, "groups")

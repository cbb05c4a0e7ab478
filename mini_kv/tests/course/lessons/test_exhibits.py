"""Five bugs of other engines: each has the symptom of its report, and the engine's own part does not have it."""

import re
from functools import partial

import pytest

from mini_kv.core.free_queue import FreeKVCacheBlockQueue
from mini_kv.core.kv_cache_manager import KVCacheManager
from mini_kv.core.single_type_kv_cache_manager import FullAttentionManager
from mini_kv.course.given.faulty_parts import FREED_TWICE, AnyOrder, CountsAgain, GroupByGroup, HitsTheLastToken
from mini_kv.course.lessons.exhibits import (
    ANY_ORDER,
    COUNTED_AGAIN,
    EVERY_TOKEN_FOUND,
    GROUP_BY_GROUP,
    TWICE_IN_A_LIST,
    error_of,
    reported_rate,
    sent_twice,
    still_found,
    texts,
)


def test_a_hit_on_every_token_leaves_nothing_to_compute():
    """nano-vllm #144: only prompts that end where a block ends."""
    failed = re.findall(r"^ *(\d+) tokens: AllocationError", sent_twice(range(2, 18), HitsTheLastToken), re.MULTILINE)
    assert failed == ["4", "8", "12", "16"]
    assert "Error" not in sent_twice(range(2, 18), FullAttentionManager)


def test_equal_ages_need_a_rule():
    """llm-d-inference-sim #704: any of the three blocks may be evicted. Only the last one can be spared."""
    assert still_found(FreeKVCacheBlockQueue) == 8
    assert {still_found(partial(AnyOrder, seed=seed)) for seed in range(20)} == {0, 4, 8}


def test_a_request_that_is_counted_twice_makes_hits_of_nothing():
    """vllm #25780: random prompts have no common block."""
    assert reported_rate(KVCacheManager) == "hit rate 0.0% (100 requests, 0 of 6,000 tokens hit), 55 preemptions"
    assert reported_rate(CountsAgain).startswith("hit rate 16.1% (155 requests, 1,624 of 10,081 tokens hit), 55 ")


@pytest.mark.slow
def test_a_block_in_two_groups_changes_words_and_raises_no_error():
    """vllm #44409: only in a pool that is nearly full."""
    pytest.importorskip("torch", reason="the small model needs PyTorch: make test")
    right = texts(400, windows=True)
    assert texts(60, windows=True) == right
    wrong = texts(60, windows=True, make_coordinator=GroupByGroup)
    assert 0 < sum(a != b for a, b in zip(right, wrong, strict=True)) < 20
    assert texts(400, windows=True, make_coordinator=GroupByGroup) == right
    found = error_of(60, windows=True, check=True, make_coordinator=GroupByGroup)
    assert found.startswith("InvariantViolationError: I5 broken: block ")


@pytest.mark.slow
def test_a_block_freed_twice_stops_another_request():
    """vllm #42571 and dynamo #13398: the error is in the queue, and the fault in the first call of free."""
    pytest.importorskip("torch", reason="the small model needs PyTorch: make test")
    assert re.fullmatch(r"BlockStateError: block \d+ is not in the free queue", error_of(80, **FREED_TWICE))
    found = error_of(80, check=True, **FREED_TWICE).splitlines()
    assert found[0] == "InvariantViolationError: I1 broken: block 1 has ref_cnt 0 but is held by 1"
    assert found[-1].strip() == "after free(0)"


# Both engines, side by side -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bug", "step", "right", "wrong"),
    [
        (
            EVERY_TOKEN_FOUND,
            3,
            ["lookup B: hit 4", "allocate B: revived 1, allocated 3, cached 3"],
            ["lookup B: hit 8", "allocate B: raised AllocationError"],
        ),
        (
            GROUP_BY_GROUP,
            5,
            ["lookup C: hit 4", "allocate C: revived 9 10, evicted 4..1, allocated 4..1, cached 4..1"],
            ["lookup C: hit 4", "allocate C: revived 9, evicted 10 4..2, allocated 10 4..2, shared 10, cached 10 4..2"],
        ),
        (TWICE_IN_A_LIST, 3, ["free A: freed 3 2, unshared 1"], ["free A: freed 3..1, unshared 1"]),
    ],
)
def test_the_other_engine_does_the_same_until_a_step_that_is_asked_about(bug, step, right, wrong):
    its, other = bug.right()["steps"], bug.wrong()["steps"]
    assert [one["lines"] == two["lines"] for one, two in zip(its[:step], other, strict=False)] == [True] * (
        step - 1
    ) + [False]
    assert (its[step - 1]["lines"], other[step - 1]["lines"]) == (right, wrong)
    assert [number for number, one in enumerate(its, start=1) if "predict" in one] == [step]
    assert not any("predict" in one for one in other)


def test_blocks_in_any_order_are_seen_in_the_queue_before_the_hit_is_lost():
    its, other = (side()["steps"] for side in (ANY_ORDER.right, ANY_ORDER.wrong))
    assert (its[3]["lines"], other[3]["lines"]) == (["lookup C: hit 8"], ["lookup C: hit 0"])
    assert "predict" in its[1]
    assert [(one["free"], two["free"]) for one, two in zip(its[:3], other, strict=False)] == [
        ("4", "4"),
        ("4..1", "4 1 3 2"),
        ("2 1", "3 2"),
    ]


def test_a_second_count_is_the_only_difference():
    its, other = (side()["steps"] for side in (COUNTED_AGAIN.right, COUNTED_AGAIN.wrong))
    assert [step["lines"] for step in its] == [step["lines"] for step in other]
    said = [one["say"].partition("Counted: ")[2] for one in (its[-1], other[-1])]
    assert said == ["2 requests, 0 of 16 words found.", "3 requests, 8 of 25 words found."]
    assert [one["say"] for one in its[:-1]] == [one["say"] for one in other[:-1]]


def test_the_other_pool_gives_a_block_away_that_a_request_uses():
    its, other = (side()["steps"] for side in (TWICE_IN_A_LIST.right, TWICE_IN_A_LIST.wrong))
    assert [step["lines"][-1] for step in its[3:]] == ["allocate C: refused", "free B: freed 4 1"]
    assert other[3]["lines"][-1] == "allocate C: allocated 3..1, evicted 2 1, cached 3..1"
    assert other[4]["lines"] == ["free B: freed 4 1, illegal 1"]

"""Five bugs of other engines: each has the symptom of its report, and the engine's own part does not have it."""

import re
from functools import partial

import pytest

from mini_kv.core.free_queue import FreeKVCacheBlockQueue
from mini_kv.core.kv_cache_manager import KVCacheManager
from mini_kv.core.single_type_kv_cache_manager import FullAttentionManager
from mini_kv.course.given.faulty_parts import FREED_TWICE, AnyOrder, CountsAgain, GroupByGroup, HitsTheLastToken
from mini_kv.course.lessons.exhibits import error_of, reported_rate, sent_twice, still_found, texts


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

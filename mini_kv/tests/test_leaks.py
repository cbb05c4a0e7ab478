"""Leaks of an engine at work: none in right runs, and in faulty ones who took what, in which call."""

import pytest

from mini_kv.core.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from mini_kv.core.kv_cache_manager import KVCacheManager
from mini_kv.core.parts import KVCacheParts
from mini_kv.course.given.faulty_parts import FreesFullBlocks
from mini_kv.story.debug import leak_report
from mini_kv.story.leaks import Leak, find_leaks
from mini_kv.story.recorder import Recorder
from mini_kv.story.scenario import prefill
from mini_kv.story.traced_manager import TracedKVCacheManager
from mini_kv.tests.traced_run import random_life, traced_kv


def leaky_kv():
    recorder = Recorder()
    config = KVCacheConfig(9, (KVCacheGroupSpec(("layers",), FullAttentionSpec(2)),))
    parts = KVCacheParts(manager_classes={FullAttentionSpec: FreesFullBlocks}, new_block=recorder.new_block)
    return TracedKVCacheManager(KVCacheManager(config, parts=parts), recorder)


def come(kv, name, *tokens):
    request = kv.new_request(name, tokens)
    prefill(kv, request)
    return request


@pytest.mark.parametrize("seed", range(20))
def test_a_right_cache_has_no_leak(seed):
    """After every call of a random run, with misuse, abandoned steps and resets."""
    for kv in random_life(seed):
        assert find_leaks(kv, kv.spans) == []


def test_the_tail_that_is_not_given_back():
    """While others run; with the call that took it, and when. The head that B shares is no leak."""
    kv = leaky_kv()
    a = come(kv, "A", 1, 1, 2)
    b = come(kv, "B", 1, 1, 2, 2, 3)
    a.append_output_token_ids(4, 5)
    kv.allocate_slots(a, 2)
    a.num_computed_tokens = 5
    assert find_leaks(kv, kv.spans) == []
    kv.free(a)
    assert find_leaks(kv, kv.spans) == [Leak("A", [5], 4, "allocate_slots")]
    kv.free(b)
    leaks = find_leaks(kv, kv.spans, times=[0.5 * i for i in range(len(kv.spans))])
    assert leaks == [Leak("A", [5], 2.0, "allocate_slots"), Leak("B", [4], 1.5, "allocate_slots")][::-1]
    assert str(leaks[0]) == "block 4 taken by allocate B, since 1.5"
    report = leak_report(kv.manager, {})  # the last request is gone: both name the same blocks
    assert [f"block {block}" in report for block in (3, 4, 5, 6)] == [False, True, True, False]


def test_a_request_that_is_over_and_was_never_freed():
    """The cache knows it still; who serves it says that it is over. What it shares with one that is served, too."""
    kv = traced_kv(num_blocks=9, block_size=2)
    come(kv, "A", 1, 1, 2, 2, 3)
    come(kv, "B", 1, 1, 4)
    assert find_leaks(kv, kv.spans) == []
    assert find_leaks(kv, kv.spans, alive=["B"]) == [Leak("A", [1, 2, 3], 1, "allocate_slots")]
    assert [leak.block_ids for leak in find_leaks(kv, kv.spans, alive=[])] == [[1, 2, 3], [1, 4]]


def test_what_no_recorded_call_took():
    """A reference from nowhere is still found."""
    kv = traced_kv(num_blocks=9, block_size=2)
    kv.block_pool.get_new_blocks(1)
    assert find_leaks(kv, kv.spans) == [Leak("?", [1], 0, "no known call")]


def test_copies_under_way_are_no_leak():
    """Both ends of a copy are held until the step has run."""
    kv = traced_kv(num_blocks=9, block_size=2)
    a = come(kv, "A", 1, 1, 2)
    b = kv.new_request("B", [1, 1, 2, 7])
    kv.fork(a, b)
    b.num_computed_tokens = 3
    kv.allocate_slots(b, 1)
    assert kv.copy_on_write.pinned
    assert find_leaks(kv, kv.spans) == []
    kv.finish_kv_cache_block_copies()
    kv.free(b)
    kv.free(a)
    assert find_leaks(kv, kv.spans) == []

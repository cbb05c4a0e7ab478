"""Numbers folded from spans: worked out by hand, then against naive recounts of random runs."""

import pytest

from mini_kv.story.edge import EdgeKind
from mini_kv.story.frame import Frame, frame_of
from mini_kv.story.metrics import (
    MemoryUse,
    cached_over_time,
    count_edges,
    held_over_time,
    memory_over_time,
    peak_usage,
)
from mini_kv.story.scenario import prefill
from mini_kv.tests.traced_run import random_life, traced_kv


def test_a_small_life_counted_by_hand():
    """Three usable blocks of two tokens: every series is short enough to check on paper."""
    kv = traced_kv(num_blocks=4, block_size=2)
    a = kv.new_request("A", [1, 2, 3])
    prefill(kv, a)  # lookup, allocate 1 2, block 1 is full
    prefill(kv, kv.new_request("B", [1, 2, 3, 4]))  # lookup, share 1, allocate 3, which is full
    prefill(kv, kv.new_request("C", [5]))  # lookup, refused
    kv.free(a)  # 2 is free, 1 is still B's
    prefill(kv, kv.new_request("C", [5]))  # lookup, allocate 2
    kv.free(kv.requests["B"])  # 3 and 1 are free and cached
    prefill(kv, kv.new_request("D", [6, 7]))  # lookup, evict 3 and fill it
    assert held_over_time(kv.spans) == [0, 2, 2, 3, 3, 3, 2, 2, 3, 1, 1, 2]
    assert cached_over_time(kv.spans) == [0, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2, 2]
    assert peak_usage(kv.spans) == 3
    assert count_edges(kv.spans) == {
        EdgeKind.ALLOCATED: 5,
        EdgeKind.CACHED: 3,
        EdgeKind.SHARED: 1,
        EdgeKind.UNSHARED: 1,
        EdgeKind.FREED: 3,
        EdgeKind.EVICTED: 1,
    }


def test_no_spans_at_all():
    """No spans, no numbers, no exception."""
    assert (held_over_time([]), cached_over_time([]), peak_usage([])) == ([], [], 0)


@pytest.mark.parametrize("seed", range(20))
def test_metrics_agree_with_naive_recounts(seed):
    """Count the blocks themselves after every call of a random run, and compare."""
    states: list[Frame] = []
    for kv in random_life(seed):
        states.append(frame_of(kv.manager))
    held = [sum(view.ref_cnt > 0 for view in state.blocks) for state in states]
    cached = [sum(view.block_hash is not None for view in state.blocks) for state in states]
    assert held_over_time(kv.spans) == held
    assert cached_over_time(kv.spans) == cached
    assert peak_usage(kv.spans) == max(held)


def test_where_the_memory_is_counted_by_hand():
    """The small life of above: used, cached and empty are all three blocks, after every call."""
    kv = traced_kv(num_blocks=4, block_size=2)
    a = kv.new_request("A", [1, 2, 3])
    prefill(kv, a)
    kv.free(a)  # block 2 never became full: it is empty again; block 1 is remembered
    prefill(kv, kv.new_request("B", [1, 2, 5, 6]))
    kv.free(kv.requests["B"])
    kv.reset_prefix_cache()
    uses = memory_over_time([span.edges for span in kv.spans], num_blocks=4)
    assert uses == [(0, 0, 3), (2, 0, 1), (0, 1, 2), (0, 1, 2), (2, 0, 1), (0, 2, 1), (0, 0, 3)]
    assert uses[1] == MemoryUse(used=2, cached=0, empty=1)


@pytest.mark.parametrize("seed", range(20))
def test_where_the_memory_is_agrees_with_a_recount(seed):
    """Count the blocks themselves after every call of a random run."""
    states: list[Frame] = []
    for kv in random_life(seed):
        states.append(frame_of(kv.manager))
    expected = []
    for state in states:
        usable = state.blocks[1:]
        used = sum(view.ref_cnt > 0 for view in usable)
        cached = sum(view.ref_cnt == 0 and view.block_hash is not None for view in usable)
        expected.append(MemoryUse(used, cached, len(usable) - used - cached))
    assert memory_over_time([span.edges for span in kv.spans], len(states[0].blocks)) == expected

"""Numbers folded from spans: worked out by hand, then against naive recounts of random runs."""

import pytest

from mini_kv.story.frame import Frame, frame_of
from mini_kv.story.metrics import MemoryUse, memory_over_time
from mini_kv.story.scenario import prefill
from mini_kv.tests.traced_run import random_life, traced_kv


def test_where_the_memory_is_counted_by_hand():
    """Used, cached and empty are all three blocks, after every call."""
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

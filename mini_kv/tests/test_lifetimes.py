"""Lives of blocks and uses of keys: by hand, against what the blocks themselves say, and against slow recounts."""

import pytest

from mini_kv.story.edge import Edge, EdgeKind
from mini_kv.story.lifetimes import Life, Residency, Reuse, block_lives, histogram, residency, reuses
from mini_kv.story.scenario import prefill
from mini_kv.story.traced_manager import Span, edges_of
from mini_kv.tests.traced_run import lived, random_life, traced_kv


def test_a_small_life_by_hand():
    """Two usable blocks of two tokens; A is computed, found again by B, and evicted by C. Calls are the clock."""
    kv = traced_kv(num_blocks=3, block_size=2)
    for name, tokens in (("A", [1, 2, 3]), ("B", [1, 2, 4]), ("C", [5, 6, 7])):
        request = kv.new_request(name, tokens)
        prefill(kv, request)
        kv.free(request)
    key, other = (edge.block_hash for edge in edges_of(kv.spans) if edge.kind is EdgeKind.CACHED)
    assert block_lives(kv.spans) == [
        Life(1, 1, key, [4], 7),
        Life(2, 1, None, [], 2),
        Life(2, 4, None, [], 5),
        Life(2, 7, other, [], None),
        Life(1, 7, None, [], 8),
    ]
    lives = block_lives(kv.spans, [10 * i for i in range(9)])
    assert [(life.lifetime, life.idle_before_evict) for life in lives[:4]] == [
        (60, 30),
        (10, 10),
        (10, 10),
        (None, None),
    ]
    assert reuses(kv.spans) == [Reuse(str(key), gap=3, distance=0, found=True)]
    assert residency(block_lives(kv.spans), end=8) == Residency(found=6, never_found=1, no_key=3)


@pytest.mark.parametrize("seed", range(20))
def test_open_lives_are_what_the_blocks_say(seed):
    """After every call of a random run: a life that goes on is a block that is held or has a key, and the same key."""
    for kv in random_life(seed):
        blocks = [block for block in kv.block_pool.blocks[1:] if block.ref_cnt or block.block_hash]
        state = {block.block_id: block.block_hash.hex() if block.block_hash else None for block in blocks}
        open_lives = [life for life in block_lives(kv.spans) if life.ended is None]
        assert {life.block_id: life.block_hash for life in open_lives} == state
        assert len(open_lives) == len(state)


def uses_of(spans):
    used = (EdgeKind.CACHED, EdgeKind.SHARED, EdgeKind.REVIVED)
    uses = [(time, edge) for time, span in enumerate(spans) for edge in span.edges if edge.kind in used]
    return [(time, edge) for time, edge in uses if edge.block_hash is not None]


@pytest.mark.parametrize("seed", range(20))
def test_reuses_against_a_slow_recount(seed):
    """Between two uses of a key: the set of the others, looked at one by one."""
    spans = lived(seed).spans
    uses = uses_of(spans)
    expected = []
    for here, (time, edge) in enumerate(uses):
        before = [there for there in range(here) if uses[there][1].block_hash == edge.block_hash]
        if before:
            between = {other.block_hash for _, other in uses[before[-1] + 1 : here]}
            gap = time - uses[before[-1]][0]
            expected.append(Reuse(str(edge.block_hash), gap, len(between), edge.kind is not EdgeKind.CACHED))
    assert reuses(spans) == expected
    assert any(reuse.found for reuse in expected) and not all(reuse.found for reuse in expected)


@pytest.mark.parametrize("seed", range(5))
def test_residency_is_all_blocks_that_are_not_empty(seed):
    """The three shares add up to the occupied blocks, counted after every call but the last."""
    occupied = [
        sum(1 for block in kv.block_pool.blocks[1:] if block.ref_cnt or block.block_hash) for kv in random_life(seed)
    ]
    spans = lived(seed).spans
    assert sum(residency(block_lives(spans), end=len(spans) - 1)) == sum(occupied[:-1])


def test_what_there_is_none_of():
    """No call, no life; times must be as many as calls; a histogram of nothing has no bar."""
    assert (block_lives([]), reuses([]), histogram([])) == ([], [], {})
    assert histogram([0, 0.5, 1, 8]) == {1: 2, 2: 1, 4: 0, 8: 0, 16: 1}
    with pytest.raises(ValueError, match="argument 2 is longer"):
        block_lives([Span("free")], [])


def test_a_block_that_was_never_handed_out_has_no_life():
    """A lenient recorder writes down what a faulty cache does; it makes no life, and stops no fold."""
    kv = traced_kv(num_blocks=3, block_size=2, strict=False)
    kv.spans.append(Span("free", edges=[Edge(EdgeKind.ILLEGAL, 1, -1, None), Edge(EdgeKind.FREED, 2, 0, None)]))
    assert block_lives(kv.spans) == []

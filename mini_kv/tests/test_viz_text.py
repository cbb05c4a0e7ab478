"""The drawing in plain characters, compared as whole texts."""

import pytest

from mini_kv.core.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, SlidingWindowSpec
from mini_kv.core.kv_cache_manager import KVCacheManager
from mini_kv.core.parts import KVCacheParts
from mini_kv.story.frame import BlockView, Frame, frame_of, frames
from mini_kv.story.recorder import Recorder
from mini_kv.story.story_text import story
from mini_kv.story.text import BOLD, PLAIN, draw_state, elide
from mini_kv.story.traced_manager import TracedKVCacheManager
from mini_kv.tests.traced_run import random_life

SHARED = Frame(
    blocks=(
        BlockView(0),
        BlockView(1, 2, "aa"),
        BlockView(2, 1),
        BlockView(3, 1, "bb"),
        BlockView(4, 0, "cc"),
        BlockView(5),
    ),
    tables={"A": [[1, 2]], "request-B": [[1, 3]]},
    free_order=[5, 4],
)


def drawn(frame, *args, **options):
    return "\n".join(draw_state(frame, *args, **options))


def test_tables_and_queue():
    """One row per table, requests in one column, then the queue from next to last."""
    assert drawn(SHARED) == ("A          [1x2#] [2x1 ]\nrequest-B  [1x2#] [3x1#]\nfree       next-> 5 4# <-last")


def test_an_empty_cache():
    """No table yet: the queue alone."""
    assert drawn(frame_of(KVCacheManager.for_full_attention(4, 2))) == "free  next-> 1 2 3 <-last"


def test_a_table_without_blocks():
    """Its name alone, and no spaces behind it."""
    assert drawn(Frame((BlockView(0), BlockView(1)), {"A": [[]]}, [1])) == "A\nfree  next-> 1 <-last"


def test_a_full_cache():
    """No free block is left: the queue has two ends and nothing between."""
    kv = KVCacheManager.for_full_attention(3, 2)
    kv.allocate_slots(kv.new_request("A", [1, 2, 3]), 3)
    assert drawn(frame_of(kv)) == "A     [1x1#] [2x1 ]\nfree  next-> <-last"


def test_one_row_per_group_if_there_are_several():
    """The table of each group by its number; one group needs none."""
    groups = tuple(KVCacheGroupSpec((f"layers {n}",), FullAttentionSpec(2)) for n in range(2))
    kv = KVCacheManager(KVCacheConfig(9, groups), enable_caching=False)
    kv.allocate_slots(kv.new_request("A", [1, 2, 3]), 3)
    assert drawn(frame_of(kv)) == ("A.0   [1x1 ] [2x1 ]\nA.1   [3x1 ] [4x1 ]\nfree  next-> 5 6 7 8 <-last")


def test_what_left_a_window_is_a_null_block():
    """Two groups, a window of 3: its first two blocks were given back, and wait with their keys."""
    specs = (FullAttentionSpec(2), SlidingWindowSpec(2, sliding_window=3))
    groups = tuple(KVCacheGroupSpec((f"layers {n}",), spec) for n, spec in enumerate(specs))
    recorder = Recorder()
    traced = TracedKVCacheManager(
        KVCacheManager(KVCacheConfig(10, groups), parts=KVCacheParts(new_block=recorder.new_block)),
        recorder,
        snapshots=True,
    )
    request = traced.new_request("A", range(6))
    traced.allocate_slots(request, 6)
    request.num_computed_tokens = 6
    request.append_output_token_ids(6)
    traced.allocate_slots(request, 1)
    assert story(traced.spans) == [
        "allocate A: allocated 1..6, cached 1..6",
        "allocate A: freed 5 4, allocated 7 8",
    ]
    last = frames(traced.spans, 10)[-1]
    assert last == frame_of(traced.manager)
    assert drawn(last) == (
        "A.0   [1x1#] [2x1#] [3x1#] [7x1 ]\nA.1   [null] [null] [6x1#] [8x1 ]\nfree  next-> 9 5# 4# <-last"
    )


def test_long_rows_lose_their_middle():
    """Ten cells of a table, twelve of the queue; both ends stay, and the number left out stands between."""
    kv = KVCacheManager.for_full_attention(30, 1)
    kv.allocate_slots(kv.new_request("A", range(11)), 11)
    kv.allocate_slots(kv.new_request("B", range(50, 60)), 5)
    assert drawn(frame_of(kv)) == (
        "A     [1x1#] [2x1#] [3x1#] [4x1#] ..3 more.. [8x1#] [9x1#] [10x1#] [11x1#]\n"
        "B     [12x1#] [13x1#] [14x1#] [15x1#] [16x1#]\n"
        "free  next-> 17 18 19 20 21 ..3 more.. 25 26 27 28 29 <-last"
    )
    assert drawn(frame_of(kv), max_blocks=4) == (
        "A     [1x1#] ..9 more.. [11x1#]\nB     [12x1#] ..3 more.. [16x1#]\nfree  next-> 17 18 ..9 more.. 28 29 <-last"
    )


@pytest.mark.parametrize(
    ("num_cells", "max_cells", "shown"),
    [
        (0, 3, []),
        (3, 3, ["0", "1", "2"]),
        (4, 3, ["0", "..2 more..", "3"]),
        (10, 10, list("0123456789")),
        (11, 10, ["0", "1", "2", "3", "..3 more..", "7", "8", "9", "10"]),
        (1000, 5, ["0", "1", "..996 more..", "998", "999"]),
    ],
)
def test_no_more_cells_than_there_is_room_for(num_cells, max_cells, shown):
    """What fits is shown whole; what does not, by its two ends."""
    assert elide([str(n) for n in range(num_cells)], max_cells) == shown
    assert len(shown) <= max_cells


def test_bold_only_with_colour():
    """Changed blocks are set in bold, in tables and queue alike; without colour not a single escape code."""
    assert drawn(SHARED, {1, 4}) == drawn(SHARED)
    assert drawn(SHARED, colour=True) == drawn(SHARED)
    assert drawn(SHARED, {1, 4}, colour=True) == (
        f"A          {BOLD}[1x2#]{PLAIN} [2x1 ]\n"
        f"request-B  {BOLD}[1x2#]{PLAIN} [3x1#]\n"
        f"free       next-> 5 {BOLD}4#{PLAIN} <-last"
    )
    assert (BOLD, PLAIN) == ("\x1b[1m", "\x1b[0m")


def test_no_line_ends_in_spaces_and_none_is_wider_than_a_screen():
    """Whatever the state: drawings can stand in tests, diffs and books."""
    for kv in random_life(seed=1, num_steps=200):
        lines = draw_state(frame_of(kv.manager))
        assert [line.rstrip() for line in lines] == lines
        assert max(map(len, lines)) <= 100
        assert len({min(line.find(start) for start in ("[", "next->") if start in line) for line in lines}) == 1

"""A story as lines of text: one per call, ids in runs, and the place where two stories part."""

import random

import pytest

from mini_kv.core.errors import UnknownRequestError
from mini_kv.story.scenario import ScenarioPlayer, load_scenario, prefill
from mini_kv.story.story_text import first_difference, id_runs, story
from mini_kv.tests.traced_run import traced_kv


@pytest.mark.parametrize(
    ("ids", "text"),
    [
        ([], ""),
        ([5], "5"),
        ([1, 2], "1 2"),
        ([1, 2, 3], "1..3"),
        ([3, 2, 1], "3..1"),
        ([1, 2, 1], "1 2 1"),
        ([1, 2, 3, 2, 1, 0], "1..3 2..0"),
        ([2, 1, 2, 3, 4], "2 1 2..4"),
        ([4, 4, 4], "4 4 4"),
        ([1, 2, 3, 5, 6, 8], "1..3 5 6 8"),
        ([9, 7, 6, 5, 4, 3, 2, 1], "9 7..1"),
        ([10, 8, 9], "10 8 9"),
    ],
)
def test_runs_of_three_and_more_are_written_short(ids, text):
    """Up or down by one; two are no run, a turn ends it."""
    assert id_runs(ids) == text


def test_no_id_is_lost_in_a_run():
    """Read back, the text is the list again, whatever the list."""
    rng = random.Random(0)
    for _ in range(500):
        ids = [rng.randint(0, 9)]
        for _ in range(rng.randint(0, 12)):
            ids.append(rng.choice((ids[-1] + 1, ids[-1] + 1, max(ids[-1] - 1, 0), rng.randint(0, 9))))
        back: list[int] = []
        for part in id_runs(ids).split():
            first, _, last = part.partition("..")
            step = 1 if int(last or first) >= int(first) else -1
            back += range(int(first), int(last or first) + step, step)
        assert back == ids


def test_a_line_for_every_call_and_every_outcome():
    """Hit, allocation, refusal, exception, withdrawal, eviction, reset: each in its own words."""
    kv = traced_kv(num_blocks=5, block_size=2)
    a = kv.new_request("A", [1, 2, 3, 4])
    prefill(kv, a)
    b = kv.new_request("B", [1, 2, 3, 4, 5, 6])
    hit, num_hits = kv.get_computed_blocks(b)
    kv.allocate_slots(b, 6 - num_hits, num_hits, hit)
    b.num_computed_tokens = num_hits
    kv.allocate_slots(kv.new_request("C", [9, 9, 9]), 3)
    kv.reset_prefix_cache()
    kv.withdraw_promises(b)
    kv.withdraw_promises(b)
    kv.free(b)
    with pytest.raises(UnknownRequestError):
        kv.free(b)
    kv.evict_blocks([2])
    kv.free(a)
    kv.evict_blocks([1, 2])
    prefill(kv, kv.new_request("D", [7, 7, 7, 7, 7, 7, 7, 7]))
    kv.free(kv.requests["D"])
    kv.reset_prefix_cache()
    kv.reset_prefix_cache()
    assert story(kv.spans) == [
        "lookup A: hit 0",
        "allocate A: allocated 1 2, cached 1 2",
        "lookup B: hit 4",
        "allocate B: shared 1 2, allocated 3, cached 3",
        "allocate C: refused",
        "reset: refused",
        "withdraw B: uncached 3",
        "withdraw B: nothing changed",
        "free B: freed 3, unshared 2 1",
        "free B: raised UnknownRequestError",
        "evict: uncached 2",
        "free A: freed 2 1",
        "evict: evicted 1",
        "lookup D: hit 0",
        "allocate D: allocated 2..4 1, cached 2..4 1",
        "free D: freed 1 4..2",
        "reset: evicted 1..4",
        "reset: nothing changed",
    ]


def test_a_slot_in_a_block_that_is_there_changes_nothing():
    """The next token usually has its slot already; the story says so instead of saying nothing."""
    kv = traced_kv(num_blocks=5, block_size=4)
    a = kv.new_request("A", [1, 2])
    prefill(kv, a)
    a.append_output_token_ids(3)
    kv.allocate_slots(a, 1)
    assert story(kv.spans)[2:] == ["allocate A: nothing changed"]


EXPECTED = ["lookup A: hit 0", "allocate A: allocated 1 2", "free A: freed 2 1"]


def test_two_equal_stories_do_not_part():
    """No difference is no text; and nothing is equal to nothing."""
    assert first_difference(EXPECTED, list(EXPECTED)) is None
    assert first_difference([], []) is None


@pytest.mark.parametrize(
    ("got", "text"),
    [
        (
            ["lookup A: hit 0", "allocate A: allocated 1 3", "free A: freed 3 1"],
            "the story differs at call 2\n"
            "  after     lookup A: hit 0\n"
            "  expected  allocate A: allocated 1 2\n"
            "  got       allocate A: allocated 1 3",
        ),
        (
            ["lookup A: hit 4", *EXPECTED[1:]],
            "the story differs at call 1\n  expected  lookup A: hit 0\n  got       lookup A: hit 4",
        ),
        (
            EXPECTED[:2],
            "the story differs at call 3\n"
            "  after     allocate A: allocated 1 2\n"
            "  expected  free A: freed 2 1\n"
            "  got       (the end)",
        ),
        (
            [*EXPECTED, "lookup B: hit 0"],
            "the story differs at call 4\n"
            "  after     free A: freed 2 1\n"
            "  expected  (the end)\n"
            "  got       lookup B: hit 0",
        ),
        ([], "the story differs at call 1\n  expected  lookup A: hit 0\n  got       (the end)"),
    ],
)
def test_where_two_stories_part(got, text):
    """The first call that differs, with the one before it; too short and too long count as well."""
    assert first_difference(EXPECTED, got) == text


def test_share_and_evict_call_by_call():
    """Shared, lingering after the last holder, evicted from the tails, revived from the middle.

    For each call: the story, each request's table with the reference counts, and the free queue.
    """
    told = []
    for played in ScenarioPlayer(load_scenario("share-and-evict")).play():
        blocks, tables = played.frame.blocks, played.frame.tables
        counts = {name: (ids, [blocks[n].ref_cnt for n in ids]) for name, (ids,) in tables.items()}
        told.append((played.lines, counts, played.frame.free_order))
    a, b, c, d = [1, 2, 3, 4, 5, 6, 7, 8], [1, 2, 3, 4, 5, 6, 7, 9], [10, 8, 9], [1, 2, 3, 4, 7]
    shared, alone = [2, 2, 2, 2, 2, 2, 2, 1], [1, 1, 1, 1, 1, 1, 1, 1]
    assert told == [
        (["lookup A: hit 0", "allocate A: allocated 1..8, cached 1..8"], {"A": (a, alone)}, [9, 10]),
        (
            ["lookup B: hit 28", "allocate B: shared 1..7, allocated 9, cached 9"],
            {"A": (a, shared), "B": (b, shared)},
            [10],
        ),
        (["free A: freed 8, unshared 7..1"], {"B": (b, alone)}, [10, 8]),
        (["free B: freed 9 7..1"], {}, [10, 8, 9, 7, 6, 5, 4, 3, 2, 1]),
        (
            ["lookup C: hit 0", "allocate C: allocated 10 8 9, evicted 8 9, cached 10 8 9"],
            {"C": (c, alone[:3])},
            [7, 6, 5, 4, 3, 2, 1],
        ),
        (["free C: freed 9 8 10"], {}, [7, 6, 5, 4, 3, 2, 1, 9, 8, 10]),
        (
            ["lookup D: hit 16", "allocate D: revived 1..4, evicted 7, allocated 7, cached 7"],
            {"D": (d, alone[:5])},
            [6, 5, 9, 8, 10],
        ),
        (["free D: freed 7 4..1"], {}, [6, 5, 9, 8, 10, 7, 4, 3, 2, 1]),
    ]

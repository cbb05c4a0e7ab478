"""Replays short enough to be worked out on paper, then the checked-in trace."""

from dataclasses import replace
from pathlib import Path

import pytest

from mini_kv.core.errors import ConfigError
from mini_kv.core.parts import KVCacheParts
from mini_kv.story.edge import EdgeKind
from mini_kv.story.recorder import Recorder
from mini_kv.tools import traces
from mini_kv.tools.traces.readers.mooncake import TraceRequest, read_trace
from mini_kv.tools.traces.replay import Found, num_blocks_for_all, replay
from mini_kv.tools.traces.synthetic import generate


def ask(num_tokens, *hash_ids):
    return TraceRequest(0, num_tokens, 1, hash_ids)


@pytest.fixture(scope="module")
def small_trace():
    return read_trace(Path(traces.__file__).with_name("small.jsonl"))


def figures(report, *names):
    return {name: report.as_dict()[name] for name in names}


def same_but(report, other, *names):
    """Compare two reports, `seconds` and the named figures aside."""
    aside = dict.fromkeys(("seconds", *names), 0)
    return replace(report, **aside) == replace(other, **aside)


def test_a_story_without_eviction():
    trace = [
        ask(1300, 1, 2, 3),  #    nothing is cached yet                              cold
        ask(1300, 1, 2, 3),  #    blocks 1 and 2; the partial block is never found   1024
        ask(1024, 1, 2),  #       block 1; the last token has to be computed          512
        ask(600, 1, 4),  #        block 1                                             512
        ask(500, 5),  #           no full block                                      cold
        ask(1600, 6, 2, 3, 7),  # id 2 after another prefix is another block         cold
    ]
    report = replay(trace)
    assert same_but(
        report,
        replace(
            report,
            num_blocks=1 + 3 + 3 + 2 + 2 + 1 + 4,
            concurrency=1,
            requests=6,
            requests_refused=0,
            prompt_tokens_refused=0,
            found=(
                Found("nothing", 3, 1300 + 500 + 1600, 0),
                Found("less than 1/4"),
                Found("1/4 to 3/4", 1, 1024, 512),
                Found("3/4 or more", 2, 1300 + 600, 1024 + 512),
            ),
            prompt_tokens=1300 + 1300 + 1024 + 600 + 500 + 1600,
            hit_tokens=1024 + 512 + 512,
            full_blocks=2 + 2 + 2 + 1 + 0 + 3,
            hit_blocks=2 + 1 + 1,
            distinct_blocks=5,  # 1, 1-2, 6, 6-2, 6-2-3
            evictions=0,
            peak_held_blocks=4,  # the last request's
        ),
    )
    assert report.hit_rate_of_prompt_tokens == 2048 / 6324
    assert report.hit_rate_of_full_blocks == 4 / 10
    assert report.peak_usage == 4 / 15


def test_a_story_with_eviction():
    """Three blocks, b1 to b3; in brackets the key. The free queue after each request, its front on the left."""
    trace = [
        ask(1024, 1, 2),  #    cold                             b3     b2[2]  b1[1]
        ask(512, 3),  #        cold                             b2[2]  b1[1]  b3[3]
        ask(513, 1, 4),  #     hits 1, b2 loses 2               b2     b3[3]  b1[1]
        ask(1025, 1, 2, 5),  # hits 1, b3 loses 3               b3     b2[2]  b1[1]
        ask(513, 3, 6),  #     cold, b2 loses 2                 b2     b1[1]  b3[3]
    ]
    report = replay(trace, 4)
    assert figures(report, "hit_tokens", "full_blocks", "hit_blocks", "evictions", "peak_held_blocks") == {
        "hit_tokens": 1024,
        "full_blocks": 7,
        "hit_blocks": 2,
        "evictions": 3,
        "peak_held_blocks": 3,
    }
    assert [group.requests for group in report.found] == [3, 0, 1, 1]
    assert report.peak_usage == 1.0


CROWD = [
    ask(1024, 1, 2),
    ask(1024, 1, 3),
    ask(1024, 4, 5),
    ask(1536, 1, 2, 6),
]


def test_the_oldest_finishes_when_its_place_or_its_blocks_are_needed():
    """Four blocks, two requests at once.

    A takes b1, b2. B shares b1 and takes b3. C needs a place, so A ends and b2 is free; C takes b4 and b2, which loses
    key 2: four blocks are held. D needs a place, so B ends: b3 and b1 are free. D revives b1 and needs two more, but
    there is only b3; so C ends, too, and D takes b3 and b2, which lose keys 3 and 5.
    """
    report = replay(CROWD, 5, concurrency=2)
    assert figures(report, "hit_tokens", "evictions", "peak_held_blocks") == {
        "hit_tokens": 1024,
        "evictions": 3,
        "peak_held_blocks": 4,
    }


def test_one_at_a_time_a_request_holds_its_own_blocks_only():
    assert replay(CROWD, 5).peak_held_blocks == 3


@pytest.mark.parametrize(("concurrency", "held"), [(1, 1), (2, 2), (3, 3), (6, 6), (100, 6)])
def test_no_more_run_at_once_than_allowed(concurrency, held):
    trace = [ask(100, hash_id) for hash_id in range(6)]
    assert replay(trace, 50, concurrency=concurrency).peak_held_blocks == held


def test_a_running_request_is_shared_not_copied():
    trace = [ask(1025, 1, 2, hash_id) for hash_id in (3, 4, 5)]
    report = replay(trace, 100, concurrency=3)
    assert (report.hit_blocks, report.peak_held_blocks) == (4, 2 + 3)


@pytest.mark.parametrize("concurrency", [1, 2])
def test_a_prompt_larger_than_the_pool_is_refused_and_changes_nothing(concurrency):
    """Two blocks: a prompt of two fits if it is alone, a prompt of three never does."""
    small, large = ask(1024, 1, 2), ask(1025, 1, 2, 3)
    report = replay([small, large, small], 3, concurrency=concurrency)
    without = replay([small, small], 3, concurrency=concurrency)
    assert (report.requests_refused, report.prompt_tokens_refused) == (1, 1025)
    assert [group.requests for group in report.found] == [1, 0, 1, 0]
    assert same_but(report, without, "requests", "requests_refused", "prompt_tokens_refused")


def test_without_a_token_there_is_no_rate():
    report = replay([ask(513, 1, 2)], 2)
    assert report.requests_refused == 1
    assert report.hit_rate_of_prompt_tokens is None
    assert report.hit_rate_of_full_blocks is None
    assert report.peak_usage == 0.0


def test_a_key_on_two_blocks_counts_as_two_blocks():
    """The last block of a full prompt is computed again each time: two blocks carry its key, one is evicted."""
    trace = [ask(512, 1), ask(512, 1), ask(512, 2)]
    assert replay(trace, 4).evictions == 0
    assert replay(trace, 3).evictions == 1


def test_unbounded_is_a_block_for_each_block_of_each_prompt(small_trace):
    report = replay(small_trace)
    assert report.num_blocks == num_blocks_for_all(small_trace) == 2118
    assert report.evictions == 0
    # Every full block is computed once; but one prompt of 11 full blocks comes twice, and its last is computed again.
    assert report.hit_blocks == report.full_blocks - report.distinct_blocks - 1


@pytest.mark.parametrize("concurrency", [1, 7, 1000])
def test_unbounded_is_enough_for_any_concurrency(small_trace, concurrency):
    report = replay(small_trace, concurrency=concurrency)
    assert (report.hit_tokens, report.evictions, report.requests_refused) == (682_496, 0, 0)


def test_a_pool_of_a_billion_blocks_is_reported_but_not_built(small_trace):
    report = replay(small_trace, 10**9)
    assert report.num_blocks == 10**9
    assert report.peak_usage == 34 / (10**9 - 1)
    assert same_but(report, replay(small_trace), "num_blocks")


@pytest.mark.parametrize(
    ("num_blocks", "concurrency", "hit_tokens", "evictions", "peak_held_blocks"),
    [
        (20, 1, 203_264, 1178, 19),
        (100, 1, 540_160, 766, 34),
        (100, 4, 529_408, 790, 73),
        (100, 16, 506_880, 841, 99),
        (300, 4, 682_496, 291, 73),
    ],
)
def test_the_checked_in_trace(small_trace, num_blocks, concurrency, hit_tokens, evictions, peak_held_blocks):
    report = replay(small_trace, num_blocks, concurrency=concurrency)
    found = figures(report, "hit_tokens", "evictions", "peak_held_blocks")
    assert list(found.values()) == [hit_tokens, evictions, peak_held_blocks]


@pytest.mark.parametrize("num_blocks", [20, 50, 100, 300, 600])
@pytest.mark.parametrize("concurrency", [1, 4, 50])
def test_evictions_are_what_the_blocks_themselves_report(num_blocks, concurrency):
    """The report subtracts; the recorder counts every block that loses its key. Strict: no edge is illegal."""
    trace = generate(seed=num_blocks + concurrency, num_requests=150)
    trace += trace[-3:]  # the same prompts again
    recorder = Recorder()
    report = replay(trace, num_blocks, concurrency=concurrency, parts=KVCacheParts(new_block=recorder.new_block))
    kinds = [edge.kind for edge in recorder.edges]
    assert report.evictions == kinds.count(EdgeKind.EVICTED)
    assert report.full_blocks - report.hit_blocks == kinds.count(EdgeKind.CACHED)


def test_progress_is_told_after_each_request(small_trace):
    done: list[int] = []
    replay([*small_trace[:4], ask(100_000, *range(196))], 50, on_progress=done.append)
    assert done == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("num_blocks", "concurrency", "problem"),
    [(1, 1, "num_blocks is 1"), (-5, 1, "num_blocks is -5"), (10, 0, "concurrency is 0")],
)
def test_settings_that_cannot_work_are_refused(num_blocks, concurrency, problem):
    with pytest.raises(ConfigError, match=problem):
        replay([ask(100, 1)], num_blocks, concurrency=concurrency)

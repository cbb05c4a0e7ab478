"""The numbers behind the charts, worked out by hand on traces of a few requests."""

import pytest

from mini_kv.course.lessons.curves import (
    FollowedRequest,
    OverlapGroup,
    SharedTokens,
    Waste,
    follow_replay,
    group_by_overlap,
    hits_over_pool_sizes,
    hits_over_shared_tokens,
    shared_tokens,
    small_trace,
    waste_over_block_sizes,
)
from mini_kv.story.metrics import MemoryUse
from mini_kv.tools.traces.readers.mooncake import TraceRequest
from mini_kv.tools.traces.replay import replay

# Two chats of two turns that take turns, in blocks of 512: each second turn begins with the whole first one.
#
#   A1  | 0 | 1 | 2 .     1,300 tokens, the last block partial
#   B1  | 3 | 4 |         1,024 tokens
#   A2  | 0 | 1 | 5 | 6   2,048 tokens
#   B1  | 3 | 4 |         the same again
CHATS = [
    TraceRequest(0, 1300, 1, (0, 1, 2)),
    TraceRequest(1, 1024, 1, (3, 4)),
    TraceRequest(2, 2048, 1, (0, 1, 5, 6)),
    TraceRequest(3, 1024, 1, (3, 4)),
]


def test_waste_is_what_the_last_blocks_have_left():
    """5 and 8 tokens: 3 and 0 slots are left in blocks of 4; rows of 10 leave 5 and 2."""
    assert waste_over_block_sizes([5, 8], [1, 4, 10]) == [Waste(1, 13, 0), Waste(4, 16, 3), Waste(10, 20, 7)]
    assert Waste(10, 20, 7).share == 0.35


def test_two_prompts_climb_one_step_a_full_block():
    """Five tokens in blocks of 2: a hit of 2 from two common tokens on, of 4 from four on."""
    assert hits_over_shared_tokens(num_tokens=5, block_size=2) == [
        SharedTokens(0, 0.0, 0.0),
        SharedTokens(1, 0.0, 0.0),
        SharedTokens(2, 0.4, 0.2),
        SharedTokens(3, 0.4, 0.2),
        SharedTokens(4, 0.8, 0.4),
        SharedTokens(5, 0.8, 0.4),
    ]


def test_the_last_step_of_the_staircase_is_missing():
    """The whole prompt in common finds no more than all but its last block: the last token is always computed."""
    assert [point.warm for point in hits_over_shared_tokens(8, 4)] == [0.0] * 4 + [0.5] * 5


def test_what_a_request_shares_with_those_before_it():
    """A block counts behind the same blocks only, and never with the last token of the prompt."""
    assert shared_tokens(CHATS) == [0, 0, 1024, 512]
    assert shared_tokens([TraceRequest(0, 1024, 1, (0, 1)), TraceRequest(1, 1024, 1, (7, 1))]) == [0, 0]


def test_a_replay_followed_request_by_request():
    """One at a time in a pool of five blocks: A2 finds A1's two blocks, and its four take all but one of B1's."""
    assert follow_replay(CHATS, num_blocks=6) == [
        FollowedRequest(1300, 0, 0, MemoryUse(used=3, cached=0, empty=2)),
        FollowedRequest(1024, 0, 0, MemoryUse(used=2, cached=2, empty=1)),
        FollowedRequest(2048, 1024, 1024, MemoryUse(used=4, cached=1, empty=0)),
        FollowedRequest(1024, 512, 512, MemoryUse(used=2, cached=3, empty=0)),
    ]


def test_two_at_a_time_hold_their_blocks_together():
    """While B1 runs, A1 still holds its three blocks."""
    followed = follow_replay(CHATS[:2], num_blocks=9, concurrency=2)
    assert [request.memory for request in followed] == [MemoryUse(3, 0, 2), MemoryUse(5, 0, 0)]


def test_a_pool_that_is_too_small_is_refused_by_name():
    with pytest.raises(ValueError, match="a pool of 4 blocks is too small: a prompt of the trace takes 4"):
        follow_replay(CHATS, num_blocks=4)


def test_groups_by_overlap_lose_no_request():
    """The borders belong below: a quarter shared is in the first warm group."""
    memory = MemoryUse(0, 0, 0)
    requests = [
        FollowedRequest(100, 0, 0, memory),
        FollowedRequest(2048, 512, 0, memory),
        FollowedRequest(2048, 1024, 1024, memory),
        FollowedRequest(1300, 1024, 512, memory),
        FollowedRequest(1024, 512, 512, memory),
    ]
    assert group_by_overlap(requests) == [
        OverlapGroup("nothing", 1, 100, 0, 0),
        OverlapGroup("to 1/4", 1, 2048, 512, 0),
        OverlapGroup("to 2/4", 2, 3072, 1536, 1536),
        OverlapGroup("to 3/4", 0, 0, 0, 0),
        OverlapGroup("more", 1, 1300, 1024, 512),
    ]
    shares = [(group.hit_share, group.lost_share) for group in group_by_overlap(requests)]
    assert shares == [(0.0, 0.0), (0.0, 0.25), (0.5, 0.0), (0.0, 0.0), (512 / 1300, 512 / 1300)]


@pytest.mark.parametrize("concurrency", [1, 8])
def test_the_followed_replay_is_the_replay(concurrency):
    """On the small trace: the hits add up to the report's, and a pool without end finds all that is shared."""
    trace = small_trace()
    followed = follow_replay(trace, 120, concurrency=concurrency)
    report = replay(trace, 120, concurrency=concurrency)
    assert sum(request.num_hit_tokens for request in followed) == report.hit_tokens
    assert sum(request.num_hit_tokens == 0 for request in followed) == report.found[0].requests
    assert max(request.memory.used for request in followed) == report.peak_held_blocks
    assert {sum(request.memory) for request in followed} == {119}
    assert sum(shared_tokens(trace)) == replay(trace).hit_tokens


def test_the_curve_of_notebook_07():
    """What its text and its chart say, to the digit."""
    reports = hits_over_pool_sizes(small_trace(), [40, 80, 160, 320, 640])
    assert [round(report.hit_rate_of_prompt_tokens or 0, 4) for report in reports] == [
        0.3485, 0.4840, 0.6528, 0.6618, 0.6618,
    ]  # fmt: skip
    assert [report.evictions for report in reports] == [1179, 866, 446, 268, 0]
    assert [[group.requests for group in report.found] for report in reports] == [
        [52, 34, 85, 29], [25, 32, 88, 55], [14, 12, 67, 107], [13, 11, 66, 110], [13, 11, 66, 110],
    ]  # fmt: skip
    assert (reports[0].prompt_tokens, reports[0].distinct_blocks) == (1_031_342, 585)


def test_the_bars_of_notebook_07():
    """62 % of what overlaps most is found in 80 blocks, and 24 % was forgotten too early."""
    groups = group_by_overlap(follow_replay(small_trace(), 80))
    assert [group.num_requests for group in groups] == [13, 11, 11, 55, 110]
    assert (round(groups[-1].hit_share, 3), round(groups[-1].lost_share, 3)) == (0.620, 0.237)


def test_the_areas_of_notebook_06():
    """With 119 blocks nothing is empty after twelve requests; with 399, after 78. It just fits."""
    trace = small_trace()
    small, large = (follow_replay(trace, num_blocks, concurrency=8) for num_blocks in (120, 400))
    assert [index for index, request in enumerate(small, start=1) if request.memory.empty][-1] == 12
    assert [index for index, request in enumerate(large, start=1) if request.memory.empty][-1] == 78
    assert max(request.memory.used for request in small) == 119
    assert large[-1].memory == MemoryUse(used=80, cached=319, empty=0)
    used, of_the_large, of_a_smaller = (
        [request.memory.used for request in requests]
        for requests in (small, large, follow_replay(trace, 119, concurrency=8))
    )
    assert used == of_the_large
    assert used.index(119) == 13 and used != of_a_smaller


def test_the_waste_of_notebook_01():
    """Nothing at a block size of 1, 0.6 % at 16, 14 % at 256, 85 % in rows."""
    lengths = [237, 41, 1180, 96, 512, 2048, 18, 733]
    shares = [point.share for point in waste_over_block_sizes(lengths, [1, 16, 256, 4096])]
    assert [round(share, 3) for share in shares] == [0.0, 0.006, 0.136, 0.852]

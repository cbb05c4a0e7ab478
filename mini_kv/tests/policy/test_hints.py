"""Hints are optional: a policy that takes them hears when a session is expected again, and others hear nothing."""

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

from mini_kv.core.block import KVCacheBlock
from mini_kv.policy.catalogue import POLICIES
from mini_kv.policy.eviction import Hint, Policy, parts_of
from mini_kv.policy.hints import ExpectedReturn
from mini_kv.policy.ranked import Ranked
from mini_kv.tools.traces.readers.mooncake import TraceRequest
from mini_kv.tools.traces.replay import replay

TOOL, USER = 17_000, 221_000


def request(second: int, session: str, pause: int | None) -> TraceRequest:
    """Return a request with two full blocks of the session, and one token more."""
    first = 10 * ord(session)
    return TraceRequest(1000 * second, 33, 1, (first, first + 1, first + 2), 16, session, pause)


def hits(policy: Policy, trace: Sequence[TraceRequest], num_blocks: int) -> int:
    """Return the blocks found in a replay under the policy."""
    return replay(trace, num_blocks, parts=parts_of(policy)).hit_blocks


class Listening(Ranked):
    """LRU that keeps what it hears."""

    heard: ClassVar[list[tuple[Hint, int]]] = []

    def rank(self, block: KVCacheBlock) -> float:
        return 0

    def record_hint(self, hint: Hint, blocks: Sequence[KVCacheBlock]) -> None:
        self.heard.append((hint, len(blocks)))


def test_a_policy_hears_the_session_and_its_expected_pause() -> None:
    """With the full blocks of the prompt. A request without an expected pause gives no hint."""
    Listening.heard.clear()
    replay([request(1, "a", TOOL), request(5, "b", None)], 9, parts=parts_of(Listening))
    assert Listening.heard == [(Hint("a", 1000, TOOL), 2)]


def test_a_session_whose_user_is_next_is_evicted_before_one_whose_tool_runs() -> None:
    """There is room for two sessions. b is more recent than a, but its pause will be longer. c needs room."""
    trace = [request(0, "a", TOOL), request(5, "b", USER), request(9, "c", TOOL), request(20, "a", TOOL)]
    assert hits(ExpectedReturn, trace, 6) == 2
    assert hits(POLICIES["lru"], trace, 6) == 0


def test_a_tool_that_runs_for_very_long_is_no_longer_expected() -> None:
    """a was expected after 17 s. After 300 s b, whose user was next 90 s ago, is kept instead."""
    trace = [request(0, "a", TOOL), request(210, "b", USER), request(300, "c", TOOL), request(301, "b", TOOL)]
    assert hits(ExpectedReturn, trace, 6) == 2


def test_a_shared_prefix_has_the_rank_of_its_most_expected_session() -> None:
    """a and b share their first block. a's user is next, but b's tool runs: the block stays with b's other block."""
    a = request(0, "a", USER)
    b = replace(request(5, "b", TOOL), hash_ids=(a.hash_ids[0], 7, 8))
    again = replace(a, timestamp=6000)
    trace = [b, again, request(9, "c", TOOL), replace(b, timestamp=20_000)]
    assert hits(ExpectedReturn, trace, 6) == 1 + 2
    assert hits(POLICIES["lru"], trace, 6) == 1 + 1


def test_without_hints_the_order_is_lru() -> None:
    """On a trace without sessions the policy finds what LRU finds."""
    trace = [request(second, "abcab"[second % 5], None) for second in range(40)]
    for num_blocks in (6, 8, 10):
        assert (
            hits(ExpectedReturn, trace, num_blocks)
            == replay(trace, num_blocks, parts=parts_of(POLICIES["lru"])).hit_blocks
        )

"""Forked requests share a half-filled block until one of them writes to it."""

import pytest

from mini_kv.core.errors import AllocationError, ConfigError, RepeatedRequestError, SchedulerError, UnknownRequestError
from mini_kv.core.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    MambaSpec,
    SlidingWindowSpec,
)
from mini_kv.core.kv_cache_manager import KVCacheManager
from mini_kv.core.request import Request
from mini_kv.core.sched.config import SchedulerConfig
from mini_kv.core.sched.scheduler import Scheduler
from mini_kv.story.debug import DebugKVCacheManager


def make_kv(num_blocks: int = 12) -> KVCacheManager:
    return DebugKVCacheManager(KVCacheManager.for_full_attention(num_blocks, 4))


def hold(kv: KVCacheManager, name: str, num_tokens: int) -> Request:
    """Admit a request and compute its whole prompt."""
    request = kv.new_request(name, range(num_tokens))
    assert kv.allocate_slots(request, num_tokens) is not None
    request.num_computed_tokens = num_tokens
    return request


def fork(kv: KVCacheManager, parent: Request, name: str, next_token: int = 7) -> Request:
    """Fork a request whose computed tokens are followed by another one."""
    child = kv.new_request(name, [*parent.token_ids[: parent.num_computed_tokens], next_token])
    kv.fork(parent, child)
    child.num_computed_tokens = parent.num_computed_tokens
    return child


def decode(kv: KVCacheManager, request: Request) -> list[tuple[int, int]]:
    """Give the request's next token its slot; return the copies that the step begins with."""
    if request.num_tokens == request.num_computed_tokens:
        request.append_output_token_ids(9)
    assert kv.allocate_slots(request, 1) is not None
    request.num_computed_tokens += 1
    return kv.take_kv_cache_block_copies()


def table(kv: KVCacheManager, request: Request) -> list[int]:
    return kv.get_block_ids(request.request_id)[0]


def refs(kv: KVCacheManager, *ids: int) -> list[int]:
    return [kv.block_pool.blocks[block_id].ref_cnt for block_id in ids]


def test_a_fork_takes_no_memory():
    kv = make_kv()
    a = hold(kv, "A", 10)
    b = fork(kv, a, "B")
    assert (table(kv, a), table(kv, b)) == ([1, 2, 3], [1, 2, 3])
    assert refs(kv, 1, 2, 3) == [2, 2, 2]
    assert kv.block_pool.num_free_blocks == 8


def test_the_first_writer_gets_a_copy_and_the_last_one_the_original():
    kv = make_kv()
    a = hold(kv, "A", 10)
    b = fork(kv, a, "B")
    assert decode(kv, b) == [(3, 4)]
    assert decode(kv, a) == []
    assert (table(kv, a), table(kv, b)) == ([1, 2, 3], [1, 2, 4])
    assert refs(kv, 3, 4) == [2, 2]  # a table each, and a pin each
    kv.finish_kv_cache_block_copies()
    assert refs(kv, 3, 4) == [1, 1]
    assert (decode(kv, a), decode(kv, b)) == ([], [])


def test_of_three_the_first_two_copy():
    kv = make_kv()
    a = hold(kv, "A", 10)
    b, c = fork(kv, a, "B"), fork(kv, a, "C", 8)
    assert [decode(kv, request) for request in (a, c, b)] == [[(3, 4)], [(3, 5)], []]
    assert (table(kv, a), table(kv, b), table(kv, c)) == ([1, 2, 4], [1, 2, 3], [1, 2, 5])
    kv.finish_kv_cache_block_copies()
    assert refs(kv, 1, 2, 3, 4, 5) == [3, 3, 1, 1, 1]


def test_a_full_last_block_needs_no_copy():
    kv = make_kv()
    a = hold(kv, "A", 8)
    b = fork(kv, a, "B")
    assert (decode(kv, b), decode(kv, a)) == ([], [])
    assert (table(kv, a), table(kv, b)) == ([1, 2, 4], [1, 2, 3])


def test_both_ends_of_a_copy_stay_where_they_are_until_it_has_run():
    """A and B are gone before the step ran. Neither block may be taken: one is being read, the other written."""
    kv = make_kv(6)
    a = hold(kv, "A", 10)
    b = fork(kv, a, "B")
    assert decode(kv, b) == [(3, 4)]
    kv.free(b)
    kv.free(a)
    assert kv.block_pool.num_free_blocks == 3
    assert kv.allocate_slots(kv.new_request("C", range(100, 116)), 16) is None
    kv.finish_kv_cache_block_copies()
    assert kv.block_pool.num_free_blocks == 5


def test_a_copy_that_no_step_took_is_not_made_later():
    """B is stopped before its step. Block 3, the target of the copy, is free afterwards: another request may get it."""
    kv = make_kv()
    first = hold(kv, "A", 6)
    second = fork(kv, first, "B")
    kv.allocate_slots(second, 1)
    assert table(kv, second) == [1, 3]
    kv.free(second)
    kv.finish_kv_cache_block_copies()
    assert refs(kv, 1, 2, 3) == [1, 1, 0]
    assert kv.take_kv_cache_block_copies() == []


def test_a_copy_costs_a_block_and_is_refused_where_there_is_none():
    kv = make_kv(5)
    a = hold(kv, "A", 14)  # 1 2 3 4
    b = fork(kv, a, "B")
    assert kv.allocate_slots(b, 1) is None
    assert (table(kv, b), kv.take_kv_cache_block_copies()) == ([1, 2, 3, 4], [])
    kv.free(a)
    assert decode(kv, b) == []  # no other request reads it now


def test_a_copied_block_gets_its_own_hash_when_it_is_full():
    kv = make_kv()
    a = hold(kv, "A", 7)
    b = fork(kv, a, "B", 70)
    a.append_output_token_ids(7)
    decode(kv, b)
    decode(kv, a)
    names = [kv.block_pool.blocks[block_id].block_hash for block_id in (table(kv, a)[1], table(kv, b)[1])]
    assert None not in names
    assert names[0] != names[1]


def test_a_fork_of_a_fork_and_what_they_share_outlives_the_first():
    kv = make_kv()
    a = hold(kv, "A", 6)
    b = fork(kv, a, "B")
    decode(kv, b)  # 2 is copied to 3
    kv.finish_kv_cache_block_copies()
    c = fork(kv, b, "C", 8)
    kv.free(a)
    assert (table(kv, c), refs(kv, 1, 2, 3)) == ([1, 3], [2, 0, 2])
    assert decode(kv, c) == [(3, 2)]


def test_every_group_copies_its_own_half_filled_block():
    groups = (
        KVCacheGroupSpec(("full",), FullAttentionSpec(4)),
        KVCacheGroupSpec(("window",), SlidingWindowSpec(2, sliding_window=3)),
    )
    kv = DebugKVCacheManager(KVCacheManager(KVCacheConfig(20, groups)))
    a = hold(kv, "A", 5)
    assert kv.get_block_ids("A") == ([1, 2], [3, 4, 5])
    b = fork(kv, a, "B")
    assert decode(kv, b) == [(2, 6), (5, 7)]
    assert kv.get_block_ids("B") == ([1, 6], [0, 4, 7])  # and 3 is left of B's window
    kv.finish_kv_cache_block_copies()
    assert refs(kv, 1, 2, 3, 4, 5, 6, 7) == [2, 1, 1, 2, 1, 1, 1]


def test_what_cannot_be_forked_is_refused_and_nothing_changes():
    kv = make_kv()
    a = hold(kv, "A", 6)
    with pytest.raises(UnknownRequestError):
        kv.fork(kv.new_request("X", range(6)), kv.new_request("B", range(7)))
    with pytest.raises(RepeatedRequestError):
        kv.fork(a, kv.new_request("A", range(7)))
    with pytest.raises(AllocationError, match="do not begin with the 6"):
        kv.fork(a, kv.new_request("B", [0, 1, 2, 3, 4, 9, 6]))
    with pytest.raises(AllocationError, match="do not begin with the 6"):
        kv.fork(a, kv.new_request("B", range(7), cache_salt="another tenant"))
    with pytest.raises(AllocationError, match="all its 6 tokens are computed"):
        kv.fork(a, kv.new_request("B", range(6)))
    state = KVCacheGroupSpec(("state",), MambaSpec(4, shapes=((2,),), dtypes_bytes=(2,)))
    with_states = KVCacheManager(KVCacheConfig(10, (state,)))
    with pytest.raises(ConfigError, match="states"):
        with_states.fork(hold(with_states, "A", 4), with_states.new_request("B", range(5)))
    assert refs(kv, 1, 2) == [1, 1]


def sample(scheduler: Scheduler, tokens: dict[str, int]) -> list[tuple[int, int]]:
    output = scheduler.schedule()
    assert list(output.num_scheduled_tokens) == list(tokens)
    scheduler.update_from_output(output, {name: [token] for name, token in tokens.items()})
    return output.kv_cache_block_copies


def test_three_samples_of_one_prompt_cost_two_copies():
    """The paper's example: a prompt of 6 tokens, and three answers that differ from the first word on."""
    kv = make_kv()
    scheduler = Scheduler(kv, SchedulerConfig(max_num_seqs=3))
    scheduler.add_request(kv.new_request("A", range(6)), max_tokens=3)
    assert sample(scheduler, {"A": 50}) == []
    for name, first in (("B", 51), ("C", 52)):
        assert scheduler.fork_request("A", kv.new_request(name, [*range(6), first]), max_tokens=2)
    assert kv.block_pool.num_free_blocks == 9
    assert scheduler.fork_request("A", kv.new_request("D", [*range(6), 53])) is False  # three run already
    output = scheduler.schedule()
    assert output.kv_cache_block_copies == [(2, 3), (2, 4)]
    assert [(data.request_id, data.block_ids) for data in output.scheduled_new_reqs] == [
        ("B", ([1, 4],)),
        ("C", ([1, 2],)),
    ]
    scheduler.update_from_output(output, {"A": [60], "B": [61], "C": [62]})
    assert sample(scheduler, {"A": 70, "B": 71, "C": 72}) == []
    assert not scheduler.has_unfinished_requests
    assert kv.block_pool.num_free_blocks == 11


def test_only_what_runs_can_be_forked_and_only_between_steps():
    kv = make_kv()
    scheduler = Scheduler(kv)
    scheduler.add_request(kv.new_request("A", range(6)))
    child = kv.new_request("B", range(7))
    with pytest.raises(SchedulerError, match="not running"):
        scheduler.fork_request("A", child)
    output = scheduler.schedule()
    with pytest.raises(SchedulerError, match="under way"):
        scheduler.fork_request("A", child)
    scheduler.update_from_output(output, {"A": [6]})
    with pytest.raises(AllocationError, match="do not begin with"):
        scheduler.fork_request("A", kv.new_request("B", [9] * 7))
    assert scheduler.fork_request("A", child)  # A still runs: a refusal is no interrupt, and costs nothing

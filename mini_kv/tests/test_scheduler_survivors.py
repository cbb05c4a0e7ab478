"""Bugs that the tests once let through, each put into the scheduler on purpose: a story for each that fails on it."""

from dataclasses import replace
from typing import Any

import pytest

from mini_kv.core.errors import ConfigError, InvalidTokenError, SchedulerError
from mini_kv.core.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, MambaSpec
from mini_kv.core.kv_cache_manager import KVCacheBlocks, KVCacheManager
from mini_kv.core.sched.config import SchedulerConfig
from mini_kv.core.sched.output import CachedRequestData, NewRequestData
from mini_kv.core.sched.request_queue import SchedulingPolicy
from mini_kv.core.sched.scheduler import Scheduler
from mini_kv.tests.remembered import remembered
from mini_kv.tests.test_scheduler import Engine


def test_tokens_of_a_request_that_gives_way_are_in_the_budget_again():
    """`low` is in the step already when `high` needs its blocks: its token is one more for `mid`."""
    engine = Engine(5, policy=SchedulingPolicy.PRIORITY, max_num_batched_tokens=6, scheduler_reserve_full_isl=False)
    engine.add("low", range(5), priority=2)
    assert engine.step() == {"low": 5}
    engine.add("high", range(100, 104), priority=0)
    engine.add("mid", range(200, 208), priority=1)
    assert engine.step() == {"low": 1, "high": 4, "mid": 1}  # 2 blocks, 1 and 1: there is none left for a fifth token
    assert engine.step() == {"high": 1, "mid": 5}
    assert (engine.batch, engine.line) == (["high", "mid"], ["low"])


def test_those_who_give_way_in_one_step_wait_in_the_order_in_which_they_came():
    engine = Engine(5, max_num_seqs=3)
    for name, num_tokens in (("A", 8), ("B", 3), ("C", 3), ("D", 3)):
        engine.add(name, [ord(name)] * num_tokens, max_tokens=8)
    assert engine.step() == {"A": 8, "B": 3, "C": 3}
    engine.scheduler.update_draft_token_ids("A", [1, 2, 3, 4])  # with its own next token, 5: two blocks more
    output = engine.plan()
    assert output.num_scheduled_tokens == {"A": 5}
    assert (output.preempted_req_ids, engine.line) == (["C", "B"], ["B", "C", "D"])


def test_those_who_adopted_what_will_not_be_computed_wait_in_the_order_in_which_they_came():
    """A is aborted in mid-step, and the step given up: B, C and D were about to read what A was about to write."""
    engine = Engine()
    for name in "ABCD":
        engine.add(name, range(9))
    engine.add("E", range(100, 103))
    output = engine.plan()
    assert output.num_scheduled_tokens == {"A": 9, "B": 1, "C": 1, "D": 1, "E": 3}
    engine.scheduler.finish_requests(["A"])
    engine.scheduler.abandon_step()
    assert (engine.batch, engine.line) == ([], ["B", "C", "D", "E"])
    assert engine.step() == {"B": 9, "C": 1, "D": 1, "E": 3}  # nothing of what A was to write is found


def test_a_scheduler_remembers_nothing_of_a_request_that_is_gone():
    """Ended, aborted while waiting, running or preempted, and forked but never named to the worker."""
    engine = Engine(7, max_num_seqs=3)
    engine.add("gone A", range(8), max_tokens=9)
    engine.add("gone B", range(100, 108), max_tokens=9)
    for _ in range(6):
        engine.step()
    assert (engine.batch, engine.line) == (["gone A"], ["gone B"])
    engine.add("gone C", range(3))
    a = engine.scheduler.requests["gone A"]
    child = engine.kv.new_request("gone D", [*a.token_ids[:-1], 9])
    assert engine.scheduler.fork_request("gone A", child, max_tokens=2)
    engine.scheduler.finish_requests(["gone D", "gone C", "gone B"])
    while engine.scheduler.has_unfinished_requests:
        engine.step()
    assert engine.plan().finished_req_ids == ["gone A"]
    del a, child
    assert [name for name in remembered(engine.scheduler) if name.startswith("gone") and name != "gone A"] == []


def test_a_name_of_a_fork_that_is_gone_can_be_used_again():
    """The worker hears of the new request once: a second introduction would take a second row of its table."""
    engine = Engine()
    engine.add("A", range(6), max_tokens=9)
    engine.step()
    assert engine.scheduler.fork_request("A", engine.kv.new_request("B", [*range(6), 9]))
    engine.scheduler.finish_requests(["B"])
    engine.add("B", range(100, 103))
    introduced = []
    for _ in range(3):
        output = engine.plan()
        introduced.append([data.request_id for data in output.scheduled_new_reqs])
        engine.finish(output)
    assert introduced == [["B"], [], []]


# What the worker and the user are told.


def test_a_request_that_gives_way_leaves_the_step_and_the_others_stay_in_it():
    """P and its three forks share a half-filled block: P and X copy it, and for Y's copy `low` has to go."""
    engine = Engine(6, policy=SchedulingPolicy.PRIORITY)
    engine.add("low", range(100, 102), priority=2)
    engine.add("P", range(6), priority=1)
    engine.step()
    for name in "XYZ":
        child = engine.kv.new_request(name, [*range(6), ord(name)])
        assert engine.scheduler.fork_request("P", child, max_tokens=4)
    output = engine.plan()
    assert (output.preempted_req_ids, engine.scheduler.num_preemptions) == (["low"], 1)
    assert output.num_scheduled_tokens == {"P": 1, "X": 1, "Y": 1, "Z": 1}
    assert output.scheduled_cached_reqs.req_ids == ["P"]
    assert [data.request_id for data in output.scheduled_new_reqs] == ["X", "Y", "Z"]
    engine.finish(output)
    output = engine.plan()  # the worker knows the forks by now
    assert output.scheduled_cached_reqs.req_ids == ["P", "X", "Y", "Z"]
    assert [data.request_id for data in output.scheduled_new_reqs] == []


def test_the_worker_is_told_which_blocks_a_running_request_gets():
    engine = Engine()
    engine.add("A", range(4))
    (new,) = engine.plan().scheduled_new_reqs
    assert replace(new, token_ids=list(new.token_ids)) == NewRequestData("A", [0, 1, 2, 3], ([1],), 0)
    engine.scheduler.abandon_step()
    engine.step()
    assert engine.plan().scheduled_cached_reqs == CachedRequestData(["A"], [([2],)], [4])


def test_every_end_is_told_with_its_request_and_its_reason():
    engine = Engine()
    ended = {}
    for name, stop_token_ids in (("length", ()), ("stop", (7,)), ("abort", ())):
        ended[name] = engine.kv.new_request(name, [ord(name[0])])
        engine.scheduler.add_request(ended[name], max_tokens=1, stop_token_ids=stop_token_ids)
    output = engine.plan()
    engine.scheduler.finish_requests(["abort"])
    outputs = engine.scheduler.update_from_output(output, {"length": [7], "stop": [7]})
    assert [(out.request_id, out.new_token_ids, out.finish_reason) for out in outputs] == [
        ("length", [7], "length"), ("stop", [7], "stop")
    ]  # fmt: skip
    assert {name: request.status.value for name, request in ended.items()} == {name: name for name in ended}


def test_results_of_which_one_is_bad_leave_every_request_as_it_was():
    """A has its new token, and with it a full block, when B's turns out to be none."""
    engine = Engine()
    engine.add("A", range(7))
    engine.add("B", range(100, 103))
    output = engine.plan()
    with pytest.raises(InvalidTokenError):
        engine.scheduler.update_from_output(output, {"A": [7], "B": [-1]})
    a = engine.scheduler.requests["A"]
    assert (list(a.token_ids), a.num_tokens, a.num_computed_tokens, len(a.block_hashes)) == (list(range(7)), 7, 0, 1)
    assert engine.finish(output) == []
    assert (list(a.token_ids), a.num_tokens, a.num_computed_tokens, len(a.block_hashes)) == ([*range(7), 7], 8, 7, 2)


# Slots and keys at the end of a request.


def test_slots_for_drafts_come_with_the_first_step_and_with_every_other():
    engine = Engine(num_lookahead_tokens=4)
    engine.add("A", range(3), max_tokens=9)
    tables = []
    for _ in range(3):
        output = engine.plan()
        tables.append(engine.kv.get_block_ids("A")[0])
        engine.finish(output)
    assert tables == [[1, 2], [1, 2], [1, 2, 3]]  # 3, 4 and 5 tokens, and 4 slots more


def test_slots_for_drafts_never_reach_beyond_the_last_token():
    """A ends with its fifth token, which is never computed: four slots, one block."""
    engine = Engine(num_lookahead_tokens=4)
    engine.add("A", range(3), max_tokens=2)
    for _ in range(2):
        output = engine.plan()
        assert engine.kv.get_block_ids("A") == ([1],)
        engine.finish(output)
    assert not engine.scheduler.has_unfinished_requests


def test_a_draft_that_ends_a_request_fills_no_block():
    """Its last token counts as not computed, like any last token, so the block that it completes gets no key."""
    engine = Engine()
    engine.scheduler.add_request(engine.kv.new_request("A", range(6)), max_tokens=9, stop_token_ids=[1])
    engine.step()
    engine.scheduler.update_draft_token_ids("A", [1, 2, 3])
    (result,) = engine.scheduler.update_from_output(engine.plan(), {"A": [1, 2, 3, 4]})
    assert (result.new_token_ids, result.finish_reason) == ([1], "stop")
    assert engine.kv.get_computed_blocks(engine.kv.new_request("B", [*range(6), 7, 1, 50]))[1] == 4


def test_drafts_are_refused_where_a_layer_keeps_states():
    group = KVCacheGroupSpec(("state",), MambaSpec(4, shapes=((2,),), dtypes_bytes=(2,)))
    kv = KVCacheManager(KVCacheConfig(10, (group,)))
    scheduler = Scheduler(kv)
    scheduler.add_request(kv.new_request("A", range(4)))
    scheduler.update_from_output(scheduler.schedule(), {"A": [7]})
    with pytest.raises(SchedulerError, match="a layer keeps states: drafts that are wrong cannot be taken back out"):
        scheduler.update_draft_token_ids("A", [1])


# The line by priority.


def test_the_line_by_priority_is_seen_in_the_order_in_which_it_is_served_also_when_one_has_left_it():
    engine = Engine(policy=SchedulingPolicy.PRIORITY, max_num_seqs=1)
    for name, priority in (("F", 3), ("A", 0), ("D", 2), ("B", 1), ("E", 2), ("C", 1)):
        engine.add(name, [ord(name)], max_tokens=1, priority=priority)
    assert engine.line == ["A", "B", "C", "D", "E", "F"]
    engine.scheduler.finish_requests(["A"])
    assert engine.line == ["B", "C", "D", "E", "F"]
    assert [engine.step() for _ in range(5)] == [{name: 1} for name in "BCDEF"]


def test_in_order_of_arrival_priorities_mean_nothing_and_by_priority_the_default_is_0():
    first_come = Engine()
    first_come.add("A", [1], priority=5)
    first_come.add("B", [2], priority=0)
    assert first_come.line == ["A", "B"]
    ranked = Engine(policy=SchedulingPolicy.PRIORITY)
    ranked.add("C", [3], priority=1)
    ranked.scheduler.add_request(ranked.kv.new_request("D", [4]))
    assert ranked.line == ["D", "C"]


# Limits.


def test_the_smallest_engine_runs_a_request_of_one_token():
    kv = KVCacheManager.for_full_attention(2, 1)
    scheduler = Scheduler(kv, SchedulerConfig(max_num_batched_tokens=1, max_num_seqs=1, max_model_len=2))
    scheduler.add_request(kv.new_request("A", [1]), max_tokens=1)
    (result,) = scheduler.update_from_output(scheduler.schedule(), {"A": [7]})
    assert result.finish_reason == "length"


FULL = KVCacheGroupSpec(("full",), FullAttentionSpec(4))
STATE = KVCacheGroupSpec(("state",), MambaSpec(4, shapes=((2,),), dtypes_bytes=(2,)))


@pytest.mark.parametrize(
    ("groups", "num_blocks", "limits", "message"),
    [
        ((FULL,), 10, {"max_num_batched_tokens": 8}, ""),
        ((FULL,), 10, {"max_num_batched_tokens": 7, "num_lookahead_tokens": 1}, ""),
        (
            (FULL,),
            10,
            {"max_num_batched_tokens": 8, "num_lookahead_tokens": 1},
            r"the manager plans for steps of 8 tokens at most \(max_in_flight_tokens\); "
            "max_num_batched_tokens is 8, num_lookahead_tokens 1",
        ),
        ((STATE,), 10, {"max_num_batched_tokens": 8}, ""),
        (
            (STATE,),
            10,
            {"max_num_batched_tokens": 7, "num_lookahead_tokens": 1},
            "num_lookahead_tokens is 1, but a layer keeps states: drafts that are wrong cannot be taken back",
        ),
        (
            (FULL, STATE),
            2,
            {"max_num_batched_tokens": 8},
            "even a request of one token needs 2 blocks when it has grown to 2; the pool has 1",
        ),
    ],
)
def test_a_manager_and_limits_that_cannot_work_together(groups, num_blocks: int, limits, message: str):
    kv = KVCacheManager(KVCacheConfig(num_blocks, groups), max_in_flight_tokens=8)
    if not message:
        assert Scheduler(kv, SchedulerConfig(**limits)).running == []
        return
    with pytest.raises(ConfigError, match=message):
        Scheduler(kv, SchedulerConfig(**limits))


@pytest.mark.parametrize("name", ["long_prefill_token_threshold", "num_lookahead_tokens"])
def test_a_limit_is_not_negative(name: str):
    with pytest.raises(ConfigError, match=f"{name} is -1, it must not be negative"):
        SchedulerConfig(**{name: -1})  # type: ignore[arg-type]


def test_what_is_no_row_of_stop_tokens_is_told_and_nothing_is_added():
    engine = Engine()
    engine.add("A", [1])
    with pytest.raises(TypeError, match="not iterable"):
        engine.scheduler.add_request(engine.kv.new_request("B", [2]), stop_token_ids=5)  # type: ignore[arg-type]
    assert (engine.line, list(engine.scheduler.requests)) == (["A"], ["A"])


@pytest.mark.parametrize(("budget", "drafts"), [(1, {}), (2, {"A": [1]}), (3, {"A": [1, 2]})])
def test_drafts_are_cut_to_the_budget(budget: int, drafts: dict[str, list[int]]):
    engine = Engine(max_num_batched_tokens=budget)
    engine.add("A", range(2), max_tokens=9)
    while engine.scheduler.requests["A"].num_tokens == 2:
        engine.step()
    engine.scheduler.update_draft_token_ids("A", [1, 2, 3])
    output = engine.plan()
    assert (output.num_scheduled_tokens, output.scheduled_spec_decode_tokens) == ({"A": budget}, drafts)


@pytest.mark.parametrize(("reserve", "batch"), [(True, ["A"]), (False, ["A", "B"])])
def test_a_prompt_enters_if_all_of_it_fits_not_just_its_first_chunk(reserve: bool, batch: list[str]):
    """Of 4 blocks A has 2; B needs 3, and one for the part of it that fits into the step."""
    engine = Engine(5, max_num_batched_tokens=8, scheduler_reserve_full_isl=reserve)
    engine.add("A", range(7))
    engine.step()
    engine.add("B", range(100, 112), max_tokens=1)
    engine.plan()
    assert engine.batch == batch


def test_the_watermark_is_kept_while_others_run_and_not_by_an_idle_engine():
    """3 of 10 blocks stay free: A may have all of them, and B enters beside C with 2 blocks, not with 3."""
    kv = KVCacheManager(KVCacheConfig(11, (FULL,)), watermark=0.3)
    scheduler = Scheduler(kv)
    scheduler.add_request(kv.new_request("A", range(38)), max_tokens=1)
    scheduler.update_from_output(scheduler.schedule(), {"A": [7]})
    for name, num_tokens in (("C", 17), ("D", 9), ("B", 8)):
        scheduler.add_request(kv.new_request(name, [ord(name)] * num_tokens), max_tokens=1)
    assert list(scheduler.schedule().num_scheduled_tokens) == ["C"]  # 5 blocks; D needs 3 of the other 5
    scheduler.finish_requests(["D"])
    scheduler.abandon_step()
    assert list(scheduler.schedule().num_scheduled_tokens) == ["C", "B"]


# A call that is interrupted.


class Interrupted(KVCacheManager):
    """Is interrupted by Ctrl-C in the call after `calls_left` calls of `allocate_slots`."""

    calls_left = 1000

    def allocate_slots(self, *arguments: Any, **options: Any) -> KVCacheBlocks | None:
        self.calls_left -= 1
        if self.calls_left < 0:
            raise KeyboardInterrupt
        return super().allocate_slots(*arguments, **options)


def test_after_an_interrupt_all_wait_and_the_first_to_come_runs_first():
    """B had just given way to A. Now both wait with nothing computed, and the worker is told to forget them."""
    kv = Interrupted.for_full_attention(7, 4)
    scheduler = Scheduler(kv)
    for name, first in (("A", 0), ("B", 100)):
        scheduler.add_request(kv.new_request(name, range(first, first + 11)), max_tokens=9)
    for _ in range(2):
        scheduler.update_from_output(scheduler.schedule(), {"A": [7], "B": [7]})
    kv.calls_left = 1  # A asks for a fourth block in vain, B gives way, and A asks again
    with pytest.raises(KeyboardInterrupt):
        scheduler.schedule()
    kv.calls_left = 1000
    output = scheduler.schedule()
    assert (output.num_scheduled_tokens, output.preempted_req_ids) == ({"A": 13}, ["A", "B"])
    assert [request.request_id for request in scheduler.waiting] == ["B"]
    assert (kv.get_block_ids("A"), kv.get_block_ids("B")) == (([1, 2, 3, 4],), ([],))


class Unready(int):
    """A priority of which the first comparison is interrupted."""

    num_comparisons = 0

    def __eq__(self, other: object) -> bool:
        self.num_comparisons += 1
        if self.num_comparisons == 1:
            raise KeyboardInterrupt
        return int(self) == other

    __hash__ = int.__hash__


def test_a_request_that_was_interrupted_on_its_way_into_the_line_is_not_in_it():
    engine = Engine(policy=SchedulingPolicy.PRIORITY)
    engine.add("A", [1], priority=1)
    with pytest.raises(KeyboardInterrupt):
        engine.add("B", [2], priority=Unready(0))
    assert list(engine.scheduler.requests) == ["A"]
    engine.add("B", [2])
    assert engine.line == ["B", "A"]
    assert engine.step() == {"B": 1, "A": 1}

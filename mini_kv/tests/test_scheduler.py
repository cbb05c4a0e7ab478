"""The scheduler, told as stories: who runs, with how many tokens, who gives way, who comes back."""

from collections.abc import Sequence
from typing import Any

import pytest

from mini_kv.core.errors import ConfigError, RepeatedRequestError, SchedulerError
from mini_kv.core.invariants import check_invariants
from mini_kv.core.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from mini_kv.core.kv_cache_manager import KVCacheManager
from mini_kv.core.sched.config import SchedulerConfig, longest_request
from mini_kv.core.sched.output import SchedulerOutput
from mini_kv.core.sched.request_queue import SchedulingPolicy
from mini_kv.core.sched.scheduler import Scheduler


class Engine:
    """A scheduler, and a worker whose model always says 7."""

    def __init__(self, num_blocks: int = 20, *, enable_caching: bool = True, **limits: object) -> None:
        self.kv = KVCacheManager.for_full_attention(num_blocks, 4, enable_caching=enable_caching)
        self.scheduler = Scheduler(self.kv, SchedulerConfig(**limits))  # type: ignore[arg-type]

    def add(self, name: str, tokens: Sequence[int], max_tokens: int = 4, priority: int = 0) -> None:
        self.scheduler.add_request(self.kv.new_request(name, tokens), max_tokens=max_tokens, priority=priority)

    def plan(self) -> SchedulerOutput:
        output = self.scheduler.schedule()
        check_invariants(self.kv)
        return output

    def finish(self, output: SchedulerOutput) -> list[str]:
        """Bring the step's results; return who has ended."""
        requests = self.scheduler.requests
        sampled = {
            name: [7]
            for name, num_tokens in output.num_scheduled_tokens.items()
            if requests[name].num_computed_tokens + num_tokens >= requests[name].num_tokens
        }
        outputs = self.scheduler.update_from_output(output, sampled)
        check_invariants(self.kv)
        return [out.request_id for out in outputs if out.finish_reason]

    def step(self) -> dict[str, int]:
        """Run one step; return the tokens of each request in it."""
        output = self.plan()
        tokens = dict(output.num_scheduled_tokens)
        self.finish(output)
        return tokens

    @property
    def line(self) -> list[str]:
        return [request.request_id for request in self.scheduler.waiting]

    @property
    def batch(self) -> list[str]:
        return [request.request_id for request in self.scheduler.running]


def test_a_prompt_is_computed_at_once_and_then_a_token_a_step_until_max_tokens():
    engine = Engine()
    engine.add("A", range(10), max_tokens=3)
    assert [engine.step() for _ in range(3)] == [{"A": 10}, {"A": 1}, {"A": 1}]
    assert not engine.scheduler.has_unfinished_requests
    assert engine.kv.block_pool.num_free_blocks == 19


def test_a_long_prompt_is_cut_to_the_budget_while_others_decode():
    engine = Engine(max_num_batched_tokens=8)
    engine.add("A", range(4))
    engine.step()
    engine.add("B", range(100, 120))
    assert [engine.step() for _ in range(3)] == [{"A": 1, "B": 7}, {"A": 1, "B": 7}, {"A": 1, "B": 6}]


def test_without_chunked_prefill_a_prompt_waits_until_it_fits_whole():
    engine = Engine(max_num_batched_tokens=9, enable_chunked_prefill=False)
    engine.add("A", range(6))
    engine.add("B", range(100, 106))
    assert [engine.step() for _ in range(2)] == [{"A": 6}, {"A": 1, "B": 6}]


def test_without_chunked_prefill_a_request_that_would_outgrow_the_step_is_refused():
    """Preempted, it would have to be computed again in one step, and wait for that for ever."""
    engine = Engine(9, max_num_batched_tokens=14, enable_chunked_prefill=False)
    with pytest.raises(ConfigError, match="when it has grown to 31 and is preempted"):
        engine.add("A", range(10), max_tokens=22)
    engine.add("A", range(10), max_tokens=5)


def test_one_long_prompt_cannot_take_the_whole_step_under_a_threshold():
    engine = Engine(max_num_batched_tokens=16, long_prefill_token_threshold=5)
    engine.add("A", range(12))
    engine.add("B", range(100, 103))
    assert [engine.step() for _ in range(3)] == [{"A": 5, "B": 3}, {"A": 5, "B": 1}, {"A": 2, "B": 1}]


def test_a_threshold_protects_others_so_a_request_by_itself_is_not_cut():
    engine = Engine(max_num_batched_tokens=16, long_prefill_token_threshold=5)
    engine.add("A", range(12))
    assert engine.step() == {"A": 12}


def test_a_threshold_cuts_prompts_even_without_chunked_prefill():
    engine = Engine(max_num_batched_tokens=16, long_prefill_token_threshold=5, enable_chunked_prefill=False)
    engine.add("A", range(12))
    engine.add("B", range(100, 112))
    assert [engine.step() for _ in range(3)] == [{"A": 5, "B": 5}, {"A": 5, "B": 5}, {"A": 2, "B": 2}]


def test_no_more_than_max_num_seqs_run_at_once():
    engine = Engine(max_num_seqs=2)
    for name in "ABC":
        engine.add(name, [ord(name)], max_tokens=2)
    assert [engine.step() for _ in range(3)] == [{"A": 1, "B": 1}, {"A": 1, "B": 1}, {"C": 1}]


def test_when_blocks_run_out_the_last_admitted_gives_way_and_comes_back_with_a_hit():
    engine = Engine(7)
    engine.add("A", range(8), max_tokens=9)
    engine.add("B", range(100, 108), max_tokens=9)
    assert [engine.step() for _ in range(5)] == [{"A": 8, "B": 8}] + 4 * [{"A": 1, "B": 1}]
    # Of 6 blocks each holds 3, all full. A comes first and needs a fourth.
    output = engine.plan()
    assert output.num_scheduled_tokens == {"A": 1}
    assert output.preempted_req_ids == ["B"]
    assert (engine.batch, engine.line) == (["A"], ["B"])
    engine.finish(output)
    # A took the tail of what B had left behind. When A is done, B finds the two blocks before it and computes the rest.
    assert [engine.step() for _ in range(4)] == 3 * [{"A": 1}] + [{"B": 5}]
    b = engine.scheduler.requests["B"]
    assert (b.num_preemptions, b.num_cached_tokens) == (1, 0)


def test_no_request_is_admitted_in_a_step_that_preempted_one():
    engine = Engine(5)
    engine.add("A", range(8), max_tokens=8)
    engine.add("B", range(100, 104), max_tokens=8)
    engine.step()
    engine.add("C", [200])
    output = engine.plan()  # A needs its third block, B its second: 4 blocks in all, 3 held
    assert output.num_scheduled_tokens == {"A": 1}
    assert engine.line == ["B", "C"]


def test_by_priority_the_least_important_gives_way_even_if_it_came_first():
    engine = Engine(5, policy=SchedulingPolicy.PRIORITY)
    engine.add("low", range(8), max_tokens=8, priority=1)
    engine.step()
    engine.add("high", range(100, 107), max_tokens=8, priority=0)
    assert engine.step() == {"low": 1}
    assert engine.line == ["high"]


def test_a_full_hit_leaves_exactly_one_token_to_compute():
    engine = Engine()
    engine.add("A", range(9), max_tokens=1)
    engine.step()
    engine.add("B", range(9), max_tokens=1)
    assert engine.step() == {"B": 1}


def test_requests_of_one_step_share_what_the_first_of_them_is_about_to_compute():
    engine = Engine()
    engine.add("A", range(9))
    engine.add("B", range(9))
    output = engine.plan()
    assert output.num_scheduled_tokens == {"A": 9, "B": 1}
    assert output.scheduled_new_reqs[1].block_ids == ([1, 2, 4],)


def test_aborting_the_first_of_them_in_mid_step_leaves_the_other_what_the_worker_writes():
    engine = Engine()
    engine.add("A", range(9))
    engine.add("B", range(9))
    output = engine.plan()
    engine.scheduler.finish_requests(["A"])
    check_invariants(engine.kv)
    assert output.num_scheduled_tokens == {"A": 9, "B": 1}  # the worker has the step: nothing is taken out of it
    (result,) = engine.scheduler.update_from_output(output, {"A": [7], "B": [7]})
    assert (result.request_id, engine.batch, engine.line) == ("B", ["B"], [])
    assert engine.plan().finished_req_ids == ["A"]


def test_a_new_request_with_the_id_of_one_that_was_aborted_in_mid_step_gets_none_of_its_results():
    engine = Engine()
    engine.add("A", range(9))
    output = engine.plan()
    engine.scheduler.finish_requests(["A"])
    engine.add("A", range(100, 103))
    assert engine.scheduler.update_from_output(output, {"A": [7]}) == []
    assert list(engine.scheduler.requests["A"].token_ids) == [100, 101, 102]
    output = engine.plan()
    assert (output.finished_req_ids, output.num_scheduled_tokens) == (["A"], {"A": 3})


def test_a_step_that_is_abandoned_is_planned_again_and_tells_the_worker_all_that_it_has_not_heard():
    engine = Engine(7)
    engine.add("A", range(8), max_tokens=9)
    engine.add("B", range(100, 108), max_tokens=9)
    engine.add("C", [200], max_tokens=1)
    engine.step()
    for _ in range(4):
        engine.step()
    output = engine.plan()  # A needs a fourth block: B gives way
    assert (output.num_scheduled_tokens, output.preempted_req_ids) == ({"A": 1}, ["B"])
    engine.scheduler.abandon_step()
    check_invariants(engine.kv)
    assert (engine.batch, engine.line, engine.kv.block_pool.num_free_blocks) == ([], ["A", "B"], 6)
    with pytest.raises(SchedulerError, match="not the results"):
        engine.scheduler.update_from_output(output, {"A": [7]})
    again = engine.plan()
    assert again.preempted_req_ids == ["B", "A"]  # B of the step that did not run, A of giving it up
    assert again.num_scheduled_tokens == {"A": 1}  # its 12 computed tokens are all found again
    engine.finish(again)
    engine.scheduler.abandon_step()  # none is under way: nothing happens
    while engine.scheduler.has_unfinished_requests:
        engine.step()
    assert engine.kv.block_pool.num_free_blocks == 6


def test_ids_of_finished_requests_are_told_until_a_step_has_run():
    engine = Engine()
    engine.add("A", range(4), max_tokens=1)
    engine.step()
    engine.add("B", range(4), max_tokens=2)
    for _ in range(2):
        assert engine.plan().finished_req_ids == ["A"]
        engine.scheduler.abandon_step()
    engine.step()
    assert engine.plan().finished_req_ids == []


def test_blocks_that_accepted_drafts_complete_in_the_last_step_are_found_by_the_next_turn():
    engine = Engine()
    engine.add("A", range(8), max_tokens=5)
    engine.step()
    engine.scheduler.update_draft_token_ids("A", [1, 2, 3])
    (result,) = engine.scheduler.update_from_output(engine.plan(), {"A": [1, 2, 3, 4]})
    assert (result.finish_reason, result.new_token_ids) == ("length", [1, 2, 3, 4])
    next_turn = engine.kv.new_request("B", [*range(8), 7, 1, 2, 3, 4, 50])
    assert engine.kv.get_computed_blocks(next_turn)[1] == 12


def test_a_step_that_could_let_no_request_in_while_none_runs_is_an_error_and_no_endless_wait():
    engine = Engine(4)
    engine.add("A", range(100, 109), max_tokens=2)
    other = engine.kv.new_request("B", range(8))
    engine.kv.allocate_slots(other, 8)  # behind the scheduler's back
    with pytest.raises(SchedulerError, match=r"1 requests wait, none runs.*'A'"):
        engine.scheduler.schedule()
    assert engine.line == ["A"]
    engine.kv.free(other)
    assert engine.step() == {"A": 9}


@pytest.mark.parametrize("moment", ["waiting", "running", "in the step", "preempted"])
def test_an_abort_leaves_nothing_behind_at_any_moment(moment: str):
    engine = Engine(5)
    engine.add("A", range(8), max_tokens=8)
    engine.add("B", range(100, 104), max_tokens=8)
    output = SchedulerOutput()
    if moment != "waiting":
        output = engine.plan()
    if moment in ("running", "preempted"):
        engine.finish(output)
    if moment == "preempted":
        engine.step()
        assert engine.line == ["B"]
    engine.scheduler.finish_requests(["A", "B", "unknown"])
    if moment == "in the step":
        engine.scheduler.update_from_output(output, {"A": [7], "B": [7]})
    assert not engine.scheduler.has_unfinished_requests
    assert engine.kv.block_pool.num_free_blocks == 4
    check_invariants(engine.kv)


def test_drafts_that_are_right_count_as_computed_and_wrong_ones_are_taken_back():
    engine = Engine()
    engine.add("A", range(6), max_tokens=20)
    engine.step()
    engine.scheduler.update_draft_token_ids("A", [1, 2, 3])
    output = engine.plan()
    assert output.num_scheduled_tokens == {"A": 4}
    assert output.scheduled_spec_decode_tokens == {"A": [1, 2, 3]}
    (result,) = engine.scheduler.update_from_output(output, {"A": [1, 9]})  # the first was right
    a = engine.scheduler.requests["A"]
    assert result.new_token_ids == [1, 9]
    assert list(a.token_ids) == [0, 1, 2, 3, 4, 5, 7, 1, 9]
    assert a.num_computed_tokens == 8  # all but the last, as ever
    assert engine.step() == {"A": 1}


def test_drafts_never_reach_beyond_the_last_token_of_a_request():
    engine = Engine()
    engine.add("A", range(6), max_tokens=3)
    engine.step()
    engine.scheduler.update_draft_token_ids("A", [1, 2, 3, 4, 5])
    output = engine.plan()
    assert output.num_scheduled_tokens == {"A": 2}  # the known token, and one draft; the third token has no successor
    outputs = engine.scheduler.update_from_output(output, {"A": [1, 5]})
    assert outputs[0].finish_reason == "length"


def test_a_stop_token_ends_a_request_and_what_was_sampled_behind_it_is_dropped():
    engine = Engine()
    engine.scheduler.add_request(engine.kv.new_request("A", range(6)), max_tokens=9, stop_token_ids=[2])
    engine.step()
    engine.scheduler.update_draft_token_ids("A", [1, 2, 3])
    (result,) = engine.scheduler.update_from_output(engine.plan(), {"A": [1, 2, 3, 4]})
    assert (result.new_token_ids, result.finish_reason) == ([1, 2], "stop")
    assert engine.kv.block_pool.num_free_blocks == 19


def test_what_can_never_finish_is_refused_when_it_comes():
    engine = Engine(5, max_model_len=30)
    with pytest.raises(ConfigError, match="needs 5 blocks when it has grown to 18; the pool has 4"):
        engine.add("A", range(10), max_tokens=8)
    engine.add("A", range(10), max_tokens=7)
    with pytest.raises(ConfigError, match="leaves no room for output"):
        engine.add("B", range(30))
    with pytest.raises(RepeatedRequestError):
        engine.add("A", range(3))
    short = Engine(20, max_num_batched_tokens=8, enable_chunked_prefill=False)
    with pytest.raises(ConfigError, match="max_num_batched_tokens"):
        short.add("A", range(9))
    with pytest.raises(ConfigError, match="max_num_seqs is 0"):
        SchedulerConfig(max_num_seqs=0)


def test_turns_out_of_order_and_impossible_results_are_refused_and_change_nothing():
    engine = Engine(max_num_batched_tokens=4)
    engine.add("A", range(6))
    output = engine.plan()
    with pytest.raises(SchedulerError, match="under way"):
        engine.scheduler.schedule()
    with pytest.raises(SchedulerError, match="still in its prompt"):
        engine.scheduler.update_from_output(output, {"A": [7]})
    with pytest.raises(SchedulerError, match="not the results"):
        engine.scheduler.update_from_output(SchedulerOutput(), {})
    engine.finish(output)
    with pytest.raises(SchedulerError, match="still in its prompt"):
        engine.scheduler.update_draft_token_ids("A", [1])
    with pytest.raises(SchedulerError, match="not running"):
        engine.scheduler.update_draft_token_ids("B", [1])
    output = engine.plan()
    for sampled in ([], [7, 8]):
        with pytest.raises(SchedulerError, match="one token more"):
            engine.scheduler.update_from_output(output, {"A": sampled})
    assert engine.scheduler.requests["A"].num_computed_tokens == 4
    engine.finish(output)
    assert engine.scheduler.requests["A"].num_computed_tokens == 6


@pytest.mark.parametrize(
    ("limits", "longest"),
    [({}, 76), ({"max_model_len": 30}, 29), ({"enable_chunked_prefill": False, "max_num_batched_tokens": 14}, 14)],
    ids=["the pool", "the model", "a step without chunks"],
)
def test_the_longest_request_that_can_run_is_let_in_and_a_longer_one_is_not(limits: dict[str, Any], longest: int):
    engine = Engine(**limits)
    assert longest_request(engine.kv, engine.scheduler.config) == longest
    engine.add("A", range(2), max_tokens=longest - 1)  # the last token is never computed
    if "max_model_len" not in limits:  # else it ends when the model does
        with pytest.raises(ConfigError):
            engine.add("B", range(2), max_tokens=longest)
    while engine.scheduler.has_unfinished_requests:
        engine.step()


@pytest.mark.parametrize("hash_lookahead", [0, 1])
def test_a_request_that_ends_at_a_blocks_end_leaves_that_block(hash_lookahead: int) -> None:
    """The hash that covers the next token is known when the answer's only token is, which is the request's end."""
    group = KVCacheGroupSpec(("layer",), FullAttentionSpec(4))
    kv = KVCacheManager(KVCacheConfig(20, (group,), num_hash_lookahead_tokens=hash_lookahead))
    scheduler = Scheduler(kv, SchedulerConfig(max_num_batched_tokens=64))
    scheduler.add_request(kv.new_request("turn 1", range(8)), max_tokens=1)
    scheduler.update_from_output(scheduler.schedule(), {"turn 1": [7]})
    _, num_hit_tokens = kv.get_computed_blocks(kv.new_request("turn 2", [*range(8), 7, 1, 2, 3]))
    assert (scheduler.requests, num_hit_tokens) == ({}, 8)

"""Whatever is accepted ends: random configurations at the edge of what can run, and the known ways to stand still.

`MINI_KV_PROGRESS` sets the number of configurations.
"""

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from mini_kv.core.block_pool import BlockPool
from mini_kv.core.errors import ConfigError, SchedulerError
from mini_kv.core.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheSpec,
    MambaSpec,
    SlidingWindowSpec,
)
from mini_kv.core.kv_cache_manager import KVCacheBlocks, KVCacheManager
from mini_kv.core.request import Request
from mini_kv.core.sched.config import SchedulerConfig
from mini_kv.core.sched.output import EngineCoreOutput, SchedulerOutput
from mini_kv.core.sched.scheduler import Scheduler
from mini_kv.policy.admission_strategies import Strategy
from mini_kv.story.step_loop import run_step, sample_ready
from mini_kv.tests.progress_cases import Ask, Case, Play, StandsStill, random_case
from mini_kv.tools.traces.readers.mooncake import TraceRequest
from mini_kv.tools.traces.timed_replay import replay_with_clock

NUM_CASES = int(os.environ.get("MINI_KV_PROGRESS", "2000"))
STATE = MambaSpec(4, shapes=((1,),), dtypes_bytes=(2,))


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_accepted_request_of_every_accepted_configuration_ends() -> None:
    """Chunks, thresholds, lookahead, drafts, windows, states, samples; pools of one block less, enough, one more."""
    num_run = num_accepted = num_refused = 0
    found = []
    for seed in range(NUM_CASES):
        case = random_case(seed)
        try:
            play = Play(case)
        except ConfigError:
            continue
        try:
            play.run()
        except Exception as error:
            found.append(f"seed {seed}: {type(error).__name__}: {error}: {case}")
        num_run += play.num_accepted > 0
        num_accepted += play.num_accepted
        num_refused += play.num_refused
    print(f"{NUM_CASES} configurations, {num_run} with accepted requests: {num_accepted}, refused: {num_refused}")
    assert found == []
    assert num_run > NUM_CASES // 2
    assert num_accepted > num_refused > NUM_CASES // 20


def play(case: Case) -> Play:
    """Run a case to its end."""
    this = Play(case)
    this.run()
    return this


def make_scheduler(num_blocks: int, spec: KVCacheSpec, *, in_flight: int | None = None, **limits: object) -> Scheduler:
    kv = KVCacheManager(
        KVCacheConfig(num_blocks, (KVCacheGroupSpec(("layers",), spec),)), max_in_flight_tokens=in_flight
    )
    return Scheduler(kv, SchedulerConfig(**limits))  # type: ignore[arg-type]


def add(scheduler: Scheduler, name: str, num_tokens: int, max_tokens: int) -> None:
    request = scheduler.kv_cache_manager.new_request(name, [ord(name)] * num_tokens)
    scheduler.add_request(request, max_tokens=max_tokens)


def step(scheduler: Scheduler) -> dict[str, int]:
    """Run one step of a model that always says 7; return the tokens of each request in it."""
    output, _ = run_step(scheduler, lambda output: sample_ready(scheduler, output, lambda _: 7))
    return dict(output.num_scheduled_tokens)


def test_a_request_that_could_outgrow_a_step_is_refused_where_prompts_are_not_cut() -> None:
    """Preempted at 15 tokens, it would wait for a step of 14 for ever, in an empty pool, and all others behind it."""
    scheduler = make_scheduler(9, FullAttentionSpec(4), max_num_batched_tokens=14, enable_chunked_prefill=False)
    with pytest.raises(ConfigError, match="max_num_batched_tokens"):
        add(scheduler, "A", 10, 22)
    assert scheduler.requests == {}
    add(scheduler, "B", 10, 5)  # 14 of its 15 tokens are computed
    add(scheduler, "C", 1, 14)
    for _ in range(20):
        if scheduler.has_unfinished_requests:
            step(scheduler)
    assert not scheduler.has_unfinished_requests


def test_a_threshold_cuts_long_prompts_even_where_the_budget_does_not() -> None:
    """As in vLLM: without chunked prefill a prompt waits until its next part fits, and the threshold says how long."""
    limits = {"max_num_batched_tokens": 13, "enable_chunked_prefill": False, "long_prefill_token_threshold": 4}
    scheduler = make_scheduler(20, FullAttentionSpec(4), **limits)
    add(scheduler, "A", 12, 2)
    add(scheduler, "B", 3, 9)
    assert [step(scheduler) for _ in range(4)] == [
        {"A": 4, "B": 3},
        {"A": 4, "B": 1},
        {"A": 4, "B": 1},
        {"A": 1, "B": 1},
    ]


def test_a_request_by_itself_is_cut_by_no_threshold() -> None:
    """It takes the step from no other: so it is let in only if it fits into one step as a whole."""
    limits = {"max_num_batched_tokens": 13, "enable_chunked_prefill": False, "long_prefill_token_threshold": 4}
    scheduler = make_scheduler(20, FullAttentionSpec(4), **limits)
    with pytest.raises(ConfigError, match="max_num_batched_tokens"):
        add(scheduler, "A", 13, 2)
    add(scheduler, "A", 12, 2)
    assert [step(scheduler) for _ in range(2)] == [{"A": 12}, {"A": 1}]
    assert not scheduler.has_unfinished_requests


@pytest.mark.parametrize("num_usable", range(1, 14))
def test_slots_beyond_the_tokens_count_when_a_window_is_let_in(num_usable: int) -> None:
    """In steps of 4 tokens and 3 slots more, a window of 2 holds 8 blocks of one token, and is planned with 9."""
    limits = {"max_num_batched_tokens": 4, "num_lookahead_tokens": 3}
    case = Case((Ask(12, 4),), num_usable + 1, (SlidingWindowSpec(1, sliding_window=2),), limits)
    this = play(replace(case, max_in_flight_tokens=4 + 3))
    assert (this.num_refused, this.num_finished) == ((1, 0) if num_usable < 9 else (0, 1))
    with pytest.raises(ConfigError, match="max_in_flight_tokens"):
        play(replace(case, max_in_flight_tokens=4 + 3 - 1))


def test_states_refuse_slots_for_drafts_when_the_scheduler_is_made() -> None:
    with pytest.raises(ConfigError, match="num_lookahead_tokens"):
        make_scheduler(20, STATE, num_lookahead_tokens=1)


def test_states_refuse_drafts_when_they_are_proposed() -> None:
    """A rejected draft cannot be taken back out of a state."""
    scheduler = make_scheduler(20, STATE)
    add(scheduler, "A", 5, 5)
    assert [step(scheduler), step(scheduler)] == [{"A": 4}, {"A": 1}]  # the state at 4 can be shared
    with pytest.raises((ConfigError, SchedulerError), match="state"):
        scheduler.update_draft_token_ids("A", [1])
    assert step(scheduler) == {"A": 1}


def test_samples_of_a_prompt_as_long_as_a_step_run() -> None:
    """A further sample that is not let in at once computes its own first token again: one more than the prompt."""
    limits = {"max_num_batched_tokens": 8, "max_num_seqs": 2, "enable_chunked_prefill": False}
    refused = play(Case((Ask(8, 3, num_samples=3),), 20, limits=limits))
    assert (refused.num_accepted, refused.num_refused) == (0, 1)
    this = play(Case((Ask(6, 3, num_samples=3),), 20, limits=limits))
    assert (this.num_accepted, this.num_finished) == (3, 3)


class NeverFree(KVCacheManager):
    """A cache that promises blocks and never gives any."""

    def allocate_slots(self, *arguments: object, **options: object) -> KVCacheBlocks | None:
        return None


def test_a_step_that_could_never_plan_anything_raises() -> None:
    kv = NeverFree.for_full_attention(20, 4)
    scheduler = Scheduler(kv)
    add(scheduler, "A", 5, 5)
    add(scheduler, "B", 5, 5)
    for _ in range(2):
        with pytest.raises(SchedulerError, match="never make progress"):
            scheduler.schedule()
    assert [request.request_id for request in scheduler.waiting] == ["A", "B"]
    scheduler.finish_requests(["A", "B"])
    assert scheduler.schedule().num_scheduled_tokens == {}


class Thief:
    """An admission strategy that takes every free block for itself, and never gives one back."""

    may_jump = False

    def reserved_blocks(self, block_pool: BlockPool, request: Request) -> int | None:
        block_pool.get_new_blocks(block_pool.num_free_blocks)
        return 0


def test_serving_a_trace_stops_when_nothing_can_run_any_more() -> None:
    """The second request comes while the first runs; from then on there is less memory than it needs."""
    trace: Sequence[TraceRequest] = [TraceRequest(0, 500, 5, (1,)), TraceRequest(20, 1500, 5, (2, 3, 4))]
    with pytest.raises(SchedulerError, match="never make progress"):
        replay_with_clock(trace, 12, strategy=Strategy(Thief()))


class NeverDone(Scheduler):
    """Gives up every step."""

    def update_from_output(self, scheduler_output: SchedulerOutput, sampled_token_ids: Any) -> list[EngineCoreOutput]:
        self.abandon_step()
        return []


def test_the_loop_of_this_test_can_see_a_standstill() -> None:
    case = Case((Ask(4, 4),), 20)
    this = Play(case)
    this.scheduler = NeverDone(this.kv)
    with pytest.raises(StandsStill, match="have not ended after"):
        this.run()

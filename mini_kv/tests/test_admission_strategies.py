"""When a newcomer may enter: each strategy's own rule, and what they cost on one workload."""

from functools import cache
from pathlib import Path

import pytest

import mini_kv.tools.traces
from mini_kv.core.block_pool import BlockPool
from mini_kv.core.errors import ConfigError
from mini_kv.core.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from mini_kv.core.kv_cache_manager import KVCacheManager
from mini_kv.core.request import Request
from mini_kv.core.sched.admission import AdmissionPolicy
from mini_kv.core.sched.config import SchedulerConfig
from mini_kv.core.sched.scheduler import Scheduler
from mini_kv.policy.admission_strategies import Greedy, Hysteresis, ReservedBlocks, Strategy, strategies
from mini_kv.story.step_loop import run_step
from mini_kv.tests.scheduler_driver import run
from mini_kv.tests.scheduler_matrix import Config
from mini_kv.tools.traces.readers.mooncake import TraceRequest, read_trace
from mini_kv.tools.traces.timed_replay import ClockReport, arrival_times, compare_strategies, replay_with_clock

TRACE = Path(mini_kv.tools.traces.__file__).with_name("small.jsonl")


def admitted(
    policy: AdmissionPolicy, prompts: dict[str, int], num_blocks: int = 11, watermark: float = 0.0
) -> list[str]:
    """Return what runs after two steps: the first prompt alone, then all others at once. Blocks hold one token."""
    group = KVCacheGroupSpec(("layers",), FullAttentionSpec(1))
    kv = KVCacheManager(KVCacheConfig(num_blocks, (group,)), enable_caching=False, watermark=watermark)
    scheduler = Scheduler(kv, admission=policy)
    for turn in ([*prompts][:1], [*prompts][1:]):
        for name in turn:
            scheduler.add_request(kv.new_request(name, range(prompts[name])), max_tokens=3)
        run_step(scheduler, lambda output: {name: [0] for name in output.num_scheduled_tokens})
    return [request.request_id for request in scheduler.running]


def test_greedy_stops_at_the_first_that_does_not_fit_and_jumping_goes_on():
    prompts = {"A": 4, "B": 7, "C": 2}  # A's second token takes a fifth block: 5 are left
    assert admitted(Greedy(), prompts) == ["A"]
    assert admitted(Greedy(may_jump=True), prompts) == ["A", "C"]


def test_reserved_blocks_stay_free():
    assert admitted(ReservedBlocks(2), {"A": 4, "B": 3}) == ["A", "B"]
    assert admitted(ReservedBlocks(3), {"A": 4, "B": 3}) == ["A"]


def test_a_watermark_is_a_share_of_all_blocks_rounded_down():
    assert admitted(Greedy(), {"A": 4, "B": 3}, watermark=0.27) == ["A", "B"]  # 2 of 11
    assert admitted(Greedy(), {"A": 4, "B": 3}, watermark=0.28) == ["A"]  # 3


def test_an_idle_engine_keeps_no_request_out():
    closed = Hysteresis(high=0.1, low=0.05)
    assert admitted(closed, {"A": 8}) == ["A"]
    assert admitted(ReservedBlocks(1000), {"A": 8}) == ["A"]


def test_hysteresis_keeps_its_mind_between_the_marks():
    pool = KVCacheManager.for_full_attention(11, 1).block_pool
    policy, request = Hysteresis(high=0.8, low=0.3), Request("R", [0])
    request.max_slots = 3
    held = pool.get_new_blocks(8)
    assert policy.reserved_blocks(pool, request) == 0
    held += pool.get_new_blocks(1)
    assert policy.reserved_blocks(pool, request) is None
    pool.free_blocks(held[:6])
    assert pool.num_free_blocks == 7
    assert policy.reserved_blocks(pool, request) is None
    pool.free_blocks(held[6:7])
    assert policy.reserved_blocks(pool, request) == 0


def test_small_requests_enter_by_a_closed_door():
    """A, of 6 tokens, holds more than half. L would fit, and waits; S, which came behind it, is small."""
    prompts = {"A": 6, "L": 3, "S": 1}
    assert admitted(Hysteresis(high=0.5, low=0.4, may_jump=True), prompts) == ["A"]
    assert admitted(Hysteresis(high=0.5, low=0.4, small=3, may_jump=True), prompts) == ["A", "S"]


def test_what_is_only_remembered_is_not_held():
    """The seeds' watermark counted cached blocks, closed an idle engine, and never opened it again."""
    kv = KVCacheManager.for_full_attention(11, 1)
    scheduler = Scheduler(kv, admission=Hysteresis(high=0.5, low=0.4))
    for name in ("A", "B"):
        scheduler.add_request(kv.new_request(name, [ord(name)] * 9), max_tokens=1)
        output, _ = run_step(scheduler, lambda output: {name: [0] for name in output.num_scheduled_tokens})
        assert list(output.num_scheduled_tokens) == [name]
    assert kv.usage == 0.0
    assert sum(block.block_hash is not None for block in kv.block_pool.blocks) == 10


@pytest.mark.slow
@pytest.mark.parametrize("strategy", strategies().values(), ids=strategies().keys())
def test_every_request_ends_under_every_strategy(strategy: Strategy):
    limits = SchedulerConfig(max_num_batched_tokens=16)
    config = Config(num_blocks=14, admission=strategy.admission, watermark=strategy.watermark, limits=limits)
    run(config, 50, 400)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: ReservedBlocks(-1), "num_blocks is -1"),
        (lambda: Hysteresis(high=0.2, low=0.5), "low is 0.5 and high 0.2"),
    ],
)
def test_strategies_that_make_no_sense_are_refused(make, says: str):
    with pytest.raises(ConfigError, match=says):
        make()


def test_serving_a_trace_counts_every_step_and_every_token():
    trace = [
        TraceRequest(timestamp=0, input_length=600, output_length=3, hash_ids=(1, 2)),
        TraceRequest(timestamp=0, input_length=600, output_length=2, hash_ids=(1, 3)),
        TraceRequest(timestamp=1000, input_length=9000, output_length=2, hash_ids=tuple(range(10, 28))),
    ]
    report = replay_with_clock(trace, 5, SchedulerConfig(max_num_batched_tokens=512), ms_per_step=100)
    # Step 1: 512 tokens of the first. 2: its other 88, and 88 of the second, which found 512: that is its prompt too.
    # 3, 4: a token each; the second is done after its second token, the first after its third.
    assert (report.requests, report.requests_refused, report.steps, report.preemptions) == (2, 1, 4, 0)
    assert (report.tokens_computed, report.tokens_recomputed) == (512 + 88 + 88 + 1 + 1 + 1, 0)
    assert (report.mean_wait, report.longest_wait) == (0.5, 1)
    assert (report.prompt_tokens, report.hit_tokens) == (1200, 512)
    assert (report.peak_running, report.peak_held_blocks) == (2, 3)


def test_a_rate_stretches_the_arrivals_and_a_load_is_what_is_held_at_once():
    """Ten requests of two blocks and a second each: alone, four at a time, and all at once."""
    trace = [TraceRequest(1000 * n, 600, 50, (100 + 2 * n, 101 + 2 * n)) for n in range(10)]
    assert arrival_times(trace)[:3] == [0, 1000, 2000]
    assert arrival_times(trace, rate=4)[:3] == [0, 250, 500]
    peaks = {rate: replay_with_clock(trace, rate=rate, ms_per_step=20).peak_held_blocks for rate in (0.5, 4, 1000)}
    assert peaks == {0.5: 2, 4: 8, 1000: 20}
    assert replay_with_clock(trace).num_blocks == 21


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"rate": 0}, "rate is 0: it must be above 0 requests per second"),
        ({"rate": float("nan")}, "rate is nan: it must be above 0"),
        ({"rate": 1}, "rate is 1, but all 2 requests of the trace come at the same moment"),
        ({"ms_per_step": 0}, "ms_per_step is 0, it must be at least 1"),
        ({"num_blocks": 1_000_001}, "num_blocks is 1000001, it must be at most 1,000,000 with a clock"),
    ],
)
def test_a_clock_that_makes_no_sense_is_refused(arguments, says):
    with pytest.raises(ConfigError, match=says):
        replay_with_clock([TraceRequest(5, 600, 3, (1, 2))] * 2, **arguments)


@cache
def reports() -> dict[str, ClockReport]:
    """Return what each strategy costs on the chapter's trace."""
    return compare_strategies(read_trace(TRACE), 60, ms_per_step=50)


@pytest.mark.slow
def test_jumping_the_queue_halves_the_mean_wait_and_lengthens_the_longest():
    """The chapter's figures: who is fast for most is unfair to some."""
    greedy, jumping = reports()["greedy"], reports()["jumping"]
    assert (greedy.requests, jumping.requests) == (200, 200)
    assert jumping.mean_wait < greedy.mean_wait / 2
    assert jumping.longest_wait > 2 * greedy.longest_wait


@pytest.mark.slow
def test_the_figures_of_notebook_08():
    """And of the chapter: what each strategy costs, and what of it is found again by those who were thrown out."""
    assert {name: (r.preemptions, r.tokens_given_up, r.tokens_recomputed) for name, r in reports().items()} == {
        "greedy": (17, 84_173, 11_469),
        "jumping": (47, 222_235, 81_947),
        "reserved-8": (3, 33_092, 2_884),
        "watermark-10": (0, 0, 0),
        "hysteresis-90-50": (3, 17_401, 1_529),
        "small-90-50": (10, 47_351, 14_071),
    }
    assert {name: (int(r.mean_wait), r.longest_wait) for name, r in reports().items()} == {
        "greedy": (1383, 3276),
        "jumping": (483, 6792),
        "reserved-8": (1843, 4142),
        "watermark-10": (1913, 4383),
        "hysteresis-90-50": (2469, 5452),
        "small-90-50": (1654, 4750),
    }


class LetsEveryThirdPass:
    """Two blocks kept back; those behind a request that does not fit may enter every third time that this is asked."""

    def __init__(self) -> None:
        self.num_asked = 0

    @property
    def may_jump(self) -> bool:
        self.num_asked += 1
        return self.num_asked % 3 == 0

    def reserved_blocks(self, block_pool: BlockPool, request: Request) -> int | None:
        return 2


@pytest.mark.slow
def test_a_door_that_beats_greedy_in_three_columns():
    """What lab-11's README promises."""
    trace = read_trace(TRACE)
    greedy, ours = (replay_with_clock(trace, 40, strategy=Strategy(door)) for door in (Greedy(), LetsEveryThirdPass()))
    assert (greedy.preemptions, int(greedy.mean_wait), greedy.longest_wait) == (18, 863, 2545)
    assert (ours.preemptions, int(ours.mean_wait), ours.longest_wait) == (7, 740, 2436)

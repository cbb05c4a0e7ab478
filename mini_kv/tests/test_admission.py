"""When a newcomer may enter: each strategy's own rule, and what they cost on one workload."""

from functools import cache
from pathlib import Path

import pytest

import mini_kv.traces
from mini_kv.core.errors import ConfigError
from mini_kv.core.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from mini_kv.core.kv_cache_manager import KVCacheManager
from mini_kv.core.sched.admission import AdmissionPolicy
from mini_kv.core.sched.config import SchedulerConfig
from mini_kv.core.sched.scheduler import Scheduler
from mini_kv.lessons.admission import ServeReport, Strategy, compare_strategies, main, serve, strategies
from mini_kv.policy.admission import Greedy, Hysteresis, ReservedBlocks
from mini_kv.tests.scheduler_driver import run
from mini_kv.tests.scheduler_matrix import Config
from mini_kv.trace.step import run_step
from mini_kv.traces.mooncake import TraceRequest, read_trace

TRACE = Path(mini_kv.traces.__file__).with_name("small.jsonl")


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
    policy = Hysteresis(high=0.8, low=0.3)
    held = pool.get_new_blocks(8)
    assert policy.reserved_blocks(pool) == 0
    held += pool.get_new_blocks(1)
    assert policy.reserved_blocks(pool) is None
    pool.free_blocks(held[:6])
    assert pool.num_free_blocks == 7
    assert policy.reserved_blocks(pool) is None
    pool.free_blocks(held[6:7])
    assert policy.reserved_blocks(pool) == 0


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
    report = serve(trace, 5, SchedulerConfig(max_num_batched_tokens=512), ms_per_step=100)
    # Step 1: 512 tokens of the first. 2: its other 88, and 88 of the second, which found 512: that is its prompt too.
    # 3, 4: a token each; the second is done after its second token, the first after its third.
    assert (report.requests, report.requests_refused, report.steps, report.preemptions) == (2, 1, 4, 0)
    assert (report.tokens_computed, report.tokens_recomputed) == (512 + 88 + 88 + 1 + 1 + 1, 0)
    assert (report.mean_wait, report.longest_wait) == (0.5, 1)


@cache
def reports() -> dict[str, ServeReport]:
    """Return what each strategy costs on the chapter's trace."""
    return compare_strategies(read_trace(TRACE), 60, ms_per_step=50)


@pytest.mark.slow
def test_jumping_the_queue_halves_the_mean_wait_and_lengthens_the_longest():
    """The chapter's figures: who is fast for most is unfair to some."""
    greedy, jumping = reports()["greedy"], reports()["greedy, jumping"]
    assert (greedy.requests, jumping.requests) == (200, 200)
    assert jumping.mean_wait < greedy.mean_wait / 2
    assert jumping.longest_wait > 2 * greedy.longest_wait


def test_the_figures_of_notebook_08():
    """And of the chapter: what each strategy costs, and what of it is found again by those who were thrown out."""
    assert {name: (r.preemptions, r.tokens_given_up, r.tokens_recomputed) for name, r in reports().items()} == {
        "greedy": (17, 84_173, 11_469),
        "greedy, jumping": (47, 222_235, 81_947),
        "8 blocks reserved": (3, 33_092, 2_884),
        "watermark 10 %": (0, 0, 0),
        "hysteresis 90/50 %": (3, 17_401, 1_529),
    }
    assert {name: (int(r.mean_wait), r.longest_wait) for name, r in reports().items()} == {
        "greedy": (1383, 3276),
        "greedy, jumping": (483, 6792),
        "8 blocks reserved": (1843, 4142),
        "watermark 10 %": (1913, 4383),
        "hysteresis 90/50 %": (2469, 5452),
    }


def test_the_command_compares_all_strategies(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    small = tmp_path / "two.jsonl"
    small.write_text("".join(TRACE.read_text().splitlines(keepends=True)[:2]))
    assert main([str(small), "--num-blocks", "9"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "2 requests, 0 of them larger than the pool of 8 blocks"
    assert [line[:20].strip() for line in lines[3:]] == list(strategies())
    assert main([str(tmp_path / "none.jsonl")]) == 1
    assert "none.jsonl" in capsys.readouterr().err

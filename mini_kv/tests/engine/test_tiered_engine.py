"""The engine over tiers says what it says without any: every tier, every kind of layer, and servers in trouble."""

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from mini_kv.core.errors import ConfigError
from mini_kv.core.invariants import find_violations
from mini_kv.core.kv_cache_planning import get_kv_cache_groups
from mini_kv.core.sched.config import SchedulerConfig
from mini_kv.core.sched.request_queue import SchedulingPolicy
from mini_kv.engine.config import EngineConfig
from mini_kv.engine.llm_engine import LLMEngine
from mini_kv.engine.sampling import SamplingParams
from mini_kv.engine.tiered_engine import TieredEngine
from mini_kv.tests.engine.small_models import (
    VOCAB_SIZE,
    alone,
    first_samples,
    prompts_with_shared_prefixes,
)
from mini_kv.tests.engine.test_says_the_same import MODELS
from mini_kv.tests.tiers.tiers_driver import TROUBLES, FakeServer
from mini_kv.tiers.background import Inline, Thread, Worker
from mini_kv.tiers.memory_tier import MemoryTier
from mini_kv.tiers.reload_cost import LearnedCost, ReloadCost
from mini_kv.tiers.remote import Breaker, RemoteTier
from mini_kv.tiers.tier_config import TierConfig, open_tiers
from mini_kv.tiers.tiered_cache import TieredCache

pytestmark = pytest.mark.slow

GREEDY = SamplingParams(max_tokens=12, temperature=0)
SMALL_POOL = EngineConfig(
    block_size=4,
    num_blocks=20,
    debug_poison=True,
    scheduler=SchedulerConfig(max_num_batched_tokens=24, max_num_seqs=6, scheduler_reserve_full_isl=False),
)


def engine(
    tiers: TieredCache, model_name: str = "full", config: EngineConfig = SMALL_POOL, seconds: float = 0.5
) -> TieredEngine:
    """Return an engine with so few blocks that much of what it computes is evicted before it is asked for again."""
    model = MODELS[model_name]
    num_groups = len(get_kv_cache_groups(model.get_kv_cache_spec(config.block_size)))
    config = replace(config, num_blocks=num_groups * (config.num_blocks or 0))
    return TieredEngine(model, config=config, tiers=tiers, seconds_to_wait=seconds)


def texts(llm: LLMEngine, prompts: list[list[int]]) -> list[list[int]]:
    """Return what the engine says."""
    return first_samples(llm.generate(prompts, GREEDY))


@pytest.mark.parametrize("make_worker", [Inline, Thread])
@pytest.mark.parametrize("memory_bytes", [1 << 20, 6_000])
@pytest.mark.parametrize("model_name", MODELS)
def test_the_same_words(model_name: str, memory_bytes: int, make_worker: Callable[[], Worker], tmp_path: Path) -> None:
    """Memory that holds all, or a little and a disk; with hits, chunks, preemptions, and NaN wherever none may read."""
    prompts = prompts_with_shared_prefixes(14) * 2
    tiers = open_tiers(TierConfig(memory_bytes=memory_bytes, disk_folder=tmp_path), make_worker)
    with engine(tiers, model_name) as llm:
        assert texts(llm, prompts) == alone(MODELS[model_name], prompts, 12)
        assert llm.scheduler.num_preemptions > 0 or model_name == "windows everywhere"
        assert llm.connector.counts["promoted"] > 3
        assert list(find_violations(llm.kv_cache_manager)) == [] and llm.kv_cache_manager.usage == 0.0


@pytest.mark.parametrize(("seconds_per_byte", "is_reloaded"), [(1.0, False), (0.0, True)])
def test_what_is_cheaper_to_compute_is_computed_and_the_words_stay(seconds_per_byte: float, is_reloaded: bool) -> None:
    """An engine to which bytes are dear, or free; preempted requests choose, too."""

    class Learned(LearnedCost):
        prices = ReloadCost(seconds_per_token=1e-3, seconds_per_byte=seconds_per_byte)

    prompts = prompts_with_shared_prefixes(14) * 2
    tiers, cost = TieredCache(MemoryTier(1 << 20)), Learned(one_in=10**6)
    with TieredEngine(MODELS["full"], config=SMALL_POOL, tiers=tiers, cost=cost) as llm:
        assert texts(llm, prompts) == alone(MODELS["full"], prompts, 12)
        assert llm.scheduler.num_preemptions > 0
        assert (llm.connector.counts["promoted"] > 3) is is_reloaded
        assert (llm.connector.counts["not worth it"] > 3) is not is_reloaded


def test_an_engine_learns_what_its_own_steps_and_copies_take() -> None:
    """Steps of several lengths, and copies: after some prompts both have a price, and it is no more than a second."""
    cost = LearnedCost()
    with TieredEngine(MODELS["full"], config=SMALL_POOL, tiers=TieredCache(MemoryTier(1 << 20)), cost=cost) as llm:
        prompts = prompts_with_shared_prefixes(14) * 2
        assert texts(llm, prompts) == alone(MODELS["full"], prompts, 12)
        assert llm.connector.counts["promoted"] > 0
    steps, copies = cost._steps, cost._copies
    assert {tokens for tokens, _ in steps} > {6} and len({num_bytes for num_bytes, _ in copies}) > 1
    assert all(0 < seconds < 1 for _, seconds in (*steps, *copies))


def test_samples_priorities_and_salts(tmp_path: Path) -> None:
    """What forks, jumps the line or keeps to its own."""
    prompts = prompts_with_shared_prefixes(8)
    limits = replace(SMALL_POOL.scheduler, policy=SchedulingPolicy.PRIORITY)
    tiers = open_tiers(TierConfig(memory_bytes=20_000, disk_folder=tmp_path), Inline)
    with engine(tiers, config=replace(SMALL_POOL, scheduler=limits)) as llm:
        for salt in ("one", "two", "one"):
            outputs = llm.generate(prompts, GREEDY, n=2, cache_salt=salt)
            expected = alone(MODELS["full"], prompts, 12)
            assert [[sample.token_ids for sample in output.outputs] for output in outputs] == [
                [words, words] for words in expected
            ]


def test_fewer_tokens_are_computed(tmp_path: Path) -> None:
    """Two rounds of prompts that do not fit into the pool together; the second one costs little."""
    prompts = prompts_with_shared_prefixes(14)
    computed = []
    for llm in (LLMEngine(MODELS["full"], config=SMALL_POOL), engine(TieredCache(MemoryTier(1 << 20)))):
        texts(llm, prompts)
        before = llm.stats.num_scheduled_tokens
        texts(llm, prompts)
        computed.append(llm.stats.num_scheduled_tokens - before)
    assert computed[1] < 0.8 * computed[0]


def test_a_memory_that_holds_no_block_is_refused() -> None:
    """Said before anything runs, with what a block takes."""
    for memory_bytes in (1, 500):
        message = (
            f"the memory tier has {memory_bytes} bytes, and one block takes 2,152: no block could come back from it"
        )
        with pytest.raises(ConfigError, match=message):
            engine(open_tiers(TierConfig(memory_bytes=memory_bytes)))


def test_the_next_engine_finds_it_on_the_disk(tmp_path: Path) -> None:
    """An engine that ends leaves its disk; what was pushed out there is hit by the one that comes after."""
    prompts = prompts_with_shared_prefixes(14)
    counts = []
    for _ in range(2):
        with engine(open_tiers(TierConfig(memory_bytes=6_000, disk_folder=tmp_path), Inline)) as llm:
            assert texts(llm, prompts) == alone(MODELS["full"], prompts, 12)
            counts.append(llm.stats.num_scheduled_tokens)
    assert counts[1] < counts[0]


def test_two_engines_share_a_server() -> None:
    """The second computes one token of each prompt that the first has computed, beside what no hit can cover."""
    server, roomy = FakeServer(random.Random(0)), replace(SMALL_POOL, num_blocks=200)
    prompts = [[number, *range(32)] for number in range(VOCAB_SIZE)][:6]
    computed = []
    for _ in range(2):
        with engine(TieredCache(MemoryTier(1 << 20), remote=RemoteTier(server)), config=roomy) as llm:
            assert texts(llm, prompts) == alone(MODELS["full"], prompts, 12)
            computed.append(llm.stats.num_scheduled_tokens)
    assert computed == [6 * (33 + 11), 6 * (1 + 11)]


@pytest.mark.parametrize("trouble", sorted({*TROUBLES} - {"none"}))
def test_a_server_in_trouble(trouble: str) -> None:
    """Down, slow, full, lying: the words are the same, and three failures in a row are the last for a while."""
    server = FakeServer(random.Random(0))
    prompts = prompts_with_shared_prefixes(10)
    with engine(TieredCache(MemoryTier(1 << 20), remote=RemoteTier(server))) as llm:
        texts(llm, prompts)
    server.trouble = trouble
    remote = RemoteTier(server, breaker=Breaker(seconds_open=60.0))
    with engine(TieredCache(MemoryTier(6_000), remote=remote)) as llm:
        assert texts(llm, prompts) == alone(MODELS["full"], prompts, 12)
    if trouble in ("down", "slow"):
        assert sum(remote.failures.values()) - remote.failures["breaker open"] == 3


def test_what_cannot_be_opened() -> None:
    """Said before anything runs."""
    with pytest.raises(ConfigError, match="seconds_to_wait is 0, it must be more than 0"):
        TierConfig(seconds_to_wait=0)
    with pytest.raises(ConfigError, match="the remote tier's address 'nowhere' cannot be used"):
        open_tiers(TierConfig(server="nowhere"))

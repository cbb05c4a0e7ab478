"""One model, several ways to keep its past: all must say the same, token for token."""

import random
from dataclasses import replace
from typing import Any

import pytest

from mini_kv.core.kv_cache_interface import KVCacheConfig
from mini_kv.core.kv_cache_manager import KVCacheManager
from mini_kv.core.kv_cache_planning import get_kv_cache_groups
from mini_kv.core.sched.config import SchedulerConfig
from mini_kv.core.sched.request_queue import SchedulingPolicy
from mini_kv.engine.config import EngineConfig
from mini_kv.engine.contiguous import ContiguousCache, generate_alone
from mini_kv.engine.llm_engine import LLMEngine
from mini_kv.engine.sampling import SamplingParams
from mini_kv.story.debug import DebugKVCacheManager
from mini_kv.tests.engine.small_models import (
    VOCAB_SIZE,
    alone,
    first_samples,
    prompts_with_shared_prefixes,
    small_model,
)

GREEDY = SamplingParams(max_tokens=12, temperature=0)

MODELS = {
    "full": small_model(),
    "one window layer of two": small_model(sliding_window=6, window_layers=(1,)),
    "windows everywhere": small_model(sliding_window=5, window_layers=(0, 1)),
    "one full layer of three": small_model(sliding_window=7, window_layers=(0, 2), layers=3),
}

CONFIGS = {
    "roomy": EngineConfig(block_size=4, num_blocks=160),
    "no prefix caching": EngineConfig(block_size=4, num_blocks=160, enable_prefix_caching=False),
    "prompts in small chunks": EngineConfig(
        block_size=4, num_blocks=160, scheduler=SchedulerConfig(max_num_batched_tokens=7)
    ),
    "few blocks": EngineConfig(
        block_size=4,
        num_blocks=20,
        scheduler=SchedulerConfig(max_num_batched_tokens=24, max_num_seqs=6, scheduler_reserve_full_isl=False),
    ),
    "few blocks, priorities, blocks of three": EngineConfig(
        block_size=3,
        num_blocks=24,
        scheduler=SchedulerConfig(max_num_batched_tokens=9, policy=SchedulingPolicy.PRIORITY),
    ),
    "few seats, the obvious attention": EngineConfig(
        block_size=5, num_blocks=40, backend="reference", scheduler=SchedulerConfig(max_num_seqs=3)
    ),
}


def engine(model_name: str, config_name: str) -> LLMEngine:
    """Return an engine that checks itself; where layers form several groups, each takes blocks of its own."""
    model, config = MODELS[model_name], CONFIGS[config_name]
    num_groups = len(get_kv_cache_groups(model.get_kv_cache_spec(config.block_size)))
    config = replace(config, num_blocks=num_groups * (config.num_blocks or 0), debug_poison=True)
    return LLMEngine(model, config=config, make_manager=debug_manager)


def debug_manager(kv_cache_config: KVCacheConfig, **options: Any) -> KVCacheManager:
    """Return the engine's manager, checked after every call."""
    return DebugKVCacheManager(KVCacheManager(kv_cache_config, **options))


@pytest.mark.parametrize("model_name", MODELS)
def test_a_contiguous_cache_says_what_no_cache_says(model_name):
    model = MODELS[model_name]
    for prompt in prompts_with_shared_prefixes(5):
        with_cache = generate_alone(model, prompt, 12, ContiguousCache(model, len(prompt) + 12))
        assert [with_cache] == alone(model, [prompt], 12)


@pytest.mark.parametrize("config_name", CONFIGS)
@pytest.mark.parametrize("model_name", MODELS)
def test_the_engine_says_what_no_cache_says(model_name, config_name):
    prompts = prompts_with_shared_prefixes(10)
    llm = engine(model_name, config_name)
    outputs = llm.generate(prompts, GREEDY)
    assert first_samples(outputs) == alone(MODELS[model_name], prompts, 12)
    assert llm.kv_cache_manager.usage == 0.0
    if config_name == "few blocks" and model_name != "windows everywhere":
        assert llm.scheduler.num_preemptions > 0
    if config_name == "roomy":
        assert sum(output.num_cached_tokens or 0 for output in outputs) > 0


@pytest.mark.parametrize("model_name", MODELS)
def test_a_second_time_the_prompts_come_from_the_cache_and_nothing_else_changes(model_name):
    prompts = prompts_with_shared_prefixes(6)
    llm = engine(model_name, "roomy")
    first = first_samples(llm.generate(prompts, GREEDY))
    again = llm.generate(prompts, GREEDY)
    assert first_samples(again) == first
    assert [output.num_cached_tokens for output in again] == [(len(prompt) - 1) // 4 * 4 for prompt in prompts]


@pytest.mark.slow
@pytest.mark.parametrize("config_name", CONFIGS)
@pytest.mark.parametrize("model_name", MODELS)
def test_requests_that_come_and_go_change_nothing_for_the_others(model_name, config_name):
    """Requests arrive while others run, some with several samples, some are aborted: the runner's tables stay right."""
    model, llm, rng = MODELS[model_name], engine(model_name, config_name), random.Random(5)
    prompts = {f"r{i}": prompt for i, prompt in enumerate(prompts_with_shared_prefixes(14, seed=3))}
    said: dict[tuple[str, int], list[int]] = {}
    waiting, num_aborted = list(prompts), 0
    while waiting or llm.has_unfinished_requests:
        if waiting and rng.random() < 0.5:
            name = waiting.pop(0)
            params = SamplingParams(max_tokens=rng.randrange(1, 13), temperature=0)
            llm.add_request(name, prompts[name], params, n=rng.choice((1, 1, 3)), priority=rng.randrange(3))
        if rng.random() < 0.05:
            name = rng.choice(list(prompts))
            llm.abort(name)
            num_aborted += 1
        for delta in llm.step():
            said.setdefault((delta.request_id, delta.index), []).extend(delta.new_token_ids)
        assert_tables_agree(llm)
    assert num_aborted > 0 and llm.kv_cache_manager.usage == 0.0
    for (name, _), token_ids in said.items():
        (answer,) = alone(model, [prompts[name]], 12)
        assert token_ids == answer[: len(token_ids)]


def assert_tables_agree(llm: LLMEngine) -> None:
    """Whatever scheduler and runner both know of a request's blocks is the same, but for what a window gave back."""
    runner, manager = llm.model_runner, llm.kv_cache_manager
    for name in runner.requests.keys() & manager.requests.keys():
        row = runner.requests[name].row
        for table, block_ids in zip(runner.block_tables, manager.get_block_ids(name), strict=True):
            known = table.block_table[row, : table.num_blocks_per_row[row]].tolist()
            read = [block_id if now else 0 for block_id, now in zip(known, block_ids, strict=True)]
            assert read == block_ids


@pytest.mark.parametrize("model_name", MODELS)
def test_samples_of_a_prompt_go_their_own_ways_on_shared_blocks(model_name):
    """Forked samples say what each would have said if it had been asked alone with its number of the draw."""
    prompt = prompts_with_shared_prefixes(4)[0]
    params = SamplingParams(max_tokens=10, temperature=1.0, seed=11)
    llm = engine(model_name, "roomy")
    together = [sample.token_ids for sample in llm.generate([prompt], params, n=4)[0].outputs]
    assert len({tuple(token_ids) for token_ids in together}) == 4
    assert llm.stats.num_scheduled_tokens == len(prompt) + 4 * 9

    crowded = engine(model_name, "few seats, the obvious attention")  # one of them must wait, and find its prompt again
    assert [sample.token_ids for sample in crowded.generate([prompt], params, n=4)[0].outputs] == together


def test_a_seeded_request_says_the_same_in_any_batch():
    model = MODELS["full"]
    prompts = prompts_with_shared_prefixes(8)
    params = [SamplingParams(max_tokens=12, temperature=0.9, top_k=20, top_p=0.9, seed=seed) for seed in range(8)]
    alone_ = [
        LLMEngine(model, config=CONFIGS["roomy"]).generate([prompt], choice)[0].outputs[0].token_ids
        for prompt, choice in zip(prompts, params, strict=True)
    ]
    for config in CONFIGS.values():
        together = LLMEngine(model, config=config).generate(prompts, params)
        assert first_samples(together) == alone_
    assert max(token for token_ids in alone_ for token in token_ids) < VOCAB_SIZE

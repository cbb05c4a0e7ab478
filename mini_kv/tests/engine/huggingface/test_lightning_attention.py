"""Layers that keep a running state beside one with keys and values, in the whole engine: a MiniMax."""

from dataclasses import replace

import pytest
import torch

from mini_kv.attention.kv_cache import PagedKVCache
from mini_kv.attention.linear import StateCache, linear_attention
from mini_kv.core.errors import ConfigError
from mini_kv.core.sched.config import SchedulerConfig
from mini_kv.engine.config import EngineConfig
from mini_kv.engine.contiguous import NoCache, generate_alone
from mini_kv.engine.drafts import SpeculativeConfig
from mini_kv.engine.hf.hf_checkpoint import load_huggingface
from mini_kv.engine.llm_engine import LLMEngine
from mini_kv.engine.sampling import SamplingParams
from mini_kv.engine.tiered_engine import TieredEngine
from mini_kv.tests.engine.huggingface import checkpoints
from mini_kv.tests.engine.huggingface.test_latent_attention import said
from mini_kv.tiers.memory_tier import MemoryTier
from mini_kv.tiers.tiered_cache import TieredCache

SHORT = EngineConfig(
    block_size=4,
    num_blocks=32,
    debug_poison=True,
    scheduler=SchedulerConfig(max_num_batched_tokens=16, scheduler_reserve_full_isl=False),
)


def test_token_by_token_it_is_the_sum_over_all_tokens_that_fades_with_their_age():
    torch.manual_seed(3)
    query, key, value = torch.randn(3, 7, 2, 4, dtype=torch.float64)
    decay = torch.tensor([0.5, 0.9], dtype=torch.float64)
    ages = torch.arange(7)[:, None] - torch.arange(7)
    faded = decay[:, None, None] ** ages.clamp(min=0) * (ages >= 0)
    right = torch.einsum("hqk,khd->qhd", torch.einsum("qhd,khd->hqk", query, key) * faded, value)
    state = torch.zeros(2, 4, 4, dtype=torch.float64)
    first, state = linear_attention(query[:3], key[:3], value[:3], decay, state)
    rest, _ = linear_attention(query[3:], key[3:], value[3:], decay, state)
    torch.testing.assert_close(torch.cat((first, rest)), right, rtol=0, atol=1e-12)


def test_each_layer_is_a_group_and_a_block_holds_four_tokens_or_one_state(made):
    model, _ = load_huggingface(made("minimax").folder)
    engine = LLMEngine(model, config=SHORT)
    (tensor,) = engine.model_runner.kv_cache_tensors
    assert list(tensor.shape) == [32, 2 * 4 * 4 * 8] == [32, 4 * 8 * 8]
    assert [type(cache) for cache, _ in engine.model_runner.layers] == [StateCache, PagedKVCache, StateCache]


def test_while_it_writes_a_request_holds_two_states_at_most_and_all_of_its_keys(made):
    """37 tokens of a prompt, then 8 more: where a block ends the state before it is given back a step later."""
    checkpoint = made("minimax")
    model, _ = load_huggingface(checkpoint.folder)
    engine = LLMEngine(model, config=replace(SHORT, num_blocks=100))
    held = []
    for _ in engine.stream([checkpoint.prompts[-1]], SamplingParams(max_tokens=8, temperature=0)):
        tables = engine.kv_cache_manager.get_block_ids("0")
        held.append([sum(block_id != 0 for block_id in table) for table in tables])
    assert held == [[2, 2, 10], [1, 1, 10], [1, 1, 10], [1, 1, 10], [2, 2, 11], [1, 1, 11], [1, 1, 11], [0, 0, 0]]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "num_blocks"), [("minimax", 32), ("deepseek_v3", 16)])
def test_what_the_pool_evicts_comes_back_from_memory_and_is_the_same(name, num_blocks, made):
    """A state, and a latent vector."""
    checkpoint = made(name)
    model, _ = load_huggingface(checkpoint.folder)
    config = replace(SHORT, num_blocks=num_blocks)
    with TieredEngine(model, config=config, tiers=TieredCache(MemoryTier(1 << 20))) as engine:
        assert said(engine, checkpoint.prompts) == checkpoint.answers
        assert said(engine, checkpoint.prompts) == checkpoint.answers
        assert engine.connector.counts["promoted"] > 10


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "cache_dtype", "block_size"),
    [
        ("minimax", "int8_per_token_head", 12),
        ("minimax", "fp8", 16),
        ("deepseek_v2", "int8_per_token_head", 4),
        ("deepseek_v2", "fp8", 4),
    ],
)
def test_in_8_bits_each_prompt_says_what_it_says_alone(name, cache_dtype, block_size, made):
    """A state stays in 32 bits, and blocks have so many tokens that keys and values take as much room."""
    checkpoint = made(name)
    model, _ = load_huggingface(checkpoint.folder)
    prompts = checkpoint.prompts[-8:]
    num_blocks = 32 if name == "minimax" else 16
    engine = LLMEngine(model, config=replace(SHORT, num_blocks=num_blocks, kv_cache_dtype=cache_dtype))
    roomy = EngineConfig(4, 100, enable_prefix_caching=False, kv_cache_dtype=cache_dtype)
    expected = [said(LLMEngine(model, config=roomy), [prompt])[0] for prompt in prompts]
    assert said(engine, prompts) == said(engine, prompts) == expected
    assert engine.kv_cache_manager.block_size == block_size
    assert engine.scheduler.num_preemptions > 0 or name == "minimax"


def test_without_a_cache_it_says_the_same(made):
    checkpoint = made("minimax")
    model, _ = load_huggingface(checkpoint.folder)
    longest, right = checkpoint.prompts[-1], checkpoint.answers[-1]
    assert generate_alone(model, longest, checkpoints.NUM_NEW_TOKENS, NoCache()) == right


def test_what_would_take_tokens_out_of_a_state_is_refused(made):
    model, _ = load_huggingface(made("minimax").folder)
    with pytest.raises(ConfigError, match="n of request '0' is 2, but a layer keeps states, which cannot be forked"):
        LLMEngine(model, config=SHORT).generate([[1, 2]], n=2)
    with pytest.raises(ConfigError, match="speculative_config: a layer keeps states"):
        LLMEngine(model, config=replace(SHORT, speculative_config=SpeculativeConfig(2)))

"""Keys and values in 8 bits through the whole engine: what is shared, cut, preempted and forked stays what it is."""

import random
from dataclasses import replace
from typing import Any

import pytest
import torch

from mini_kv.attention.backends import write_kv
from mini_kv.attention.kv_cache import PagedKVCache
from mini_kv.attention.quantized import dequantize
from mini_kv.core.errors import ConfigError
from mini_kv.core.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheSpec, MambaSpec
from mini_kv.core.kv_cache_planning import get_kv_cache_config, get_kv_cache_groups, with_cache_dtype
from mini_kv.core.sched.config import SchedulerConfig
from mini_kv.dev.quantized_quality import log_likelihoods
from mini_kv.engine.config import EngineConfig
from mini_kv.engine.kv_memory import allocate_kv_cache_tensors
from mini_kv.engine.llm_engine import LLMEngine
from mini_kv.engine.sampling import SamplingParams
from mini_kv.engine.tiered_engine import TieredEngine
from mini_kv.tests.engine.small_models import (
    VOCAB_SIZE,
    alone,
    first_samples,
    prompts_with_shared_prefixes,
)
from mini_kv.tests.engine.test_says_the_same import MODELS as ALL_MODELS
from mini_kv.tiers.memory_tier import MemoryTier
from mini_kv.tiers.tiered_cache import TieredCache

GREEDY = SamplingParams(max_tokens=12, temperature=0)
MODELS = {name: model for name, model in ALL_MODELS.items() if name != "windows everywhere"}
NARROW = ("int8_per_token_head", "fp8")
SMALL_POOL = EngineConfig(
    block_size=4,
    num_blocks=20,
    debug_poison=True,
    scheduler=SchedulerConfig(max_num_batched_tokens=24, max_num_seqs=6, scheduler_reserve_full_isl=False),
)


def sized(config: EngineConfig, model_name: str) -> EngineConfig:
    """Return the configuration with as many blocks per group."""
    groups = get_kv_cache_groups(MODELS[model_name].get_kv_cache_spec(config.block_size))
    return replace(config, num_blocks=(config.num_blocks or 0) * len(groups))


def texts(engine: LLMEngine, prompts: list[list[int]]) -> list[list[int]]:
    """Return what an engine says."""
    return first_samples(engine.generate(prompts, GREEDY))


def one_by_one(model_name: str, cache_dtype: str, prompts: list[list[int]]) -> list[list[int]]:
    """Return what is said if each prompt has a roomy engine of its own, in which nothing is shared or cut."""
    config = sized(EngineConfig(4, 200, enable_prefix_caching=False, kv_cache_dtype=cache_dtype), model_name)
    return [texts(LLMEngine(MODELS[model_name], config=config), [prompt])[0] for prompt in prompts]


@pytest.mark.slow
@pytest.mark.parametrize("cache_dtype", NARROW)
@pytest.mark.parametrize("model_name", MODELS)
def test_the_same_words_however_it_is_computed(model_name: str, cache_dtype: str) -> None:
    """Hits, chunks, preemptions, and NaN wherever no request may read: each prompt says what it says alone."""
    prompts = prompts_with_shared_prefixes(12)
    config = replace(sized(SMALL_POOL, model_name), kv_cache_dtype=cache_dtype)
    engine = LLMEngine(MODELS[model_name], config=config)
    expected = one_by_one(model_name, cache_dtype, prompts)
    assert texts(engine, prompts) == expected
    assert texts(engine, prompts) == expected
    assert engine.scheduler.num_preemptions > 0 and engine.kv_cache_manager.prefix_cache_stats.hits > 0
    assert expected != alone(MODELS[model_name], prompts, 12)  # 8 bits are not 64, and here it shows


@pytest.mark.slow
@pytest.mark.parametrize("cache_dtype", NARROW)
def test_forks_copy_numbers_with_their_scales(cache_dtype: str) -> None:
    """Samples that part in the middle of a block; and blocks that come back from memory, scales included."""
    prompts = prompts_with_shared_prefixes(8)
    config = replace(SMALL_POOL, kv_cache_dtype=cache_dtype)
    drawn = SamplingParams(max_tokens=9, temperature=1.5, seed=3)
    said = []
    for num_blocks in (300, 20):
        with TieredEngine(
            MODELS["full"], config=replace(config, num_blocks=num_blocks), tiers=TieredCache(MemoryTier(1 << 20))
        ) as engine:
            outputs = engine.generate(prompts, drawn, n=3)
            said.append([[sample.token_ids for sample in output.outputs] for output in outputs])
    assert said[0] == said[1]
    assert len({tuple(words) for words in said[0][0]}) == 3


def test_layers_of_one_group_have_tensors_of_their_own_sizes() -> None:
    """Two KV heads of 8 in one layer, and one in the other: 4 tokens are 128 numbers, and 64."""

    class Uneven:
        dtype, device = torch.float64, torch.device("cpu")

        def get_kv_cache_spec(self, block_size: int) -> dict[str, KVCacheSpec]:
            return {str(heads): FullAttentionSpec(block_size, heads, 8, self.dtype.itemsize) for heads in (2, 1)}

    model: Any = Uneven()
    config = KVCacheConfig(6, get_kv_cache_groups(model.get_kv_cache_spec(4)))
    tensors, layers = allocate_kv_cache_tensors(model, config)
    assert [list(tensor.shape) for tensor in tensors] == [[6, 2 * 4 * 2 * 8], [6, 2 * 4 * 1 * 8]]
    assert [(list(view.data.shape), group) for view, group in layers if isinstance(view, PagedKVCache)] == [
        ([6, 2, 4, 2, 8], 0),
        ([6, 2, 4, 1, 8], 0),
    ]


def test_each_element_is_within_half_a_scale() -> None:
    """An outlier costs its own token and head; a token of zeros costs none; a block beside it, nothing."""
    model = MODELS["full"]
    specs = with_cache_dtype(model.get_kv_cache_spec(4), "int8_per_token_head")
    tensors, layers = allocate_kv_cache_tensors(model, KVCacheConfig(6, get_kv_cache_groups(specs)))
    assert [(tensor.dtype, list(tensor.shape)) for tensor in tensors] == [(torch.uint8, [6, 2 * 4 * 2 * (8 + 4)])] * 2
    key = torch.randn(12, 2, 8, generator=torch.Generator().manual_seed(0))
    key[3, 1, 5] = 1000.0
    key[7] = 0.0
    kv_cache, _ = layers[0]
    assert isinstance(kv_cache, PagedKVCache)
    write_kv(key, -2 * key, kv_cache, torch.arange(4, 16), backend="torch")
    assert kv_cache.scales is not None
    for plane, written in ((0, key), (1, -2 * key)):
        back = dequantize(kv_cache.data[1:4, plane], kv_cache.scales[1:4, plane]).flatten(0, 1)
        scales = kv_cache.scales[1:4, plane].flatten(0, 1)
        assert bool(((back - written).abs() <= scales.unsqueeze(-1) / 2 * 1.0001).all())
        assert torch.equal(scales, written.abs().amax(-1) / 127)
        assert torch.equal(back[7], written[7])
    assert int(tensors[0][[0, 4, 5]].sum()) == 0 == int(tensors[1].sum())


def test_equal_bytes_hold_nearly_twice_the_blocks() -> None:
    """Of Llama-3-8B, with heads of 128: 1.94 times in int8, whose scales count, and 2 times in fp8."""
    specs = {f"layers.{layer}": FullAttentionSpec(16, 8, 128) for layer in range(32)}
    num_blocks = {
        cache_dtype: get_kv_cache_config(get_kv_cache_groups(with_cache_dtype(specs, cache_dtype)), 16 << 30).num_blocks
        for cache_dtype in ("auto", *NARROW)
    }
    assert num_blocks == {"auto": 8192, "int8_per_token_head": 15887, "fp8": 16384}


def test_what_there_is_not() -> None:
    """Refused when the engine is built; states are none of its business."""
    with pytest.raises(ConfigError, match="kv_cache_dtype is 'int8'; there are: auto, int8_per_token_head, fp8"):
        LLMEngine(MODELS["full"], config=EngineConfig(kv_cache_dtype="int8"))
    with pytest.raises(ConfigError, match=r"a has heads of 6 elements: in 8 bits it must be a multiple of 4"):
        with_cache_dtype({"a": FullAttentionSpec(4, 2, 6)}, "fp8")
    state = {"a": MambaSpec(4, shapes=((3,),), dtypes_bytes=(2,))}
    assert with_cache_dtype(state, "fp8") == state


def test_likelihoods_through_the_cache() -> None:
    """In the model's own dtype they are those of the model; in 8 bits close to them, and others."""
    model, rng = MODELS["full"], random.Random(0)
    tokens = [rng.randrange(VOCAB_SIZE) for _ in range(30)]
    found = {cache_dtype: log_likelihoods(model, tokens, cache_dtype) for cache_dtype in ("auto", *NARROW)}
    assert all(len(values) == 29 for values in found.values())
    assert found["auto"] != found["fp8"] != found["int8_per_token_head"]
    assert sum(found["auto"]) == pytest.approx(sum(found["int8_per_token_head"]), rel=0.05)

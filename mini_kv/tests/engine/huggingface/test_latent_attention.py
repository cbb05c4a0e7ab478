"""Multi-head latent attention in the whole engine: one vector per token and layer, in 8 bits, in tiers, and refused."""

import pytest
import torch

from mini_kv.attention.kv_cache import PagedKVCache
from mini_kv.attention.options import AttentionOptions
from mini_kv.core.errors import ConfigError
from mini_kv.core.sched.config import SchedulerConfig
from mini_kv.engine.config import EngineConfig
from mini_kv.engine.contiguous import NoCache
from mini_kv.engine.hf.hf_checkpoint import load_huggingface
from mini_kv.engine.latent_attention import Latents, attend_to_latents
from mini_kv.engine.llm_engine import LLMEngine
from mini_kv.engine.sampling import SamplingParams

GREEDY = SamplingParams(max_tokens=8, temperature=0)
SHORT = EngineConfig(
    block_size=4,
    num_blocks=16,
    debug_poison=True,
    scheduler=SchedulerConfig(max_num_batched_tokens=16, scheduler_reserve_full_isl=False),
)


def said(engine: LLMEngine, prompts: list[list[int]]) -> list[list[int]]:
    """Return the answers' token ids."""
    return [output.outputs[0].token_ids for output in engine.generate(prompts, GREEDY)]


def test_the_memory_holds_one_vector_per_token_and_layer(made):
    """4 heads of 12 and 6 numbers would be 72 per token; the latent vector and its rotated part are 12 + 4."""
    model, _ = load_huggingface(made("deepseek_v3").folder)
    engine = LLMEngine(model, config=SHORT)
    tensors = engine.model_runner.kv_cache_tensors
    assert [list(tensor.shape) for tensor in tensors] == [[16, 4 * (12 + 4)]] * 3
    kv_cache, _ = engine.model_runner.layers[0]
    assert isinstance(kv_cache, PagedKVCache)
    assert kv_cache.k_cache.data_ptr() == kv_cache.v_cache.data_ptr()


class Shape:
    """The sizes of a layer, with matrices of random numbers."""

    layer_idx, kv_lora_rank, qk_nope_head_dim, v_head_dim, qk_rope_head_dim = 3, 12, 8, 6, 4

    def __init__(self, *, bias: bool = False) -> None:
        torch.manual_seed(5)
        self.kv_b_proj = torch.nn.Linear(12, 2 * (8 + 6), bias=bias, dtype=torch.float64)


def test_matrices_on_the_queries_side_give_what_keys_and_values_of_each_head_give():
    """7 tokens, 2 heads: the vectors made keys and values, as the paper's equations have it, and attended to."""
    shape, scale = Shape(), 12**-0.5
    latent, rotated = torch.randn(1, 1, 7, 12).double(), torch.randn(1, 1, 7, 4).double()
    query = torch.randn(7, 2, 12).double()
    up = shape.kv_b_proj.weight.view(2, 14, 12)
    plain = torch.einsum("tr,hkr->thk", latent[0, 0], up[:, :8])
    keys = torch.cat((plain, rotated[0, 0, :, None].expand(-1, 2, -1)), dim=-1)
    values = torch.einsum("tr,hvr->thv", latent[0, 0], up[:, 8:])
    scores = torch.einsum("qhd,khd->hqk", query, keys) * scale
    weights = scores.masked_fill(torch.ones(7, 7).triu(1).bool(), -torch.inf).softmax(-1)
    right = torch.einsum("hqk,khd->qhd", weights, values)

    latents = Latents()
    assert latents.update(latent, rotated, 3) == (latent, rotated)
    found = attend_to_latents(shape, query, latents, NoCache(), AttentionOptions(scale=scale))
    torch.testing.assert_close(found, right, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("layer", "bias"), [(None, False), (2, False), (3, True)])
def test_a_layer_that_keeps_its_vectors_in_another_way_is_refused(layer, bias):
    latents = Latents()
    if layer is not None:
        latents.update(torch.zeros(1, 1, 7, 12), torch.zeros(1, 1, 7, 4), layer)
    with pytest.raises(ConfigError, match="layer 3 of Shape keeps its latent vectors in a way unknown here"):
        attend_to_latents(Shape(bias=bias), torch.zeros(7, 2, 12), latents, NoCache(), AttentionOptions())

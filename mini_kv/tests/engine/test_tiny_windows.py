"""The small model with windows through the whole engine: three groups in one pool, and the words of no cache."""

from dataclasses import replace
from functools import cache

import pytest
import torch

from mini_kv import LLM
from mini_kv.core.kv_cache_interface import FullAttentionSpec, SlidingWindowSpec
from mini_kv.core.sched.config import SchedulerConfig
from mini_kv.engine.checkpoint import load_model, tiny_folder
from mini_kv.engine.config import EngineConfig
from mini_kv.engine.contiguous import ContiguousCache, generate_alone
from mini_kv.engine.drafts import SpeculativeConfig
from mini_kv.engine.llm_engine import LLMEngine
from mini_kv.engine.sampling import SamplingParams
from mini_kv.tests.engine.test_says_the_same import debug_manager

WINDOW = 32
GREEDY = SamplingParams(max_tokens=24, temperature=0, ignore_eos=True)
ROOMY = EngineConfig(block_size=8, num_blocks=1200, debug_poison=True)
CONFIGS = {
    "few blocks": replace(
        ROOMY,
        num_blocks=60,
        scheduler=SchedulerConfig(max_num_batched_tokens=48, max_num_seqs=6, scheduler_reserve_full_isl=False),
    ),
    "drafts": replace(ROOMY, speculative_config=SpeculativeConfig(4, prompt_lookup_min=1, prompt_lookup_max=3)),
}
"""What else an engine may do to layers with windows is in test_says_the_same and test_tiered_engine."""


@cache
def exact():
    """Return model and tokenizer, in float64: no two tokens are about as likely."""
    return load_model(tiny_folder(windows=True), torch.float64)


@cache
def prompts() -> tuple[tuple[int, ...], ...]:
    """Return twenty: five pages, of which each comes four times and longer every time; up to three windows long."""
    text = (tiny_folder(windows=True) / "held_out.txt").read_text(encoding="utf-8")
    token_ids = exact()[1].encode(text)
    pages = [token_ids[start : start + 100] for start in range(0, 500, 100)]
    return tuple(tuple(page[:length]) for length in (20, 45, 70, 96) for page in pages)


@cache
def right() -> tuple[tuple[int, ...], ...]:
    """Return what the model says if nothing but one contiguous cache per prompt is there."""
    model, _ = exact()
    return tuple(
        tuple(generate_alone(model, list(prompt), 24, ContiguousCache(model, len(prompt) + 24))) for prompt in prompts()
    )


def said(llm: LLMEngine) -> tuple[tuple[int, ...], ...]:
    outputs = llm.generate([list(prompt) for prompt in prompts()], GREEDY)
    return tuple(tuple(output.outputs[0].token_ids) for output in outputs)


def engine(config: EngineConfig) -> LLMEngine:
    model, tokenizer = exact()
    return LLMEngine(model, tokenizer, config, make_manager=debug_manager)


def test_each_of_its_layers_is_a_group_over_one_pool():
    """A group has as many layers as the rarest kind: one, the layer that sees all."""
    groups = engine(ROOMY).kv_cache_manager.kv_cache_config.kv_cache_groups
    assert [(type(group.kv_cache_spec), group.layer_names) for group in groups] == [
        (SlidingWindowSpec, ("layers.0",)),
        (SlidingWindowSpec, ("layers.1",)),
        (FullAttentionSpec, ("layers.2",)),
    ]


@pytest.mark.slow
@pytest.mark.parametrize("name", CONFIGS)
def test_the_words_are_those_of_no_sharing(name):
    llm = engine(CONFIGS[name])
    assert said(llm) == right()
    assert llm.kv_cache_manager.usage == 0.0
    if name == "few blocks":
        assert llm.scheduler.num_preemptions > 0
    if name == "drafts":
        assert llm.stats.num_accepted_tokens > 0


def test_a_layer_with_a_window_gives_back_what_it_has_passed():
    """While it writes, a text of 120 tokens holds 15 blocks where all is seen, and 5 per layer with a window of 32."""
    llm = engine(ROOMY)
    held = []
    for _ in llm.stream([list(prompts()[-1])], GREEDY):
        tables = llm.kv_cache_manager.get_block_ids("0")
        held.append([sum(block_id != 0 for block_id in table) for table in tables])
        if len(held) == 23:
            break
    assert held[-1] == [5, 5, 15]


def test_one_line_lets_it_speak():
    (output,) = LLM(tiny_folder(windows=True)).generate("A block is free when", GREEDY)
    model, tokenizer = load_model(tiny_folder(windows=True))
    right = generate_alone(model, tokenizer.encode("A block is free when"), 24)
    assert output.outputs[0].token_ids == right and output.outputs[0].text == tokenizer.decode(right)

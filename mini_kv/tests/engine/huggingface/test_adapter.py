"""A model of transformers with its past elsewhere says what it says by itself."""

import shutil
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from mini_kv.core.errors import ConfigError
from mini_kv.core.kv_cache_interface import (
    AttentionSpec,
    FullAttentionSpec,
    KVCacheSpec,
    MambaSpec,
    MLAAttentionSpec,
    SlidingWindowSpec,
)
from mini_kv.engine.fingerprint import model_fingerprint, weights_epoch
from mini_kv.engine.hf.hf_checkpoint import load_huggingface
from mini_kv.engine.hf.hf_model import INTERFACE, SUPPORTED, HuggingFaceModel, owning_layer
from mini_kv.engine.llm_engine import LLMEngine
from mini_kv.tests.engine.huggingface import checkpoints
from mini_kv.tests.engine.huggingface.dense import DensePast, answer

FULL = FullAttentionSpec(4, num_kv_heads=2, head_size=8)
WINDOW = SlidingWindowSpec(4, num_kv_heads=2, head_size=8, sliding_window=checkpoints.WINDOW)
LATENT = MLAAttentionSpec(4, num_kv_heads=1, head_size=12 + 4)
STATE = MambaSpec(4, shapes=((4, 8, 8),), dtypes_bytes=(4,))
EXPECTED_LAYERS: dict[str, list[KVCacheSpec]] = {
    "llama": [FULL, FULL, FULL],
    "qwen2": [FULL, WINDOW, WINDOW],
    "qwen3": [FULL, FULL, FULL],
    "mistral": [WINDOW, WINDOW, WINDOW],
    "gemma": [FULL, FULL, FULL],
    "gemma2": [WINDOW, FULL, WINDOW],
    "gemma3_text": [WINDOW, FULL, WINDOW],
    "gemma3": [WINDOW, FULL, WINDOW],
    "gpt_oss": [WINDOW, FULL, WINDOW],
    "mixtral": [WINDOW, WINDOW, WINDOW],
    "qwen3_moe": [FULL, FULL, FULL],
    "olmo2": [FULL, FULL, FULL],
    "smollm3": [FULL, FULL, FULL],
    "phi3": [WINDOW, WINDOW, WINDOW],
    "gpt2": [replace(FULL, num_kv_heads=4)] * 3,
    "deepseek_v2": [LATENT, LATENT, LATENT],
    "deepseek_v3": [LATENT, LATENT, LATENT],
    "minimax": [STATE, replace(FULL, num_kv_heads=4), STATE],
    "gemma3n_text": [WINDOW, FULL, WINDOW],  # and two that share the last of each kind
}


def load(checkpoint):
    return load_huggingface(checkpoint.folder, dtype=checkpoint.dtype)[0]


def test_every_architecture_that_we_name_has_a_checkpoint_here():
    assert tuple(checkpoints.ARCHITECTURES) == SUPPORTED


@pytest.mark.slow
@pytest.mark.parametrize("name", SUPPORTED)
def test_answers_on_a_dense_past_are_those_of_transformers(name, made):
    checkpoint = made(name)
    model = load(checkpoint)
    answers = [answer(model, prompt, checkpoints.NUM_NEW_TOKENS) for prompt in checkpoint.prompts[-4:]]
    assert answers == checkpoint.answers[-4:]


@pytest.mark.slow
@pytest.mark.parametrize("name", SUPPORTED)
def test_the_answers_to_compare_with_are_clear_and_of_many_kinds(name, made):
    checkpoint = made(name)
    assert checkpoint.smallest_gap > checkpoints.SMALLEST_GAP
    assert len({tuple(tokens) for tokens in checkpoint.answers}) >= 18


@pytest.mark.parametrize("name", SUPPORTED)
def test_each_layer_says_how_much_it_keeps(name, made):
    checkpoint = made(name)
    specs = load(checkpoint).get_kv_cache_spec(block_size=4)
    assert list(specs) == ["layers.0", "layers.1", "layers.2"]
    width = checkpoint.dtype.itemsize
    expected = [
        replace(spec, dtype_bytes=width) if isinstance(spec, AttentionSpec) else spec for spec in EXPECTED_LAYERS[name]
    ]
    assert list(specs.values()) == expected


def test_layers_that_share_keys_and_values_have_no_memory_of_their_own(made):
    """Five layers look back; the fourth reads what the third has kept, the fifth what the second has."""

    class Called(DensePast):
        def __call__(self, layer, *args):
            calls.append(layer)
            return super().__call__(layer, *args)

    calls: list[int] = []
    model, tokens = load(made("gemma3n_text")), torch.arange(3)
    model.forward(tokens, tokens, Called(), tokens)
    assert calls == [0, 1, 2, 2, 1]
    assert len(LLMEngine(model).model_runner.layers) == 3


def test_layers_that_share_need_a_transformers_that_hands_the_keys_on():
    """The config of 5.17 does not say which layers keep what they share."""
    old = SimpleNamespace(is_kv_shared_layer=True, layer_idx=3, config=SimpleNamespace(num_kv_shared_layers=2))
    with pytest.raises(ConfigError, match="its layers share keys and values, which needs a newer transformers"):
        owning_layer(old)


@pytest.mark.parametrize(
    ("name", "forgotten"),
    [
        ("mistral", "sliding_window"),
        ("gemma2", "logits_soft_cap"),
        ("gemma3_text", "sliding_window"),
        ("gemma3_text", "scale"),
        ("gpt_oss", "sinks"),
    ],
)
def test_every_option_that_a_layer_sends_is_needed_for_the_right_words(name, forgotten, made):
    class Forgetful(DensePast):
        def __call__(self, layer, query, key, value, options):
            assert getattr(options, forgotten) is not None or layer == 1
            return super().__call__(layer, query, key, value, replace(options, **{forgotten: None}))

    checkpoint = made(name)
    model, prompts = load(checkpoint), checkpoint.prompts[-4:]
    answers = [answer(model, prompt, checkpoints.NUM_NEW_TOKENS, Forgetful()) for prompt in prompts]
    assert answers != checkpoint.answers[-4:]


def test_a_prompt_in_pieces_is_the_prompt(made):
    checkpoint = made("gemma3_text")
    model, prompt = load(checkpoint), torch.tensor(checkpoint.prompts[-1])
    whole = model.forward(prompt, torch.arange(37), DensePast(), torch.arange(37))
    past = DensePast()
    pieces = [
        model.forward(prompt[start:end], torch.arange(start, end), past, torch.arange(end - start))
        for start, end in [(0, 1), (1, 11), (11, 12), (12, 37)]
    ]
    torch.testing.assert_close(torch.cat(pieces), whole, rtol=1e-5, atol=1e-5)  # norms are in float32


def test_requests_packed_into_one_row_do_not_see_each_other(made):
    # request    a a a a a b b b ... b        their places:  0 1 2 3 4 0 1 2 ... 13
    class TwoPasts:
        def __init__(self):
            self.first, self.second = DensePast(), DensePast()

        def __call__(self, layer, query, key, value, options):
            first = self.first(layer, query[:5], key[:5], value[:5], options)
            return torch.cat((first, self.second(layer, query[5:], key[5:], value[5:], options)))

    checkpoint = made("qwen2")
    model, (a, b) = load(checkpoint), (torch.tensor(checkpoint.prompts[i]) for i in (0, 4))
    positions = torch.cat((torch.arange(5), torch.arange(14)))
    together = model.forward(torch.cat((a, b)), positions, TwoPasts(), torch.tensor([4, 18]))
    assert together.argmax(dim=-1).tolist() == [checkpoint.answers[0][0], checkpoint.answers[4][0]]


def test_only_the_tokens_asked_for_get_logits(made):
    model = load(made("llama"))
    tokens = torch.arange(6)
    everything = model.forward(tokens, tokens, DensePast(), tokens)
    asked = model.forward(tokens, tokens, DensePast(), torch.tensor([5, 2]))
    assert (everything.shape, asked.shape) == ((6, 96), (2, 96))
    torch.testing.assert_close(asked, everything[[5, 2]])
    assert model.forward(tokens, tokens, DensePast(), torch.tensor([], dtype=torch.int64)).shape == (0, 96)


def test_the_model_says_what_it_is(made, tmp_path):
    model = load(made("llama"))
    assert (model.vocab_size, model.dtype, model.device.type, model.eos_token_ids) == (96, torch.float64, "cpu", ())
    assert model.max_position_embeddings == 64
    checkpoints.save("llama", tmp_path, eos_token_id=[7, 9])
    assert load_huggingface(tmp_path)[0].eos_token_ids == (7, 9)


def test_fingerprint_and_epoch_are_those_of_the_checkpoint_wherever_it_lies(made, tmp_path):
    """A copy in another folder is the same model; a weight, a setting or the dtype makes it another."""
    here, there = made("llama").folder, tmp_path / "copy"
    shutil.copytree(here, there)
    model, copy = (load_huggingface(folder, dtype=torch.float64)[0] for folder in (here, there))
    assert (model_fingerprint(model), weights_epoch(model)) == (model_fingerprint(copy), weights_epoch(copy))
    others = [load_huggingface(here, dtype=torch.float32)[0], load(made("qwen2"))]
    assert len({model_fingerprint(each) for each in (model, *others)}) == 3
    next(weights for _, weights in copy.named_parameters())[0, 0] += 1
    assert weights_epoch(model) != weights_epoch(copy)


def test_two_models_do_not_disturb_each_other_nor_a_third_that_is_not_ours(made):
    names = ["mistral", "gemma2"]
    ours = [load(made(name)) for name in names]
    load(made("mistral"))  # registers once more, and goes
    untouched = [checkpoints.load_reference(made(name).folder) for name in names]
    assert [model.config._attn_implementation for model in untouched] == ["sdpa", "eager"]
    for name, mine, theirs in zip(names, ours, untouched, strict=True):
        prompt, right = made(name).prompts[-1], made(name).answers[-1]
        assert answer(mine, prompt, checkpoints.NUM_NEW_TOKENS) == right
        batch = torch.tensor([prompt])
        tokens = theirs.generate(batch, attention_mask=torch.ones_like(batch), max_new_tokens=8, do_sample=False)
        assert tokens[0, len(prompt) :].tolist() == right


def test_a_model_that_also_reads_pictures_keeps_its_own_attention_for_them(made):
    theirs = checkpoints.load_reference(made("gemma3").folder)
    HuggingFaceModel(theirs)
    assert theirs.config.text_config._attn_implementation == INTERFACE
    assert theirs.config.vision_config._attn_implementation == "sdpa"


def test_registering_adds_one_name_and_changes_no_other(made):
    from transformers import AttentionInterface

    load(made("llama"))
    before = {name: AttentionInterface()[name] for name in AttentionInterface().valid_keys()}
    load(made("llama"))
    after = {name: AttentionInterface()[name] for name in AttentionInterface().valid_keys()}
    assert before == after
    assert INTERFACE in after


def test_a_model_that_is_ours_refuses_to_generate_by_itself(made):
    theirs = checkpoints.load_reference(made("llama").folder)
    HuggingFaceModel(theirs)
    with pytest.raises(ConfigError, match="belongs to mini_kv"):
        theirs.generate(torch.tensor([[1, 2]]), attention_mask=torch.ones(1, 2), max_new_tokens=2)


def test_the_attend_of_one_forward_is_forgotten_by_the_next(made):
    model, tokens = load(made("llama")), torch.arange(3)
    first, second = DensePast(), DensePast()
    model.forward(tokens, tokens, first, tokens)
    model.forward(tokens, tokens, second, tokens)
    assert [len(first.keys[layer]) for layer in range(3)] == [3, 3, 3]
    assert [len(second.keys[layer]) for layer in range(3)] == [3, 3, 3]


class LooksBackAtNothing(torch.nn.Module):
    """An attention layer that hands on what came in."""

    def forward(self, hidden_states, **_):
        return hidden_states, None


def test_a_layer_that_keeps_something_else_is_found_out(made):
    theirs = checkpoints.load_reference(made("llama").folder)
    theirs.model.layers[1].self_attn = LooksBackAtNothing()
    with pytest.raises(ConfigError, match=r"3 layers, and \[0, 2\] used attention"):
        HuggingFaceModel(theirs)

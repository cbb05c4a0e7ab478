"""A model's folder: what is written is read again, `transformers` reads it too, and what is wrong with it is named."""

import dataclasses
import importlib.util
import json
import re
import shutil
from pathlib import Path

import pytest
import torch

from mini_kv.dev.training.train import Pieces
from mini_kv.engine.checkpoint import load_config, load_model, save_model, tiny_folder
from mini_kv.engine.errors import CheckpointError
from mini_kv.engine.model import ModelConfig, TinyLlama
from mini_kv.engine.tokenizer import Tokenizer

needs_transformers = pytest.mark.skipif(
    importlib.util.find_spec("transformers") is None,
    reason="comparing with Hugging Face's Llama needs transformers: pip install transformers",
)

SMALL = ModelConfig(
    vocab_size=1024,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,  # not hidden_size / num_attention_heads
    rope_theta=500.0,
    rms_norm_eps=1e-3,
)


@pytest.fixture
def folder(tmp_path):
    """A random model's, with the small model's tokenizer."""
    torch.manual_seed(0)
    tokenizer_json = (tiny_folder() / "tokenizer.json").read_text(encoding="utf-8")
    save_model(tmp_path / "model", TinyLlama(SMALL), tokenizer_json, torch.float32, eos_token_id=0)
    return tmp_path / "model"


def edit_config(folder: Path, **settings: object) -> None:
    path = folder / "config.json"
    data = json.loads(path.read_text(encoding="utf-8")) | settings
    path.write_text(json.dumps({key: value for key, value in data.items() if value != "delete"}), encoding="utf-8")


def all_logits(model: TinyLlama, ids: list[int]) -> torch.Tensor:
    everywhere = torch.arange(len(ids))
    return model.forward(torch.tensor(ids), everywhere, Pieces(len(ids)), everywhere)


class TestWhatIsWrittenIsRead:
    def test_the_same_sizes_and_weights(self, folder):
        torch.manual_seed(0)
        original = TinyLlama(SMALL)
        model, tokenizer = load_model(folder)
        assert model.config == SMALL
        assert tokenizer.eos_token_id == 0
        assert model.state_dict().keys() == original.state_dict().keys()
        for name, weight in original.state_dict().items():
            assert torch.equal(model.state_dict()[name], weight), name

    @pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
    def test_the_caller_says_what_to_compute_in(self, folder, dtype):
        model, _ = load_model(folder, dtype)
        assert {weight.dtype for weight in model.parameters()} == {dtype}

    def test_a_loaded_model_is_not_trained(self, folder):
        model, _ = load_model(folder)
        assert not any(weight.requires_grad for weight in model.parameters())

    def test_before_transformers_5_the_base_of_the_rotation_stood_alone(self, folder):
        edit_config(folder, rope_parameters="delete", rope_theta=77.0)
        assert load_config(folder).rope_theta == 77.0

    def test_windows_make_it_a_ministral(self, folder, tmp_path):
        windowed = dataclasses.replace(SMALL, sliding_window=4, window_layers=(1,))
        tokenizer_json = (folder / "tokenizer.json").read_text(encoding="utf-8")
        save_model(tmp_path / "windows", TinyLlama(windowed), tokenizer_json, torch.float32, eos_token_id=0)
        written = json.loads((tmp_path / "windows" / "config.json").read_text(encoding="utf-8"))
        told = ("architectures", "model_type", "sliding_window", "layer_types")
        assert [written[key] for key in told] == [
            ["MistralForCausalLM"],
            "ministral",
            4,
            ["full_attention", "sliding_attention"],
        ]
        assert load_config(tmp_path / "windows") == windowed
        edit_config(tmp_path / "windows", layer_types="delete", architectures=["MinistralForCausalLM"])
        assert load_config(tmp_path / "windows").window_layers == (0, 1)  # as transformers has it
        edit_config(tmp_path / "windows", sliding_window=None)
        assert load_config(tmp_path / "windows").window_layers == ()


@needs_transformers
class TestTransformersReadsIt:
    @pytest.fixture(params=["random", "tiny", "tiny_windows"])
    def some_folder(self, request, folder):
        return folder if request.param == "random" else tiny_folder(windows=request.param == "tiny_windows")

    def test_the_same_logits(self, some_folder):
        import transformers

        theirs = transformers.AutoModelForCausalLM.from_pretrained(some_folder, dtype=torch.float64).eval()
        ours, tokenizer = load_model(some_folder, torch.float64)
        ids = tokenizer.encode(
            "A block that no request holds can be hit until its memory is needed for another block. " * 3
        )
        with torch.no_grad():
            expected = theirs(torch.tensor([ids])).logits[0]
        # Not closer: their norms and rotations are rounded to float32, whatever the model computes in.
        torch.testing.assert_close(all_logits(ours, ids), expected, rtol=0, atol=1e-5)

    def test_what_transformers_writes_is_read_here(self, folder, tmp_path):
        import transformers

        transformers.LlamaForCausalLM.from_pretrained(folder).save_pretrained(tmp_path / "theirs")
        shutil.copy(folder / "tokenizer.json", tmp_path / "theirs")
        model, _ = load_model(tmp_path / "theirs")
        assert model.config == SMALL
        assert torch.equal(model.model.norm.weight, load_model(folder)[0].model.norm.weight)


class TestErrors:
    """What a hostile folder may hold is in test_hostile_checkpoint: damaged files, tensors that are too many or odd."""

    @pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
    def test_a_missing_file(self, folder, name):
        (folder / name).unlink()
        with pytest.raises(CheckpointError, match=rf"{re.escape(str(folder / name))}: there is no such file"):
            load_model(folder)

    def test_a_vocabulary_larger_than_the_model_s(self, folder):
        edit_config(folder, vocab_size=1000)
        message = "tokenizer.json: has 1024 tokens, and the model has embeddings for 1000"
        with pytest.raises(CheckpointError, match=re.escape(message)):
            load_model(folder)

    @pytest.mark.parametrize(
        ("settings", "message"),
        [
            ({"architectures": ["MambaForCausalLM"]}, "architectures is ['MambaForCausalLM'], and only ['LlamaFor"),
            ({"model_type": "qwen3"}, "model_type is 'qwen3', and only 'llama', 'ministral' are supported"),
            ({"hidden_act": "gelu"}, "hidden_act is 'gelu', and only 'silu' is supported"),
            ({"attention_bias": True}, "attention_bias is True, and only False is supported"),
            ({"tie_word_embeddings": "delete"}, "tie_word_embeddings is False, and only True is supported"),
            ({"rope_parameters": {"rope_type": "llama3"}}, "rope_type is 'llama3', and only 'default'"),
            ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "rope_parameters is {'partial_rotary_factor': 0.5}"),
            ({"rope_parameters": "delete", "rope_scaling": {"type": "linear", "factor": 2}}, "rope_type is 'linear'"),
            ({"hidden_size": "delete"}, "hidden_size is None, it must be a whole number"),
            ({"num_hidden_layers": "two"}, "num_hidden_layers is 'two', it must be a whole number"),
            ({"rms_norm_eps": "small"}, "rms_norm_eps is 'small', it must be a number above 0"),
            ({"num_key_value_heads": 3}, "num_attention_heads is 4, it must be a multiple of num_key_value_heads, 3"),
            ({"head_dim": 15}, "head_dim is 15, it must be even"),
        ],
    )
    def test_a_setting_that_this_model_cannot_have(self, folder, settings, message):
        edit_config(folder, **settings)
        with pytest.raises(CheckpointError, match=re.escape(f"config.json: {message}")):
            load_model(folder)


def test_a_path_may_be_a_text() -> None:
    folder = tiny_folder()
    assert load_config(str(folder)) == load_config(folder)
    assert Tokenizer.from_file(str(folder / "tokenizer.json")).encode("a") == load_model(str(folder))[1].encode("a")

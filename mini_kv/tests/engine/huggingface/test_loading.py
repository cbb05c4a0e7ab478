"""A checkpoint that does not work is refused, and the message names the guilty file, setting or tensor."""

import importlib.util
import json
import logging
import os
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from mini_kv.core.errors import ConfigError
from mini_kv.engine.errors import CheckpointError
from mini_kv.engine.hf.hf_checkpoint import load_huggingface
from mini_kv.engine.hf.hf_model import SUPPORTED
from mini_kv.tests.engine.huggingface import checkpoints

UP = "model.layers.1.mlp.up_proj.weight"


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    checkpoints.save("llama", folder)
    return folder


@pytest.fixture
def folder(whole, tmp_path):
    """A checkpoint to break."""
    return shutil.copytree(whole, tmp_path / "llama")


def refusal(folder):
    """Return what is said about the checkpoint, as a reader sees it: the path, then the rest."""
    with pytest.raises(CheckpointError) as caught:
        load_huggingface(folder)
    return caught.value.path.name, str(caught.value).removeprefix(f"{caught.value.path}: ")


def change_config(folder, **changes):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def change_weights(folder, change):
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


@pytest.mark.slow
def test_a_whole_checkpoint_is_loaded_in_its_own_dtype_and_without_a_tokenizer(folder):
    model, tokenizer = load_huggingface(folder)
    assert (model.dtype, tokenizer) == (torch.float32, None)
    assert load_huggingface(str(folder), dtype=torch.bfloat16)[0].dtype == torch.bfloat16


@pytest.mark.slow
def test_a_setting_that_is_null_has_its_default(folder):
    change_config(folder, head_dim=None, rope_scaling=None, quantization_config=None)
    load_huggingface(folder)


@pytest.mark.slow
def test_weights_may_lie_in_several_files(tmp_path):
    from transformers import AutoConfig, AutoModelForCausalLM

    model = AutoModelForCausalLM.from_config(AutoConfig.for_model("llama", **checkpoints.SIZES))
    model.save_pretrained(tmp_path, max_shard_size="20KB")
    files = sorted(tmp_path.glob("*.safetensors"))
    assert len(files) > 1
    load_huggingface(tmp_path)
    files[1].unlink()
    assert refusal(tmp_path) == ("model.safetensors.index.json", f"names files that are missing: {files[1].name}")
    (tmp_path / "model.safetensors.index.json").write_text("{}")
    assert refusal(tmp_path) == ("model.safetensors.index.json", "has no weight_map")


@pytest.mark.slow
def test_a_missing_tensor_is_named_where_transformers_would_make_one_up(folder):
    change_weights(folder, lambda weights: weights.pop(UP))
    assert refusal(folder) == ("model.safetensors", f"does not fit config.json: tensors missing (1): {UP}")


def test_a_tensor_of_a_wrong_shape_is_named_with_both_shapes(folder):
    change_weights(folder, lambda weights: weights.update({UP: torch.zeros(48, 31)}))
    said = f"does not fit config.json: tensors of a wrong shape (1): {UP} is [48, 31], must be [48, 32]"
    assert refusal(folder) == ("model.safetensors", said)


def test_a_tensor_that_the_model_does_not_have_is_named_where_transformers_would_ignore_it(folder):
    change_weights(folder, lambda weights: weights.update({"model.layers.7.mlp.up_proj.weight": torch.zeros(2)}))
    said = "does not fit config.json: tensors unknown to LlamaForCausalLM (1): model.layers.7.mlp.up_proj.weight"
    assert refusal(folder) == ("model.safetensors", said)


def test_of_many_tensors_the_first_are_named(folder):
    change_config(folder, num_hidden_layers=4)
    file, said = refusal(folder)
    assert file == "model.safetensors"
    assert said.startswith("does not fit config.json: tensors missing (9): model.layers.3.input_layernorm.weight, ")
    assert said.endswith(", ...")


@pytest.mark.parametrize("content", [b"", b"not safetensors at all", None])
def test_a_damaged_file_of_weights_is_named(content, folder):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100] if content is None else content)
    file, said = refusal(folder)
    assert (file, said.split(":")[0]) == ("model.safetensors", "is damaged")


@pytest.mark.parametrize(
    "name", ["../model.safetensors", "/etc/passwd", "sub/model.safetensors", "..", "", "a\0b", "pytorch_model.bin", 7]
)
def test_an_index_names_files_of_its_own_folder_only(name, folder):
    (folder.parent / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes())
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {UP: name}}))
    said = f"names what is not a .safetensors file in this folder: {str(name)!r}"
    assert refusal(folder) == ("model.safetensors.index.json", said)


def test_a_weight_that_is_no_number_is_named(folder):
    change_weights(folder, lambda weights: weights[UP].fill_(float("nan")))
    said = f"{UP} holds nan in torch.float32, so every answer would be NaN"
    assert refusal(folder) == ("model.safetensors", said)


@pytest.mark.parametrize(("dtype", "name"), [(torch.int8, "I8"), (torch.float8_e4m3fn, "F8_E4M3")])
def test_weights_that_mean_nothing_without_their_scales_are_named(dtype, name, folder):
    change_weights(folder, lambda weights: weights.update({UP: weights[UP].to(dtype)}))
    said = f"{UP} holds {name}, and weights are floating-point numbers: F64, F32, F16, BF16"
    assert refusal(folder) == ("model.safetensors", said)


def test_an_angle_that_is_no_number_is_found_although_it_is_no_weight(folder):
    change_config(folder, rope_parameters={"rope_type": "linear", "factor": 1e-320, "rope_theta": 1e4})
    file, said = refusal(folder)
    assert file == "model.safetensors" and said.startswith("model.rotary_emb.inv_freq holds inf in torch.float32")


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("config.json", "[" * 100_000, "is not JSON that can be read: brackets are nested more than 64 deep"),
        ("generation_config.json", "[]", "is not an object with settings, but list"),
        ("generation_config.json", '{"a": 1, "a": 2}', "is not JSON that can be read: an object has the key 'a' twice"),
        ("tokenizer_config.json", "{", "is not JSON: Expecting property name enclosed in double quotes: line 1"),
        ("special_tokens_map.json", '{"a": NaN}', "is not JSON that can be read: NaN is not a number of JSON"),
        ("tokenizer.json", "[" * 100_000, "is not JSON that can be read: brackets are nested more than 64 deep"),
    ],
)
def test_every_file_with_settings_is_looked_through_first(name, content, said, folder):
    (folder / name).write_text(content)
    file, found = refusal(folder)
    assert (file, found[: len(said)]) == (name, said)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "vocab.json", "chat_template.jinja", "any.thing"])
def test_a_pipe_that_would_be_read_for_ever_is_refused(name, folder):
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name)
    assert refusal(folder) == (name, "is not a regular file")


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "vocab.json", "merges.txt"])
def test_a_file_of_a_terabyte_is_not_read(name, folder):
    with (folder / name).open("ab") as file:
        file.truncate(1 << 40)
    file, said = refusal(folder)
    assert (file, said.split(",")[0]) == (name, "has 1")
    assert "099,511,627,776 bytes, and a file of its kind has at most" in said


def test_tokens_that_end_a_text_are_whole_numbers(folder):
    path = folder / "generation_config.json"
    path.write_text(json.dumps({"eos_token_id": [1, "2"]}))
    assert refusal(folder) == ("llama", "eos_token_id is '2', it must be a whole number, or a list of them")


def test_a_folder_without_weights_is_refused_and_a_pickle_is_not_opened(folder):
    (folder / "model.safetensors").unlink()
    said = "has no weights: neither model.safetensors nor model.safetensors.index.json."
    assert refusal(folder) == ("llama", said)
    (folder / "pytorch_model.bin").write_bytes(b"whatever")
    pickled = " pytorch_model.bin is pickled, which may run any code, so it is not read."
    assert refusal(folder) == ("llama", said + pickled)


def test_nothing_is_downloaded(tmp_path):
    assert refusal(tmp_path / "meta-llama" / "Llama-3.2-1B") == (
        "Llama-3.2-1B",
        "is not a folder on this machine; mini_kv downloads nothing",
    )


def test_a_missing_or_broken_config_is_named(folder):
    path = folder / "config.json"
    path.write_text("[]")
    assert refusal(folder) == ("config.json", "is not an object with settings, but list")
    path.write_text('{"model_type": ')
    assert refusal(folder) == ("config.json", "is not JSON: Expecting value: line 1 column 16 (char 15)")
    path.unlink()
    assert refusal(folder) == ("config.json", "there is no such file, and the model's sizes are read from it")


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({"model_type": "mamba2", "state_size": 16}, "a state-space or linear-attention layer keeps a running state"),
        (
            {"model_type": "qwen3_next", "layer_types": ["linear_attention", "full_attention"]},
            "a state-space or linear-attention layer keeps a running state",
        ),
        ({"model_type": "t5", "is_encoder_decoder": True}, "cross attention reads an encoder's keys"),
        ({"model_type": "mllama_text_model", "cross_attention_layers": [1]}, "cross attention reads an encoder's keys"),
        ({"model_type": "llama4_text", "attention_chunk_size": 8}, "a layer with chunked attention declares it"),
        ({"model_type": "bloom", "alibi": True}, "ALiBi adds a number to each score by the distance"),
        ({"model_type": "granite"}, ""),
        ({"model_type": None}, ""),
    ],
)
def test_an_architecture_that_does_not_work_is_named_with_those_that_do(config, why, folder):
    change_config(folder, **config)
    file, said = refusal(folder)
    assert file == "config.json"
    assert said.startswith(f"model_type {config['model_type']!r} is not supported{': ' if why else '. '}{why}")
    assert ("With --untested (LLM: untested=True) it is tried" in said) == (not why)
    assert said.endswith(f"Those that work: {', '.join(SUPPORTED)}")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"num_attention_heads": 0}, "num_attention_heads is 0, it must be a whole number from 1 on"),
        ({"hidden_size": "32"}, "hidden_size is '32', it must be a whole number from 1 on"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantised weights (gptq) are not supported"),
        ({"rope_parameters": "none"}, "rope_parameters is 'none', it must be an object"),
        ({"is_causal": False}, "this llama reads in both directions"),
        ({"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}}, "RoPE of the kind 'dynamic'"),
        ({"rope_parameters": None, "rope_scaling": {"type": "longrope"}}, "RoPE of the kind 'longrope'"),
        ({"num_hidden_layers": True}, "num_hidden_layers is True, it must be a whole number from 1 on"),
        (
            {"num_hidden_layers": 10**9},
            "num_hidden_layers is 1000000000, and a model of so few weights has at most 1024",
        ),
        ({"num_labels": 10**9}, "num_labels is 1000000000, and a model of so few weights has at most 1024"),
        ({"vision_config": {"num_hidden_layers": 10**9}}, "num_hidden_layers is 1000000000, and a model of so few"),
        ({"vocab_size": 10**9}, "describes a model of 64,000,023,264 numbers, and the weights are 29,408"),
        ({"intermediate_size": 10**12}, "describes a model of 288,000,"),
        ({"hidden_size": 10**18}, "does not work: "),
        ({"max_position_embeddings": "64"}, "max_position_embeddings is '64', it must be a whole number"),
        (
            {"dtype": "int8"},
            "dtype is 'int8', and weights are computed with in one of float64, float32, float16, bfloat16",
        ),
        ({"dtype": ["float32"]}, "dtype is ['float32'], and weights are computed"),
        ({"rms_norm_eps": "small"}, "does not work: "),
        ({"num_attention_heads": 5}, "does not work: StrictDataclassClassValidationError"),
    ],
)
def test_a_setting_that_cannot_work_is_named(changes, said, folder):
    change_config(folder, **changes)
    file, found = refusal(folder)
    assert (file, found[: len(said)]) == ("config.json", said)


def test_whatever_else_transformers_cannot_do_is_said_in_its_words(folder):
    change_config(folder, hidden_act="shrug")
    assert refusal(folder) == ("config.json", "does not work: KeyError: 'shrug'")


def test_loading_leaves_the_noise_of_transformers_as_loud_as_it_was(folder, capfd):
    from transformers.utils import logging as theirs

    before = (theirs.get_verbosity(), theirs.is_progress_bar_enabled())
    change_weights(folder, lambda weights: weights.pop(UP))
    refusal(folder)
    assert capfd.readouterr() == ("", "")
    assert (theirs.get_verbosity(), theirs.is_progress_bar_enabled()) == before
    assert before[0] <= logging.WARNING


def test_who_has_no_transformers_is_told_which_extra_brings_it(folder, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install -e '.\[hf\]'"):
        load_huggingface(folder)


def test_code_in_the_folder_is_not_run(folder):
    (folder / "modeling_evil.py").write_text("raise SystemExit('ran')")
    change_config(folder, auto_map={"AutoModelForCausalLM": "modeling_evil.Evil", "AutoConfig": "modeling_evil.Evil"})
    load_huggingface(folder)


@pytest.mark.slow
def test_importing_the_adapter_does_not_import_transformers():
    import subprocess
    import sys

    code = "import sys, mini_kv.engine.hf.hf_checkpoint; print('transformers' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"

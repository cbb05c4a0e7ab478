"""A checkpoint made to do harm: no file hangs the loader, makes it allocate, leads it out of the folder, or crashes it.

named       each attack and the sentence that it gets
by chance   a good checkpoint, changed in one place: it loads and writes, or is refused, and neither takes long
"""

import json
import os
import random
import re
import shutil
import struct
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from mini_kv.cli import main
from mini_kv.core.errors import KVCacheError
from mini_kv.dev.training.train_tokenizer import tokenizer_json
from mini_kv.engine.checkpoint import load_model, save_model, tensor_shapes
from mini_kv.engine.config import EngineConfig
from mini_kv.engine.errors import LONGEST, CheckpointError
from mini_kv.engine.llm_engine import LLMEngine
from mini_kv.engine.model import ModelConfig, TinyLlama
from mini_kv.engine.sampling import SamplingParams

SMALL = ModelConfig(260, 16, 24, 2, 4, 2, 4, max_position_embeddings=64)
TOKENIZER = tokenizer_json([(b"c", b"k"), (b"l", b"o"), (b"lo", b"ck")], "<|end|>")
"""Of 260 tokens."""
SECONDS = 5
"""What a refusal may take of the processor, whatever else the machine does meanwhile; it takes a few milliseconds."""
NORM = "model.norm.weight"


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Tensors this small are done before a second thread has woken up."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    """A small random model's folder."""
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("good") / "model"
    save_model(folder, TinyLlama(SMALL), TOKENIZER, torch.float32, eos_token_id=0)
    return folder


@pytest.fixture
def folder(good, tmp_path):
    """A checkpoint to break."""
    return shutil.copytree(good, tmp_path / "model")


def refusal(folder: Path) -> str:
    """Return what is said about the checkpoint after the folder's name; it is one line, and comes at once."""
    began = time.process_time()
    with pytest.raises(CheckpointError) as caught:
        load_model(folder)
    assert time.process_time() - began < SECONDS
    said = str(caught.value)
    assert said.isprintable() and len(said) <= len(str(folder)) + LONGEST + 30
    return said.removeprefix(f"{folder}/")


def edit(folder: Path, **settings: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | settings))


def read_header(folder: Path) -> tuple[dict[str, Any], bytes]:
    """Return the header of the weights as it is written, and the bytes after it."""
    data = (folder / "model.safetensors").read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    return json.loads(data[8 : 8 + size]), data[8 + size :]


def write_header(folder: Path, header: bytes, rest: bytes) -> None:
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + rest)


# Sizes are compared with the header before anything is allocated --------------------------------------------------


LAYER_0, LAYER_2 = "model.layers.0", "model.layers.2.input_layernorm.weight"
EMBEDDING = "model.embed_tokens.weight has the shape [260, 16], and config.json makes it"
QUERIES = f"{LAYER_0}.self_attn.q_proj.weight has the shape [16, 16], and config.json makes it"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_hidden_layers": 10**9}, f"has no tensor {LAYER_2}, and config.json says 1000000"),
        ({"num_hidden_layers": 3}, f"has no tensor {LAYER_2}, and config.json says 3 layers"),
        ({"num_hidden_layers": 1}, "has a tensor for which the model has no place: model.layers.1.input_layernorm"),
        ({"vocab_size": 10**9}, f"{EMBEDDING} [1000000000"),
        ({"hidden_size": 10**9}, f"{EMBEDDING} [260, 10"),
        ({"intermediate_size": 10**9}, f"{LAYER_0}.mlp.gate_proj.weight has the shape [24, 16], and config.json makes"),
        ({"head_dim": 10**9}, QUERIES),
        ({"num_attention_heads": 10**9, "num_key_value_heads": 10**9}, QUERIES),
    ],
)
def test_a_model_that_the_weights_are_not_of_is_refused_before_it_is_made(folder, settings, message):
    edit(folder, **settings)
    assert refusal(folder).startswith(f"model.safetensors: {message}")


@pytest.mark.parametrize(
    "config",
    [SMALL, ModelConfig(7, 6, 5, 3, 4, 1, 2), ModelConfig(9, 8, 10, 1, 2, 2, 6)],
)
def test_the_shapes_that_the_header_is_compared_with_are_the_model_s(config):
    wanted = {name: tuple(tensor.shape) for name, tensor in TinyLlama(config).state_dict().items()}
    assert dict(tensor_shapes(config)) == wanted


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (b"", "is damaged: "),
        (b"{}", "has no tensor model.embed_tokens.weight, and config.json says 2 layers"),
        (b"[" * 100_000, "is damaged: "),
        (b'{"a":{"dtype":"F32","shape":[1000000000000],"data_offsets":[0,4000000000000]}}', "is damaged: "),
        (b'{"a":{"dtype":"F32","shape":[4294967296,4294967296,2],"data_offsets":[0,0]}}', "is damaged: "),
        (b'{"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,0]}}', "is damaged: "),
    ],
)
def test_a_header_that_promises_what_is_not_there(folder, header, message):
    write_header(folder, header, b"")
    assert refusal(folder).startswith(f"model.safetensors: {message}")


def test_a_header_of_an_exabyte(folder):
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", 1 << 60) + b"{}")
    assert refusal(folder).startswith("model.safetensors: is damaged: ")


# Settings ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"hidden_size": 10**4000}, "hidden_size is 1000000000"),
        ({"hidden_size": -1}, "hidden_size is -1, it must be from 1 to 4,294,967,296"),
        ({"head_dim": 0}, "head_dim is 0, it must be from 1 to 4,294,967,296"),
        ({"num_attention_heads": 0}, "num_attention_heads is 0, it must be from 1 to"),
        ({"max_position_embeddings": 0}, "max_position_embeddings is 0, it must be from 1 to"),
        ({"max_position_embeddings": 64.0}, "max_position_embeddings is 64.0, it must be a whole number"),
        ({"vocab_size": [1024] * 100_000}, "vocab_size is [1024, 1024, "),
        ({"vocab_size": True}, "vocab_size is True, it must be a whole number"),
        ({"num_key_value_heads": {}}, "num_key_value_heads is {}, it must be a whole number"),
        ({"rms_norm_eps": 0}, "rms_norm_eps is 0, it must be a number above 0 and at most 1"),
        ({"rms_norm_eps": "nan"}, "rms_norm_eps is 'nan', it must be a number"),
        ({"rms_norm_eps": None}, "rms_norm_eps is None, it must be a number"),
        (
            {"rope_parameters": {"rope_theta": 1e-300}},
            "rope_theta is 1e-300, it must be a number above 1 and at most 1e+12",
        ),
        ({"rope_parameters": {"rope_theta": 10**400}}, "rope_theta is 10000"),
        ({"rope_parameters": {"rope_theta": "inf"}}, "rope_theta is 'inf', it must be a number"),
        ({"rope_parameters": [1]}, "rope_parameters is [1], and only a full rotation is supported"),
        ({"rope_parameters": {"rope_type": ["default"]}}, "rope_type is ['default'], and only 'default'"),
        ({"architectures": {"a": 1}}, "architectures is {'a': 1}, and only ['LlamaForCausalLM'] is supported"),
        ({"hidden_act": "\x1b[2J\nsilu"}, r"hidden_act is '\x1b[2J\nsilu', and only 'silu' is supported"),
        ({"eos_token_id": [0]}, "eos_token_id is [0], and only one token, or null, is supported"),
        ({"eos_token_id": True}, "eos_token_id is True, and only one token, or null, is supported"),
    ],
)
def test_a_setting_that_is_no_such_thing_is_named(folder, settings, message):
    edit(folder, **settings)
    assert refusal(folder).startswith(f"config.json: {message}")


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json"])
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is not JSON: Expecting value"),
        (b"\xff\xfe{}", "is not UTF-8: byte 0 is 0xff"),
        (b'{"a": 1, "a": 2}', "is not JSON that can be read: an object has the key 'a' twice"),
        (b'{"a": NaN}', "is not JSON that can be read: NaN is not a number of JSON"),
        (b'{"a": 1e400}', "is not JSON that can be read: the number 1e400 is too large"),
        (b'{"a":' * 100_000, "is not JSON that can be read: brackets are nested more than 64 deep"),
        (b'{"a":' + b"9" * 5000 + b"}", "is not JSON that can be read: Exceeds the limit (4300 digits)"),
        (b"[]", "is not an object with settings, but list"),
    ],
)
def test_json_that_is_none_or_could_mean_two_things(folder, name, content, message):
    (folder / name).write_bytes(content)
    assert refusal(folder).startswith(f"{name}: {message}")


# Files that are none ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "most"), [("config.json", "1,048,576"), ("tokenizer.json", "67,108,864")])
def test_a_file_of_a_terabyte_is_not_read(folder, name, most):
    """None of it is on the disk."""
    os.truncate(folder / name, 1 << 40)
    assert refusal(folder) == f"{name}: has 1,099,511,627,776 bytes, and a file of its kind has at most {most}"


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_pipe_that_would_be_read_for_ever_or_a_folder(folder, name, make):
    (folder / name).unlink()
    make(folder / name)
    assert refusal(folder) == f"{name}: is not a regular file"


def test_links_out_of_the_folder_are_how_a_cache_is_made(folder, tmp_path):
    """Hugging Face's keeps a file under the digest of its content, and a checkpoint is a folder of links."""
    (tmp_path / "blobs").mkdir()
    for number, path in enumerate(sorted(folder.iterdir())):
        path.rename(tmp_path / "blobs" / str(number))
        path.symlink_to(tmp_path / "blobs" / str(number))
    assert load_model(folder)[0].config == SMALL


def test_a_nul_in_the_folder_s_name():
    with pytest.raises(CheckpointError, match=r"a\?b/config\.json: cannot be read: embedded null byte"):
        load_model(Path("a\0b"))


# Weights ----------------------------------------------------------------------------------------------------------


def change_weights(folder: Path, name: str, tensor: torch.Tensor) -> None:
    path = folder / "model.safetensors"
    save_file(load_file(path) | {name: tensor}, path, metadata={"format": "pt"})


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_weight_that_is_no_number_is_refused_and_named(folder, value):
    weights = torch.ones(16)
    weights[7] = value
    change_weights(folder, NORM, weights)
    said = f"{NORM} holds {value} in torch.float32, so every answer would be NaN"
    assert refusal(folder) == f"model.safetensors: {said}"


def test_a_weight_that_becomes_infinite_in_the_dtype_that_is_asked_for(folder):
    change_weights(folder, NORM, torch.full((16,), 1e30))
    load_model(folder)
    with pytest.raises(CheckpointError, match=f"{NORM} holds inf in torch.float16"):
        load_model(folder, torch.float16)


@pytest.mark.parametrize(
    ("dtype", "name"),
    [
        (torch.int8, "I8"),
        (torch.int64, "I64"),
        (torch.bool, "BOOL"),
        (torch.float8_e4m3fn, "F8_E4M3"),
        (torch.float8_e5m2, "F8_E5M2"),
    ],
)
def test_weights_that_mean_nothing_without_their_scales(folder, dtype, name):
    change_weights(folder, NORM, torch.ones(16).to(dtype))
    said = f"{NORM} holds {name}, and weights are floating-point numbers: F64, F32, F16, BF16"
    assert refusal(folder) == f"model.safetensors: {said}"


def test_a_name_that_a_terminal_would_obey_is_not_passed_on(folder):
    change_weights(folder, "\x1b[2J\n" * 500, torch.ones(1))
    assert refusal(folder).startswith("model.safetensors: has a tensor for which the model has no place: ?[2J ?[2J ")


# What a user sees -------------------------------------------------------------------------------------------------


def test_a_tokenizer_of_fewer_tokens_than_the_model_has_rows_writes_on(tmp_path):
    """Matrices are often padded to a round size; an id that has no token stands for no text."""
    save_model(tmp_path, TinyLlama(replace(SMALL, vocab_size=320)), TOKENIZER, torch.float32, eos_token_id=0)
    model, tokenizer = load_model(tmp_path)
    assert (tokenizer.vocab_size, tokenizer.decode([319])) == (320, "")
    params = SamplingParams(max_tokens=40, temperature=100.0, seed=1, ignore_eos=True)
    (output,) = LLMEngine(model, tokenizer, EngineConfig(block_size=4, num_blocks=40)).generate(["A block"], params)
    assert max(output.outputs[0].token_ids) >= 260


@pytest.mark.parametrize("attack", ["layers", "nan", "pattern", "depth"])
@pytest.mark.slow
def test_the_command_says_it_in_one_line(folder, attack, capsys):
    if attack == "layers":
        edit(folder, num_hidden_layers=10**9)
    elif attack == "nan":
        change_weights(folder, NORM, torch.full((16,), torch.nan))
    elif attack == "depth":
        (folder / "config.json").write_text("[" * 100_000)
    else:
        text = (folder / "tokenizer.json").read_text("utf-8")
        (folder / "tokenizer.json").write_text(re.sub('"Regex": ".*"', '"Regex": "(a+)+$"', text), "utf-8")
    assert main(["generate", "A block", "--model", str(folder)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"mini-kv generate: {folder}/") and captured.err.count("\n") == 1


# By chance --------------------------------------------------------------------------------------------------------

STRANGE: tuple[Any, ...] = (
    *(None, True, 0, -1, 1, 2, 10**9, 10**18, 10**40, 0.5, -1e300),
    *("", "a", "\x00", "nan", [], [1], {}, {"a": 1}),
)


def places(data: Any) -> list[tuple[Any, Any]]:
    """Return every container in parsed JSON with every key or index in it."""
    found: list[tuple[Any, Any]] = []
    waiting = [data]
    while waiting:
        value = waiting.pop()
        keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
        found += [(value, key) for key in keys]
        waiting += [value[key] for key in keys]
    return found


def change_json(data: Any, dice: random.Random) -> str:
    """Return the JSON with one member replaced, left out, renamed or doubled."""
    found = places(data)
    # Half the time near the top: a tokenizer has hundreds of tokens, and one is like the other.
    place, key = dice.choice(found if dice.random() < 0.5 else found[:60])
    action = dice.randrange(4)
    if action == 0:
        del place[key]
    elif action == 1 and isinstance(place, dict):
        place[f"{key}{dice.choice('x ')}"] = place.pop(key)
    elif action == 2:
        place[key] = [place[key], place[key]]
    else:
        place[key] = dice.choice(STRANGE)
    return json.dumps(data)


def change_bytes(data: bytes, dice: random.Random) -> bytes:
    """Return the bytes with one of them changed, cut off at one, or with a part of them doubled."""
    at = dice.randrange(len(data))
    match dice.randrange(3):
        case 0:
            return data[:at] + bytes([dice.randrange(256)]) + data[at + 1 :]
        case 1:
            return data[:at]
        case _:
            return data[:at] + data[max(0, at - dice.randrange(1, 50)) :]


def change_something(folder: Path, dice: random.Random) -> None:
    name = dice.choice(["config.json", "tokenizer.json", "model.safetensors"])
    as_json = dice.random() < 0.6
    if name == "model.safetensors":
        header, rest = read_header(folder)
        good = json.dumps(header).encode()
        write_header(folder, change_json(header, dice).encode() if as_json else change_bytes(good, dice), rest)
    elif as_json:
        (folder / name).write_text(change_json(json.loads((folder / name).read_text("utf-8")), dice), "utf-8")
    else:
        (folder / name).write_bytes(change_bytes((folder / name).read_bytes(), dice))


def outcome(folder: Path) -> str:
    """Load the checkpoint and let it write two tokens; return "works" or the class of the refusal."""
    try:
        model, tokenizer = load_model(folder)
        engine = LLMEngine(model, tokenizer, EngineConfig(block_size=4, num_blocks=20))
        engine.generate(["A block"], SamplingParams(max_tokens=2, temperature=0))
    except KVCacheError as error:
        return type(error).__name__ if str(error).isprintable() else f"{error!r} is no line"
    return "works"


@pytest.mark.slow
def test_a_good_checkpoint_changed_in_one_place_works_or_is_refused(good, tmp_path):
    """300 changes of settings, tokenizer and header."""
    outcomes: dict[str, int] = {}
    slowest = 0.0
    for seed in range(300):
        dice = random.Random(seed)
        folder = shutil.copytree(good, tmp_path / str(seed))
        change_something(folder, dice)
        began = time.process_time()
        said = outcome(folder)
        slowest = max(slowest, time.process_time() - began)
        outcomes[said] = outcomes.get(said, 0) + 1
        shutil.rmtree(folder)
    assert outcomes.keys() <= {"works", "CheckpointError", "PromptError"}
    assert min(outcomes["works"], outcomes["CheckpointError"]) >= 20, outcomes
    assert slowest < SECONDS

"""A model's folder, in the form in which Llama checkpoints are published.

    config.json         sizes, by the names that Hugging Face's `LlamaConfig` gives them
    model.safetensors   weights, by the names of `LlamaForCausalLM`
    tokenizer.json      see `mini_kv.engine.tokenizer`

Whatever is written here, `transformers` reads, and gives the same logits.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mini_kv.engine.errors import CheckpointError, read_json
from mini_kv.engine.model import ModelConfig, TinyLlama
from mini_kv.engine.tokenizer import Tokenizer

CONFIG, WEIGHTS, TOKENIZER = "config.json", "model.safetensors", "tokenizer.json"

_ARCHITECTURE = "LlamaForCausalLM"
_FIXED = {
    "model_type": "llama",
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "tie_word_embeddings": True,
}
"""What `TinyLlama` cannot do otherwise."""
_DEFAULTS = {"hidden_act": "silu", "attention_bias": False, "mlp_bias": False, "tie_word_embeddings": False}
"""What a `config.json` means that does not say. Source: transformers 5.23, `LlamaConfig`."""
_SIZES = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "max_position_embeddings",
)


def tiny_folder() -> Path:
    """Return the folder of the checkpoint that comes with mini_kv."""
    return Path(__file__).parent / "tiny"


def load_model(folder: Path, dtype: torch.dtype = torch.float32) -> tuple[TinyLlama, Tokenizer]:
    """Return a folder's model, ready to be asked, and its tokenizer.

    Args:
        folder: with the three files.
        dtype: to compute in, whatever the weights were stored in: bfloat16 saves space in a file, and is slow on a CPU.

    Raises:
        CheckpointError: names the file, and the setting or the tensor, that is missing, damaged or not supported.
    """
    config = load_config(folder)
    tokenizer = Tokenizer.from_file(folder / TOKENIZER, read_json(folder / CONFIG).get("eos_token_id"))
    if tokenizer.vocab_size > config.vocab_size:
        sizes = f"{tokenizer.vocab_size} tokens, and the model has embeddings for {config.vocab_size}"
        raise CheckpointError(folder / TOKENIZER, f"has {sizes}")
    return load_weights(folder, config, dtype), tokenizer


def load_config(folder: Path) -> ModelConfig:
    """Read a folder's `config.json`."""
    path = folder / CONFIG
    data = read_json(path)
    architectures = data.get("architectures") or [_ARCHITECTURE]
    if architectures != [_ARCHITECTURE]:
        raise CheckpointError(path, f"architectures is {architectures}, and only [{_ARCHITECTURE!r}] is supported")
    for key, supported in _FIXED.items():
        found = data.get(key, _DEFAULTS.get(key))
        if found != supported:
            raise CheckpointError(path, f"{key} is {found!r}, and only {supported!r} is supported")
    if data.get("num_key_value_heads") is None:
        data["num_key_value_heads"] = data.get("num_attention_heads")
    sizes: dict[str, Any] = {name: _size(path, data, name) for name in _SIZES if name != "head_dim"}
    if data.get("head_dim") is None and sizes["num_attention_heads"] > 0:
        data["head_dim"] = sizes["hidden_size"] // sizes["num_attention_heads"]
    sizes["head_dim"] = _size(path, data, "head_dim")
    try:
        eps = float(data.get("rms_norm_eps", 1e-6))
        return ModelConfig(**sizes, rope_theta=_rope_theta(path, data), rms_norm_eps=eps)
    except (TypeError, ValueError) as error:
        raise CheckpointError(path, str(error)) from None


def load_weights(folder: Path, config: ModelConfig, dtype: torch.dtype = torch.float32) -> TinyLlama:
    """Return a model with the weights of a folder's `model.safetensors`; every one of them is asked for by name."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    path = folder / WEIGHTS
    if not path.is_file():
        raise CheckpointError(path, "there is no such file, and without it the model has no weights")
    try:
        tensors = load_file(path)
    except SafetensorError as error:
        raise CheckpointError(path, f"is damaged: {error}") from None
    # Random weights that are thrown away at once: milliseconds, where the first use of the meta device takes a second.
    model = TinyLlama(config)
    _check_tensors(path, tensors, model.state_dict())
    model.load_state_dict({name: tensor.to(dtype) for name, tensor in tensors.items()}, assign=True)
    return model.requires_grad_(False).eval()


def save_model(folder: Path, model: TinyLlama, tokenizer_json: str, dtype: torch.dtype, eos_token_id: int) -> None:
    """Write the three files of a folder.

    Args:
        folder: made if it is not there.
        model: no layer may have a window, for which a Llama's `config.json` has no words.
        tokenizer_json: the text of the file.
        dtype: to store the weights in.
        eos_token_id: the token that ends a text.
    """
    from safetensors.torch import save_file

    if model.config.window_layers:
        raise CheckpointError(folder / CONFIG, f"cannot say that layers {model.config.window_layers} have a window")
    folder.mkdir(parents=True, exist_ok=True)
    sizes = {name: value for name, value in asdict(model.config).items() if name in _SIZES}
    config = {
        "architectures": [_ARCHITECTURE],
        **_FIXED,
        **sizes,
        "rms_norm_eps": model.config.rms_norm_eps,
        "rope_parameters": {"rope_type": "default", "rope_theta": model.config.rope_theta},
        "bos_token_id": None,
        "eos_token_id": eos_token_id,
        "dtype": str(dtype).removeprefix("torch."),
    }
    (folder / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8", newline="\n")
    (folder / TOKENIZER).write_text(tokenizer_json, encoding="utf-8", newline="\n")
    tensors = {name: tensor.to(dtype).contiguous() for name, tensor in model.state_dict().items()}
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})  # what transformers asks for


def _size(path: Path, data: Mapping[str, Any], name: str) -> int:
    value = data.get(name)
    if not isinstance(value, int) or isinstance(value, bool):
        raise CheckpointError(path, f"{name} is {value!r}, it must be a whole number")
    return value


def _rope_theta(path: Path, data: Mapping[str, Any]) -> float:
    """Return the base of the rotation, from where transformers 5 writes it, or from where those before it did."""
    rope = data.get("rope_parameters") or data.get("rope_scaling") or {}
    if not isinstance(rope, dict) or rope.get("partial_rotary_factor", 1) != 1:
        raise CheckpointError(path, f"rope_parameters is {rope!r}, and only a full rotation is supported")
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind != "default":
        raise CheckpointError(path, f"rope_type is {kind!r}, and only 'default', without scaling, is supported")
    return float(rope.get("rope_theta", data.get("rope_theta", 10_000.0)))


def _check_tensors(path: Path, found: dict[str, Tensor], wanted: Mapping[str, Tensor]) -> None:
    missing = sorted(wanted.keys() - found.keys())
    extra = sorted(found.keys() - wanted.keys())
    if missing:
        raise CheckpointError(path, f"has no tensor {_first(missing)}")
    if extra:
        raise CheckpointError(path, f"has a tensor for which the model has no place: {_first(extra)}")
    for name, tensor in wanted.items():
        if found[name].shape != tensor.shape:
            shapes = f"{list(found[name].shape)}, and {CONFIG} makes it {list(tensor.shape)}"
            raise CheckpointError(path, f"{name} has the shape {shapes}")
        if not found[name].is_floating_point():
            raise CheckpointError(path, f"{name} holds {found[name].dtype}, and weights are floating-point numbers")


def _first(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]}, and {len(names) - 1} more of that sort"

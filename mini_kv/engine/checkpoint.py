"""A model's folder, in the form in which Llama checkpoints are published.

    config.json         sizes, by the names that Hugging Face's `LlamaConfig` gives them; those of `MinistralConfig`
                        where layers have a window
    model.safetensors   weights, by the names of `LlamaForCausalLM`, which are Ministral's, too
    tokenizer.json      see `mini_kv.engine.tokenizer`

transformers reads every folder that is written here and computes the same logits.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from mini_kv.core.errors import ConfigError
from mini_kv.core.strict_json import read_object
from mini_kv.engine.errors import CheckpointError
from mini_kv.engine.model import ModelConfig, TinyLlama
from mini_kv.engine.tokenizer import Tokenizer
from mini_kv.engine.weights_file import TensorHeader, check_finite, read_header

CONFIG, WEIGHTS, TOKENIZER = "config.json", "model.safetensors", "tokenizer.json"

_ARCHITECTURES = {"llama": ("LlamaForCausalLM",), "ministral": ("MistralForCausalLM", "MinistralForCausalLM")}
"""Architectures by `model_type`: a Ministral is a Llama in which some layers have a window.

We write the first architecture of each type. vLLM chooses its code by the architecture, and calls these layers
Mistral's. transformers chooses by the type.
"""
_FIXED = {"hidden_act": "silu", "attention_bias": False, "mlp_bias": False, "tie_word_embeddings": True}
"""The settings for which `TinyLlama` supports only one value."""
_SEES = {"full_attention": False, "sliding_attention": True}
"""Whether a layer has a window, by its entry in `layer_types`."""
_DEFAULTS = {"hidden_act": "silu", "attention_bias": False, "mlp_bias": False, "tie_word_embeddings": False}
"""Values of settings that a `config.json` leaves out. Source: transformers 5.23, `LlamaConfig`."""
SIZES = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "max_position_embeddings",
)
"""Required settings of `config.json`. Other settings have defaults if they are left out or null."""
_MAX_SIZE = 1 << 32
"""Largest value of each of these. A product of two of them still fits into a message."""


def tiny_folder(*, windows: bool = False) -> Path:
    """Return the folder of mini_kv's small model, or of its variant with windowed layers."""
    return Path(__file__).parent / ("tiny_windows" if windows else "tiny")


def load_model(folder: str | Path, dtype: torch.dtype = torch.float32) -> tuple[TinyLlama, Tokenizer]:
    """Return a folder's model and tokenizer, ready for use.

    Args:
        folder: with the three files.
        dtype: to compute in, independent of the stored dtype: bfloat16 saves space in a file, but is slow on a CPU.

    Raises:
        CheckpointError: names the file, and the setting or the tensor, that is missing, damaged or not supported.
    """
    folder = Path(folder)
    config = load_config(folder)
    tokenizer = Tokenizer.from_file(folder / TOKENIZER, _eos_token_id(folder))
    if tokenizer.vocab_size > config.vocab_size:
        sizes = f"{tokenizer.vocab_size} tokens, and the model has embeddings for {config.vocab_size}"
        raise CheckpointError(folder / TOKENIZER, f"has {sizes}")
    model = _load_weights(folder, config, dtype)
    tokenizer.fill_up(config.vocab_size)
    return model, tokenizer


def load_config(folder: str | Path) -> ModelConfig:
    """Read a folder's `config.json`."""
    path = Path(folder) / CONFIG
    data = read_object(path, CheckpointError)
    model_type = data.get("model_type", "llama")
    known = _ARCHITECTURES.get(model_type) if isinstance(model_type, str) else None
    if known is None:
        types = ", ".join(map(repr, _ARCHITECTURES))
        raise CheckpointError(path, f"model_type is {model_type!r}, and only {types} are supported")
    architectures = data.get("architectures") or [known[0]]
    if architectures not in [[name] for name in known]:
        raise CheckpointError(path, f"architectures is {architectures}, and only {[known[0]]} is supported")
    for key, supported in _FIXED.items():
        found = data.get(key, _DEFAULTS.get(key))
        if found != supported:
            raise CheckpointError(path, f"{key} is {found!r}, and only {supported!r} is supported")
    if data.get("num_key_value_heads") is None:
        data["num_key_value_heads"] = data.get("num_attention_heads")
    sizes: dict[str, Any] = {name: _size(path, data, name) for name in SIZES if name != "head_dim"}
    if data.get("head_dim") is None:
        data["head_dim"] = sizes["hidden_size"] // sizes["num_attention_heads"]
    sizes["head_dim"] = _size(path, data, "head_dim")
    eps = _number(path, "rms_norm_eps", data.get("rms_norm_eps", 1e-6), above=0.0, most=1.0)
    layers = _window_layers(path, data, sizes["num_hidden_layers"]) if model_type == "ministral" else ()
    window = _size(path, data, "sliding_window") if layers else None
    theta = _rope_theta(path, data)
    try:
        return ModelConfig(**sizes, rope_theta=theta, rms_norm_eps=eps, sliding_window=window, window_layers=layers)
    except ConfigError as error:
        raise CheckpointError(path, str(error)) from None


def _load_weights(folder: Path, config: ModelConfig, dtype: torch.dtype = torch.float32) -> TinyLlama:
    """Return a model with the weights of a folder's `model.safetensors`, each of them read by its name.

    Memory is allocated only after the file's header was checked: all weights must be there, in the config's sizes.
    """
    from safetensors.torch import load_file

    path = folder / WEIGHTS
    _check_header(path, read_header(path), config)
    try:
        tensors = {name: tensor.to(dtype) for name, tensor in load_file(path).items()}
        check_finite(path, tensors.items())
        # Random weights that are thrown away at once: milliseconds, where the first use of the meta device takes
        # seconds.
        model = TinyLlama(config)
    except (MemoryError, RuntimeError) as error:
        raise CheckpointError(path, f"does not fit into this machine's memory: {error}") from None
    model.load_state_dict(tensors, assign=True)
    return model.requires_grad_(False).eval()


def save_model(folder: Path, model: TinyLlama, tokenizer_json: str, dtype: torch.dtype, eos_token_id: int) -> None:
    """Write the three files of a folder.

    Args:
        folder: made if it is missing.
        model: saved as a Ministral if a layer has a window, because a Llama's `config.json` has no setting for it.
        tokenizer_json: the text of the file.
        dtype: to store the weights in.
        eos_token_id: the token that ends a text.
    """
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    sizes = {name: value for name, value in asdict(model.config).items() if name in SIZES}
    model_type = "ministral" if model.config.window_layers else "llama"
    config = {
        "architectures": [_ARCHITECTURES[model_type][0]],
        "model_type": model_type,
        **_FIXED,
        **sizes,
        **_windows(model.config),
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


def _windows(config: ModelConfig) -> dict[str, Any]:
    """Return the settings of a `config.json` for layers with a window, or an empty dict if no layer has one."""
    if not config.window_layers:
        return {}
    kinds = {has_window: kind for kind, has_window in _SEES.items()}
    layers = [kinds[config.window_of(layer) is not None] for layer in range(config.num_hidden_layers)]
    return {"sliding_window": config.sliding_window, "layer_types": layers}


def _window_layers(path: Path, data: Mapping[str, Any], num_layers: int) -> tuple[int, ...]:
    """Return the layers of a Ministral that have a window: all, if only their size is given, as in transformers."""
    kinds = data.get("layer_types")
    if kinds is None:
        return tuple(range(num_layers)) if data.get("sliding_window") is not None else ()
    if not isinstance(kinds, list) or len(kinds) != num_layers or not all(kind in _SEES for kind in map(str, kinds)):
        wanted = f"{num_layers} of {', '.join(map(repr, _SEES))}"
        raise CheckpointError(path, f"layer_types is {kinds!r}, it must be {wanted}")
    return tuple(layer for layer, kind in enumerate(kinds) if _SEES[kind])


def _size(path: Path, data: Mapping[str, Any], name: str) -> int:
    value = data.get(name)
    if not isinstance(value, int) or isinstance(value, bool):
        raise CheckpointError(path, f"{name} is {value!r}, it must be a whole number")
    if not 1 <= value <= _MAX_SIZE:
        raise CheckpointError(path, f"{name} is {value}, it must be from 1 to {_MAX_SIZE:,}")
    return value


def _number(path: Path, name: str, value: object, *, above: float, most: float) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not above < value <= most:
        raise CheckpointError(path, f"{name} is {value!r}, it must be a number above {above:g} and at most {most:g}")
    return float(value)


def _eos_token_id(folder: Path) -> int | None:
    value = read_object(folder / CONFIG, CheckpointError).get("eos_token_id")
    if value is not None and type(value) is not int:
        raise CheckpointError(folder / CONFIG, f"eos_token_id is {value!r}, and only one token, or null, is supported")
    return value


def _rope_theta(path: Path, data: Mapping[str, Any]) -> float:
    """Return the base of the rotation from the field of transformers 5, or from the field of older versions."""
    rope = data.get("rope_parameters") or data.get("rope_scaling") or {}
    if not isinstance(rope, dict) or rope.get("partial_rotary_factor", 1) != 1:
        raise CheckpointError(path, f"rope_parameters is {rope!r}, and only a full rotation is supported")
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind != "default":
        raise CheckpointError(path, f"rope_type is {kind!r}, and only 'default', without scaling, is supported")
    theta = rope.get("rope_theta", data.get("rope_theta", 10_000.0))
    return _number(path, "rope_theta", theta, above=1.0, most=1e12)


def tensor_shapes(config: ModelConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield the name and shape of each of a model's tensors, without making the model."""
    hidden, feed_forward = config.hidden_size, config.intermediate_size
    queries, keys = (n * config.head_dim for n in (config.num_attention_heads, config.num_key_value_heads))
    yield "model.embed_tokens.weight", (config.vocab_size, hidden)
    for layer in range(config.num_hidden_layers):
        for name, shape in {
            "input_layernorm": (hidden,),
            "self_attn.q_proj": (queries, hidden),
            "self_attn.k_proj": (keys, hidden),
            "self_attn.v_proj": (keys, hidden),
            "self_attn.o_proj": (hidden, queries),
            "post_attention_layernorm": (hidden,),
            "mlp.gate_proj": (feed_forward, hidden),
            "mlp.up_proj": (feed_forward, hidden),
            "mlp.down_proj": (hidden, feed_forward),
        }.items():
            yield f"model.layers.{layer}.{name}.weight", shape
    yield "model.norm.weight", (hidden,)


def _check_header(path: Path, header: Mapping[str, TensorHeader], config: ModelConfig) -> None:
    """Raise `CheckpointError` unless the file has exactly the config's tensors. Costs O(tensors of the file)."""
    wanted = set()
    for name, shape in tensor_shapes(config):  # which ends at the first that is missing, however many layers there are
        if name not in header:
            layers = f"{CONFIG} says {config.num_hidden_layers} layers"
            raise CheckpointError(path, f"has no tensor {name}, and {layers}")
        if header[name].shape != shape:
            shapes = f"{list(header[name].shape)}, and {CONFIG} makes it {list(shape)}"
            raise CheckpointError(path, f"{name} has the shape {shapes}")
        wanted.add(name)
    extra = sorted(header.keys() - wanted)
    if extra:
        more = f", and {len(extra) - 1} more of that sort" if len(extra) > 1 else ""
        raise CheckpointError(path, f"has a tensor for which the model has no place: {extra[0]}{more}")

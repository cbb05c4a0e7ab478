"""A model's own config.json: the shapes of its layers, or a refusal that names the field.

A wrong plan is worse than none, so nothing is guessed. A field that could change the layers is understood, or known to
change nothing (`config_fields.toml` lists both), or the file is refused. A missing field has the default of
transformers for that `model_type`. The layers with a window are those of vLLM 0.33.

    gemma2, sliding_window 4096, no layer_types    window full window full ..    every second layer
    mistral, sliding_window 4096                   window window window ..       all of them
    qwen2, sliding_window 4096, not used           full full full ..
    mpt                                            refused: attn_config
"""

from math import prod
from pathlib import Path
from typing import Any

from mini_kv.core.errors import ConfigError
from mini_kv.core.strict_json import read_object
from mini_kv.tools.planning.config_file import Config, refusal, short
from mini_kv.tools.planning.config_layers import MAX_LAYERS, attention_of_blocks, read_indexers, read_layers
from mini_kv.tools.planning.config_lengths import read_lengths
from mini_kv.tools.planning.config_weights import count_parameters

WEIGHTS_INDEX = "model.safetensors.index.json"
"""The file next to a config.json with the bytes of the weights."""
_MAX_INDEX_BYTES = 1 << 26
BYTES_PER_PARAMETER = 2
"""vLLM computes in 16 bits, whatever the file was saved in, unless it is quantized."""
STATE_BYTES = {None: 2, "auto": 2, "bfloat16": 2, "float16": 2, "float32": 4}
"""Bytes per number of a recurrent state. A file without the field uses the dtype of the weights."""


def read_config(path: Path) -> dict[str, Any]:
    """Return the layers of a config.json of Hugging Face, in the fields of models.toml.

    Raises `ConfigError`: a field has a wrong type or value, a field about the layers is unknown, or a field is missing
    that `model_type` does not imply.
    """
    config = Config(path)
    layers = read_layers(config)
    num_heads = config.integer("num_attention_heads") if {*layers} - {"state", "none"} else None
    asked = "" if config.kv_cache_dtype == "auto" else f". It asks for a cache in {config.kv_cache_dtype}"
    values = {
        "title": config.model_type or path.parent.name or str(path),
        "source": f"{path}, with the defaults of transformers 5.23 and the windows of vLLM 0.33{asked}",
        "layers": layers,
        "num_heads": num_heads,
        "num_kv_shared_layers": _num_kv_shared_layers(config, layers),
        "kv_cache_dtype": config.kv_cache_dtype,
        **read_lengths(config),
    }
    if "window" in layers:
        window = config.integer("sliding_window_size" if config.has_swa_fields else "sliding_window")
        # Cohere's window reaches one token further: vLLM 0.33, models/commandr.py.
        values["reach"] = window + 1 if config.model_type == "cohere2" else window
    if "chunks" in layers:
        values["reach"] = config.integer("attention_chunk_size")
    if "state" in layers:
        values["state"] = _state(config)
    if num_heads is not None:
        values |= _sizes(config, num_heads, layers)
    values["drafter"] = _own_drafter(config, values)
    return values | _weights(config, values)


def _own_drafter(config: Config, values: dict[str, Any]) -> list[str]:
    """Return the kinds of the layers that the model brings for its own drafts."""
    rule = config.drafter
    if rule is None:
        return []
    number = rule.get("default", 0)
    if config.get(rule["field"]):
        number = config.integer(rule["field"], at_most=MAX_LAYERS)
    kinds = ("window",) if rule.get("window") else ("full", "latent", "indexer")
    return [kind for kind in kinds if kind in values["layers"]] * int(number)


def _state(config: Config) -> dict[str, Any]:
    """Return the kind of the layers with a state, its sizes, and the bytes of its recurrent numbers."""
    rule = config.states
    sizes = {
        name: prod(config.integer(field) for field in fields.split(" * ")) for name, fields in rule["sizes"].items()
    }
    dtype = config.get(rule["dtype"]) if "dtype" in rule else None
    if dtype not in STATE_BYTES:
        raise config.error(f"{rule['dtype']} is {short(dtype)}, it must be float32, float16 or bfloat16")
    kind = "kimi_k3_kda" if config.get("linear_attn_config.use_full_rank_gate") else rule["kind"]
    return {"kind": kind, "sizes": sizes, "state_bytes": rule.get("state_bytes", STATE_BYTES[dtype])}


def _sizes(config: Config, num_heads: int, layers: list[str]) -> dict[str, Any]:
    """Return the heads of a token's KV in a layer, and the elements per head."""
    if "kv_lora_rank" in config.implied and (config.model_type or config.get("kv_lora_rank")):
        return _latent_sizes(config, layers)
    if config.has_swa_fields:
        return _sizes_of_two_kinds(config)
    if "compress_ratios" in config.implied:
        vectors = {"head_size": config.integer("head_dim"), "index_size": config.integer("index_head_dim")}
        return vectors | {"num_kv_heads": 1, "index_bytes": _index_bytes(config)}
    has_kv_heads = config.get("num_key_value_heads") is not None
    num_kv_heads = config.integer("num_key_value_heads") if has_kv_heads else num_heads
    if num_heads % num_kv_heads:
        raise config.error(f"num_key_value_heads is {num_kv_heads}, it must divide num_attention_heads, {num_heads}")
    has_size = config.get("head_dim") not in (None, 0)
    head_size = config.integer("head_dim") if has_size else config.integer("hidden_size") // num_heads
    if not head_size:
        raise config.error(f"hidden_size leaves nothing for each of {num_heads} heads")
    sizes: dict[str, Any] = {"num_kv_heads": num_kv_heads, "head_size": head_size}
    if "block_configs" in config.implied:  # each layer has its own number
        attentions = [attention for attention in attention_of_blocks(config) if not attention["no_op"]]
        sizes["layer_kv_heads"] = [num_heads // attention["n_heads_in_group"] for attention in attentions]
    if config.get("global_head_dim"):  # Gemma 4: layers of full attention have a shape of their own
        sizes["full_head_size"] = config.integer("global_head_dim")
    if config.get("num_global_key_value_heads") and config.get("attention_k_eq_v"):
        sizes["full_num_kv_heads"] = config.integer("num_global_key_value_heads")
    return sizes


def _weights(config: Config, values: dict[str, Any]) -> dict[str, Any]:
    """Return the bytes of the weights, from the index next to the file or counted, and how they are known."""
    found: dict[str, Any] = {}
    try:
        counted = count_parameters(config, values)
        found["active_share"] = counted.active / counted.total
        found["weight_bytes"] = BYTES_PER_PARAMETER * counted.total
        without = f", without those of {' and '.join(counted.without)}" if counted.without else ""
        found["weights_from"] = f"counted from the config at {BYTES_PER_PARAMETER} bytes per parameter{without}"
    except ConfigError as error:
        found["weights_unknown"] = str(error)
        if not any("expert" in name and isinstance(value, int) for name, value in config.values.items()):
            found["active_share"] = 1.0
    path = config.path.with_name(WEIGHTS_INDEX)
    if path.is_file():
        metadata = read_object(path, refusal, _MAX_INDEX_BYTES).get("metadata")
        size = metadata.get("total_size") if isinstance(metadata, dict) else None
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise ConfigError(f"{path}: metadata.total_size is {short(size)}, it must be a number of bytes")
        found |= {"weight_bytes": size, "weights_from": f"from {WEIGHTS_INDEX}"}
    return found


def _latent_sizes(config: Config, layers: list[str]) -> dict[str, Any]:
    """Return the sizes for a token with one latent vector in place of a key and a value."""
    if not {*layers} <= {"full", "state"}:
        raise config.error("it has kv_lora_rank and windows, and plan models one or the other")
    vector = config.integer("kv_lora_rank") + config.integer("qk_rope_head_dim")
    latents = ["latent" if kind == "full" else kind for kind in layers]
    sizes: dict[str, Any] = {"layers": latents, "num_kv_heads": 1, "head_size": vector}
    if "index_head_dim" in config.implied:  # sparse: each layer has an indexer, or reads another's choice
        indexers = read_indexers(config, len(layers))
        kinds = [kind for has_one in indexers for kind in ["latent", *["indexer"] * has_one]]
        sizes |= {"layers": kinds, "index_bytes": _index_bytes(config)}
    return sizes


def _sizes_of_two_kinds(config: Config) -> dict[str, Any]:
    """Return MiMo's heads and elements: of layers with a window, and of the others. A value may have fewer elements.

    Source: vLLM 0.33, `MiMoV2FlashDecoderLayer` (models/mimo_v2.py).
    """
    sizes = {}
    for ours, theirs in (("", "swa_"), ("full_", "")):
        values = config.get(f"{theirs}v_head_dim")
        sizes[f"{ours}num_kv_heads"] = config.integer(f"{theirs}num_key_value_heads")
        sizes[f"{ours}head_size"] = config.integer(f"{theirs}head_dim")
        sizes[f"{ours}head_size_v"] = config.integer(f"{theirs}{'head_dim' if values is None else 'v_head_dim'}")
    return sizes


def _index_bytes(config: Config) -> int:
    """Return the bytes that an indexer keeps per token: numbers of 8 bits, and a scale of 32 bits for each 128."""
    numbers = config.integer("index_head_dim")
    return numbers + numbers // 128 * 4


def _num_kv_shared_layers(config: Config, layers: list[str]) -> int:
    """Return the number of last layers that read the KV of an earlier layer of their kind."""
    shared = config.get("num_kv_shared_layers") or 0
    if not shared:
        return 0
    shared = config.integer("num_kv_shared_layers", at_most=len(layers) - 1)
    if not set(layers[-shared:]) <= set(layers[:-shared]):
        raise config.error(f"num_kv_shared_layers is {shared}: a layer has no earlier layer of its kind to share with")
    return shared

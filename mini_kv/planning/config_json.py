"""A model's own config.json: the shapes of its layers, or a refusal that names the field.

A wrong plan is worse than none, so nothing is guessed. A field that could change the layers is understood, or known to
change nothing (`config_fields.toml` lists both), or the file is refused. A missing field has the default of
transformers for that `model_type`. The layers with a window are those of vLLM 0.33.

    gemma2, sliding_window 4096, no layer_types    window full window full ..    every second layer
    mistral, sliding_window 4096                   window window window ..       all of them
    qwen2, sliding_window 4096, not used           full full full ..
    mpt                                            refused: attn_config
"""

import tomllib
from fnmatch import fnmatchcase
from math import prod
from pathlib import Path
from typing import Any

from mini_kv.core.errors import ConfigError
from mini_kv.planning.config_layers import attention_of_blocks, read_indexers, read_layers, short
from mini_kv.planning.config_weights import count_parameters
from mini_kv.strict_json import read_object

FIELDS = Path(__file__).with_name("config_fields.toml")
WEIGHTS_INDEX = "model.safetensors.index.json"
"""The file next to a config.json with the bytes of the weights."""
QUANTIZATION = "hf_quant_config.json"
"""The file next to a config.json with ModelOpt's settings, if they are not in it."""
MAX_INDEX_BYTES = 1 << 26
BYTES_PER_PARAMETER = 2
"""vLLM computes in 16 bits, whatever the file was saved in, unless it is quantized."""
LARGEST = 1_000_000_000
"""The largest number that any other field takes."""
UNDERSTOOD = {
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "hidden_size",
    "max_position_embeddings",
    "layer_types",
    "sliding_window",
    "use_sliding_window",
    "use_bidirectional_attention",
}
"""Fields that are read for every model, besides those of its own line in `config_fields.toml`."""
STATE_FIELDS = {
    "hybrid_override_pattern",
    "layers_block_type",
    "full_attention_interval",
    "full_attn_idxs",
    "attn_layer_period",
    "attn_layer_offset",
    "linear_attn_config.kda_layers",
    "linear_attn_config.full_attn_layers",
    "linear_attn_config.use_full_rank_gate",
}
"""Fields that list the layers with a state."""
SWA_FIELDS = {"hybrid_layer_pattern", "sliding_window_size", "swa_head_dim", "swa_v_head_dim"}
"""Fields for layers with a window that have heads of their own."""
INDEX_FIELDS = {"index_topk_pattern", "indexer_types"}
"""Fields that list the sparse layers with an indexer."""
STATE_BYTES = {None: 2, "auto": 2, "bfloat16": 2, "float16": 2, "float32": 4}
"""Bytes per number of a recurrent state. A file without the field uses the dtype of the weights."""
PLAIN: dict[str, Any] = {"mixed": True, "sliding_window_pattern": 0, "kv_lora_rank": 0, "qk_rope_head_dim": 0}
"""Further fields of a file without `model_type`, with defaults. It is read as a decoder of full attention."""
COUNTS = ("sliding_window_pattern", "attention_chunk_size", "attn_layer_period", "global_head_dim")
"""Fields that a model may lack, but that cannot be 0. In `sliding_window` and `head_dim` a 0 is as good as nothing."""
TEXT_PARTS = ("thinker_config", "text_config", "llm_config", "language_config")
"""Fields with the decoder of a model of text and images. Qwen3-Omni's is two levels down."""
QUANTIZED_CACHE = {"kv_cache_scheme", "kv_cache_quant_algo"}
"""Fields of a quantized model about its cache."""
EIGHT_BIT_FLOATS = {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False, "symmetric": True}
"""The scheme of `--kv-cache-dtype fp8`. A field may be missing."""


def read_config(path: Path) -> dict[str, Any]:
    """Return the layers of a config.json of Hugging Face, in the fields of models.toml.

    Raises `ConfigError`: a field has a wrong type or value, a field about the layers is unknown, or a field is missing
    that `model_type` does not imply.
    """
    config = Config(path)
    layers = read_layers(config)
    num_heads = config.integer("num_attention_heads") if {*layers} - {"state", "none"} else None
    limits = [name for name in ("max_position_embeddings", "model_max_length") if config.get(name) is not None]
    asked = "" if config.kv_cache_dtype == "auto" else f". It asks for a cache in {config.kv_cache_dtype}"
    values = {
        "title": config.model_type or path.parent.name or str(path),
        "source": f"{path}, with the defaults of transformers 5.23 and the windows of vLLM 0.33{asked}",
        "layers": layers,
        "num_heads": num_heads,
        "num_kv_shared_layers": _num_kv_shared_layers(config, layers),
        "max_model_len": config.integer(limits[0]) if limits else None,
        "kv_cache_dtype": config.kv_cache_dtype,
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
    return values | _weights(config, values)


def _state(config: "Config") -> dict[str, Any]:
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


def _sizes(config: "Config", num_heads: int, layers: list[str]) -> dict[str, Any]:
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


def _weights(config: "Config", values: dict[str, Any]) -> dict[str, Any]:
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
        metadata = read_object(path, _refusal, MAX_INDEX_BYTES).get("metadata")
        size = metadata.get("total_size") if isinstance(metadata, dict) else None
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise ConfigError(f"{path}: metadata.total_size is {short(size)}, it must be a number of bytes")
        found |= {"weight_bytes": size, "weights_from": f"from {WEIGHTS_INDEX}"}
    return found


def _latent_sizes(config: "Config", layers: list[str]) -> dict[str, Any]:
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


def _sizes_of_two_kinds(config: "Config") -> dict[str, Any]:
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


def _index_bytes(config: "Config") -> int:
    """Return the bytes that an indexer keeps per token: numbers of 8 bits, and a scale of 32 bits for each 128."""
    numbers = config.integer("index_head_dim")
    return numbers + numbers // 128 * 4


def _num_kv_shared_layers(config: "Config", layers: list[str]) -> int:
    """Return the number of last layers that read the KV of an earlier layer of their kind."""
    shared = config.get("num_kv_shared_layers") or 0
    if not shared:
        return 0
    shared = config.integer("num_kv_shared_layers", at_most=len(layers) - 1)
    if not set(layers[-shared:]) <= set(layers[:-shared]):
        raise config.error(f"num_kv_shared_layers is {shared}: a layer has no earlier layer of its kind to share with")
    return shared


class Config:
    """The fields of one file, with the values that its `model_type` implies."""

    def __init__(self, path: Path) -> None:
        self.path = path
        rules = tomllib.loads(FIELDS.read_text(encoding="utf-8"))
        outer = read_object(path, _refusal)
        self.levels = [outer]
        """The file's objects from the outermost to the decoder's."""
        while inner := [self.levels[-1][name] for name in TEXT_PARTS if isinstance(self.levels[-1].get(name), dict)]:
            self.levels.append(inner[0])
        self.values = self._with_usual_names(self.levels[-1], rules["names"])
        self.model_type = self.values.get("model_type")
        if self.model_type is not None and not isinstance(self.model_type, str):
            raise self.error(f"model_type is {short(self.model_type)}, it must be a name")
        implied = rules["model_types"].get(self.model_type)
        self.states: dict[str, Any] = rules["states"].get(self.model_type, {})
        """The rule to read layers with a state, if the model has some."""
        self.weights: dict[str, Any] | None = rules["weights"].get(self.model_type)
        """The rule to count weights, or `None` if there is none for this type."""
        for name in COUNTS:
            if self.values.get(name) == 0 and not isinstance(self.values[name], bool):
                raise self.error(f"{name} is 0, it must be at least 1: leave it out if the model has none")
        self._refuse_other_models()
        self.quantization = self._read_quantization()
        """What the file says of quantized weights, or an empty object."""
        self.kv_cache_dtype = self._read_cache_dtype()
        """The form of keys and values that the file asks for: auto or fp8."""
        self._refuse_other_fields(rules, implied if self.model_type else PLAIN)
        if self.model_type and implied is None:
            self._require_all()
        self.implied: dict[str, Any] = (implied if self.model_type else PLAIN) or {"mixed": True}
        self.mixes_layers = not self.implied.keys().isdisjoint(
            {"mixed", "full_every", "sliding_window_pattern", "attention_chunk_size"}
        )

    @property
    def other_parts(self) -> tuple[str, ...]:
        """Fields with the other parts of a model: of images, sounds and speech. Each is an object."""
        beside = {name for level in self.levels for name, value in level.items() if isinstance(value, dict)}
        return tuple(sorted({"vision_config", "audio_config", "visual", "audio_encoder"} & beside))

    @property
    def has_swa_fields(self) -> bool:
        """Whether layers with a window have heads of their own, in fields that begin with `swa_`."""
        return "swa_num_key_value_heads" in self.implied

    def error(self, problem: str) -> ConfigError:
        """Return an error that names the file."""
        return ConfigError(f"{self.path}: {problem}")

    def get(self, name: str) -> Any:
        """Return the value in the file, else the value that `model_type` implies, else `None`."""
        return self.values.get(name, self.implied.get(name))

    def integer(self, name: str, at_most: int = LARGEST) -> int:
        """Return a number of at least 1.

        Raises `ConfigError`: the field is missing, is of another type, or out of range.
        """
        value = self.get(name)
        if value is None and name not in self.values:
            raise self.error(f"it does not say {name}")
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= at_most:
            raise self.error(f"{name} is {short(value)}, it must be a whole number from 1 to {at_most:,}")
        return value

    def _with_usual_names(self, part: dict[str, Any], names: dict[str, str]) -> dict[str, Any]:
        values: dict[str, Any] = {}
        inner = part.get("linear_attn_config")
        if isinstance(inner, dict):  # Kimi's, a level deeper
            part = part | {f"linear_attn_config.{name}": value for name, value in inner.items()}
            del part["linear_attn_config"]
        for name, value in part.items():
            usual = names.get(name, name)
            if values.get(usual, value) != value:
                raise self.error(f"{usual} has two values, {short(values[usual])} and {short(value)}")
            values[usual] = value
        return values

    def _refuse_other_models(self) -> None:
        """Raise `ConfigError` for a model that is not a decoder."""
        for values in (*self.levels, self.values):
            if values.get("is_encoder_decoder") or values.get("is_causal") is False:
                raise self.error("it is an encoder's, and plan supports decoders only")
        if self.values.get("use_bidirectional_attention") not in (None, False, "vision"):
            raise self.error("it has use_bidirectional_attention, which plan does not model yet")

    def _read_quantization(self) -> dict[str, Any]:
        """Return what the file, or ModelOpt's file beside it, says of quantized weights."""
        said = [level["quantization_config"] for level in self.levels if level.get("quantization_config")]
        beside = self.path.with_name(QUANTIZATION)
        if not said and beside.is_file():
            said = [read_object(beside, _refusal)]
        if not said:
            return {}
        if (len(said) > 1 and said[0] != said[1]) or not isinstance(said[0], dict):
            raise self.error(f"quantization_config is {short(said[0])}, it must be one object")
        inner = said[0].get("quantization")  # ModelOpt's own file has it a level deeper
        return said[0] | inner if isinstance(inner, dict) else said[0]

    def _read_cache_dtype(self) -> str:
        """Return the form of keys and values that a quantized file asks for.

        Source: vLLM 0.33, `resolve_kv_cache_dtype_string` (utils/torch_utils.py); for compressed-tensors, `Attention`.
        """
        asked = {name: self.quantization[name] for name in QUANTIZED_CACHE if self.quantization.get(name)}
        method = str(self.quantization.get("quant_method", "modelopt"))
        needed = {"num_bits", "type"} | ({"dynamic"} if method.startswith("modelopt") else set())
        for name, value in asked.items():
            is_fp8 = str(value).lower() == "fp8"
            if isinstance(value, dict):
                said = {key: value[key] for key in EIGHT_BIT_FLOATS if value.get(key) is not None}
                is_fp8 = needed <= said.keys() and said.items() <= EIGHT_BIT_FLOATS.items()
            if not is_fp8 or not (method.startswith("modelopt") or method == "compressed-tensors"):
                raise self.error(
                    f"quantization_config has {name} {short(value)}, and plan knows 8-bit floats only:"
                    " remove it, and give --kv-cache-dtype where it applies"
                )
        return "fp8" if asked else "auto"

    def _refuse_other_fields(self, rules: dict[str, Any], implied: dict[str, Any] | None) -> None:
        """Raise `ConfigError` for fields about the layers that are neither understood nor harmless."""
        read_here = UNDERSTOOD | (implied or {}).keys() - {"mixed", "full_every"}
        harmless = rules["harmless"] + (rules["harmless_with_latent"] if "kv_lora_rank" in read_here else [])
        if "swa_num_key_value_heads" in read_here:
            read_here |= SWA_FIELDS
            harmless = harmless + rules["harmless_with_swa"]
        if "index_head_dim" in read_here:
            read_here |= INDEX_FIELDS
            harmless = harmless + rules["harmless_with_indexer"]
        if "compress_ratios" in read_here:
            harmless = harmless + rules["harmless_with_ratios"]
        if self.states:
            read_here |= STATE_FIELDS | {self.states.get("dtype", "")}
            read_here |= {field for fields in self.states["sizes"].values() for field in fields.split(" * ")}
            harmless = harmless + rules["harmless_with_states"]
        others = []
        for name, value in self.values.items():
            is_off = value is None or value is False or value in ([], {})
            is_about_layers = any(word in name.lower() for word in rules["words"])
            is_said_twice = value == self.values.get(rules["same"].get(name))
            is_unused = self.values.get(rules["unused_without"].get(name)) is False
            is_plain = name in rules["only"] and type(value) is int and value == rules["only"][name]
            is_known = name in read_here or any(fnmatchcase(name, pattern) for pattern in harmless)
            if is_about_layers and not (is_off or is_said_twice or is_unused or is_plain or is_known):
                others.append(name[:60])
        if others:
            more = f" and {len(others) - 4} more fields" if len(others) > 4 else ""
            unknown = f"model_type {short(self.model_type)} is not one that plan knows, and " if implied is None else ""
            raise self.error(f"{unknown}it has {', '.join(others[:4])}{more}, which plan does not model yet")

    def _require_all(self) -> None:
        """Raise `ConfigError` unless a file of an unknown `model_type` contains all fields that have no default."""
        needed = ["num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim", "layer_types"]
        missing = [name for name in needed if self.values.get(name) is None]
        if missing:
            raise self.error(
                f"model_type {short(self.model_type)} is not one that plan knows,"
                f" and the file does not say {', '.join(missing)}"
            )


def _refusal(path: Path, problem: str) -> ConfigError:
    return ConfigError(f"{path}: {problem}")

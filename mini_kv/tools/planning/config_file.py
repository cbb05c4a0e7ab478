"""The fields of a config.json, with the values that its `model_type` implies. Fields that nothing reads are refused."""

import tomllib
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from mini_kv.core.errors import ConfigError
from mini_kv.core.strict_json import read_object

FIELDS = Path(__file__).with_name("config_fields.toml")
QUANTIZATION = "hf_quant_config.json"
"""The file next to a config.json with ModelOpt's settings, if they are not in it."""
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


class Config:
    """The fields of one file, with the values that its `model_type` implies."""

    def __init__(self, path: Path) -> None:
        self.path = path
        rules = tomllib.loads(FIELDS.read_text(encoding="utf-8"))
        outer = read_object(path, refusal, infinite=True)  # Nemotron's time_step_limit
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
        self.drafter: dict[str, Any] | None = rules["drafters"].get(self.model_type)
        """The rule for the layers of the model's own drafts, or `None` if there is none for this type."""
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
            said = [read_object(beside, refusal)]
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


def refusal(path: Path, problem: str) -> ConfigError:
    """Return an error that names the file."""
    return ConfigError(f"{path}: {problem}")


def short(value: object) -> str:
    """Return a value for an error message, cut to 40 characters."""
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."

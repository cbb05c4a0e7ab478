"""Shapes of real models' layers, read from models.toml or from a model's own config.json."""

import json
import tomllib
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from typing import Any

from mini_kv.core.errors import ConfigError
from mini_kv.core.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    KVCacheSpec,
    MambaSpec,
    MLAAttentionSpec,
    SlidingWindowSpec,
)

MODELS = Path(__file__).with_name("models.toml")
BYTES = 2
"""Bytes of one number of KV or state: bf16."""


@dataclass(frozen=True, slots=True)
class Model:
    """The shapes of a model's layers that the cache plan needs."""

    title: str
    source: str
    max_model_len: int
    kv_cache_spec: dict[str, KVCacheSpec]
    """Shape of each layer that owns KV, by a name such as `window.3`, in the model's order."""
    kv_sharing: dict[str, str]
    """Each layer that owns no KV, and the layer whose KV it reads."""
    num_heads: int | None = None
    """Query heads per layer."""
    num_parameters: float | None = None


def model_names() -> list[str]:
    """Return the names that `load_model` takes."""
    return list(_read())


def load_model(name: str, block_size: int = 16) -> Model:
    """Return the model of that name, or of a config.json at that path, with blocks of `block_size` tokens.

    Raises `ConfigError`: an unknown name, with the choices; a file that does not say how large its model's KV is.
    """
    models = _read()
    if name.endswith(".json"):
        models = {name: _read_config(Path(name))}
    if name not in models:
        choices = ", ".join(models)
        raise ConfigError(f"unknown model {name!r}; choose from {choices}, or give the path of a config.json")
    values = models[name]
    kinds = list(islice(cycle(values["layers"]), values["num_layers"]))
    counts = dict.fromkeys(kinds, 0)
    names = []
    for kind in kinds:
        names.append(f"{kind}.{counts[kind]}")
        counts[kind] += 1
    num_owners = len(kinds) - values.get("num_kv_shared_layers", 0)
    owners = dict(zip(kinds[:num_owners], names[:num_owners], strict=True))  # of each kind, the last before the sharing
    return Model(
        values["title"],
        values["source"],
        values["max_model_len"],
        {names[i]: _spec(kinds[i], values, block_size) for i in range(num_owners)},
        {names[i]: owners[kinds[i]] for i in range(num_owners, len(kinds))},
        values.get("num_heads"),
        values.get("num_parameters"),
    )


def _spec(kind: str, values: dict[str, Any], block_size: int) -> KVCacheSpec:
    if kind == "state":
        shapes = tuple(tuple(shape) for shape in values["state_shapes"])
        return MambaSpec(block_size, shapes=shapes, dtypes_bytes=(BYTES,) * len(shapes))
    shape = (block_size, values["num_kv_heads"], values["head_size"], BYTES)
    if kind == "window":
        return SlidingWindowSpec(*shape, sliding_window=values["reach"])
    if kind == "chunks":
        return ChunkedLocalAttentionSpec(*shape, attention_chunk_size=values["reach"])
    if kind == "latent":
        return MLAAttentionSpec(*shape)
    return FullAttentionSpec(*shape)


def _read() -> dict[str, dict[str, Any]]:
    return tomllib.loads(MODELS.read_text(encoding="utf-8"))


_KINDS = {"full_attention": "full", "sliding_attention": "window", "chunked_attention": "chunks"}


def _read_config(path: Path) -> dict[str, Any]:
    """Return what a config.json of Hugging Face says, in the words of models.toml."""
    try:
        config = json.loads(path.read_bytes())
        config = config.get("text_config", config)
        num_layers, num_heads = config["num_hidden_layers"], config["num_attention_heads"]
        head_size = config.get("head_dim") or config["hidden_size"] // num_heads
        values = {
            "title": config.get("model_type", path.parent.name),
            "source": f"{path}, as Hugging Face's transformers reads it",
            "num_layers": num_layers,
            "layers": _layers(config, num_layers),
            "num_heads": num_heads,
            "num_kv_heads": config.get("num_key_value_heads") or num_heads,
            "head_size": head_size,
            "reach": config.get("attention_chunk_size") or config.get("sliding_window"),
            "num_kv_shared_layers": config.get("num_kv_shared_layers") or 0,
            "max_model_len": config["max_position_embeddings"],
        }
        if config.get("kv_lora_rank"):  # one vector per token, in place of a key and a value
            vector = config["kv_lora_rank"] + config["qk_rope_head_dim"]
            values |= {"layers": ["latent"], "num_kv_heads": 1, "head_size": vector}
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    except KeyError as error:
        raise ConfigError(f"{path} does not say its model's {error}") from None
    except (ValueError, TypeError, AttributeError) as error:
        raise ConfigError(f"{path} is no config.json of a model: {error}") from None
    return values


def _layers(config: dict[str, Any], num_layers: int) -> list[str]:
    """Return the kind of each layer. States are refused: every model spells their shapes in its own way."""
    types = config.get("layer_types")
    if types is None:
        every = config.get("sliding_window_pattern")
        slides = config.get("sliding_window") and config.get("use_sliding_window", True)
        types = ["full_attention" if not slides else "sliding_attention"] * num_layers
        if slides and every:
            types[every - 1 :: every] = ["full_attention"] * len(types[every - 1 :: every])
    unknown = set(types) - set(_KINDS)
    if unknown or "layers_block_type" in config or "mamba_d_state" in config:
        states = ", ".join(sorted(unknown)) or "states"
        raise ValueError(f"it has layers of the kind {states}, whose size the file does not say")
    return [_KINDS[kind] for kind in types]

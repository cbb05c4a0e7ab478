"""Shapes of real models' layers, read from models.toml or from a model's own config.json."""

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
from mini_kv.planning.config_json import read_config

MODELS = Path(__file__).with_name("models.toml")
BYTES = 2
"""Bytes of one number of KV or state: bf16."""


@dataclass(frozen=True, slots=True)
class Model:
    """The shapes of a model's layers that the cache plan needs."""

    title: str
    source: str
    max_model_len: int | None
    """Tokens of the longest request; `None` if a config.json does not say it."""
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
    models = {name: read_config(Path(name))} if name.endswith(".json") else _read()
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
    if kind == "full":  # of which Gemma 4 has fewer heads, each of them larger
        heads, size = values.get("full_num_kv_heads", shape[1]), values.get("full_head_size", shape[2])
        return FullAttentionSpec(block_size, heads, size, BYTES)
    if kind == "window":
        return SlidingWindowSpec(*shape, sliding_window=values["reach"])
    if kind == "chunks":
        return ChunkedLocalAttentionSpec(*shape, attention_chunk_size=values["reach"])
    return MLAAttentionSpec(*shape)


def _read() -> dict[str, dict[str, Any]]:
    return tomllib.loads(MODELS.read_text(encoding="utf-8"))

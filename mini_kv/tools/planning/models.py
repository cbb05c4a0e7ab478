"""Shapes of real models' layers, read from models.toml or from a model's own config.json."""

import re
import tomllib
from dataclasses import dataclass, replace
from difflib import get_close_matches
from itertools import cycle, islice
from pathlib import Path
from typing import Any

from mini_kv.core.errors import ConfigError
from mini_kv.core.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    KVCacheSpec,
    MLAAttentionSpec,
    SlidingWindowSpec,
)
from mini_kv.messages import listed, shown
from mini_kv.tools.planning import compressed
from mini_kv.tools.planning.config_json import read_config
from mini_kv.tools.planning.cut import on_one_card
from mini_kv.tools.planning.states import StateLayer

MODELS = Path(__file__).with_name("models.toml")
BYTES = 2
"""Bytes of one number of KV or state: bf16."""
SAME_SHAPE = {"instruct", "it", "base", "chat", "thinking", "hf", "meta"}
"""Words in the names of models that were trained further, or of who published them. Their layers are the same."""
SPARSE_BLOCK = 64
"""Blocks of sparse layers and their indexers are multiples of this number of tokens. Source: vLLM 0.33,
`get_supported_kernel_block_sizes` of `DeepseekV32IndexerBackend`."""


@dataclass(frozen=True, slots=True)
class Model:
    """The shapes of a model's layers that the cache plan needs."""

    title: str
    source: str
    max_model_len: int
    """Tokens of the longest request, if the caller does not set it."""
    kv_cache_spec: dict[str, KVCacheSpec]
    """Shape of each layer that owns KV, by a name such as `window.3`, in the model's order."""
    kv_sharing: dict[str, str]
    """Each layer that owns no KV, and the layer whose KV it reads."""
    num_heads: int | None = None
    """Query heads per layer."""
    num_parameters: float | None = None
    """Parameters that one token uses. A mixture of experts uses fewer than it has."""
    weight_bytes: float | None = None
    """Bytes of all weights, on all cards together, or `None` if not known."""
    active_share: float | None = None
    """Share of the weights that one token uses, 0.0 to 1.0, or `None` if not known."""
    weights_from: str = ""
    """How the bytes of a config.json's weights are known: counted, or from its index."""
    weights_unknown: str = ""
    """Why they are not known, if they are not."""
    max_model_len_limit: int | None = None
    """The most tokens that a caller may set, or `None` for a config.json without a length."""
    num_drafter_layers: int = 0
    """Layers with KV that the model brings for its own drafts, whether they are used or not."""
    kv_cache_dtype: str = "auto"
    """The form of keys and values that a quantized config.json asks for: auto or fp8."""


def model_names() -> list[str]:
    """Return the names that `load_model` takes."""
    return list(_read())


def load_model(
    name: str,
    block_size: int = 16,
    tensor_parallel_size: int = 1,
    num_speculative_tokens: int = 0,
    gdn_prefill_backend: str = "flashinfer",
    drafts_itself: bool = True,
) -> Model:
    """Return the model of that name, or of a config.json at that path, as one of several cards keeps it.

    Args:
        name: of a built-in model, or the path of a file that ends in `.json`.
        block_size: tokens per block, rounded up to a multiple of 64 for sparse layers.
        tensor_parallel_size: cards that the model is cut over.
        num_speculative_tokens: drafts per step, each of which makes a state larger.
        gdn_prefill_backend: the kernel for the prefill of gated delta nets. See `GDN_PREFILL_BACKENDS`.
        drafts_itself: drafts come from the model's own layers for them, which keep KV, and not from elsewhere.

    Raises `ConfigError` for an unknown name, with the choices, for a file without the size of its model's KV, and for
    heads that the cards cannot share.
    """
    values = read_config(Path(name)) if name.endswith(".json") else _find(name, _read())
    kinds = [kind for kind in _kinds(values) if kind != "none"]
    counts = dict.fromkeys(kinds, 0)
    if "indexer" in counts:
        block_size = -(-block_size // SPARSE_BLOCK) * SPARSE_BLOCK
    names = []
    for kind in kinds:
        names.append(f"{kind}.{counts[kind]}")
        counts[kind] += 1
    num_owners = len(kinds) - values.get("num_kv_shared_layers", 0)
    owners = dict(zip(kinds[:num_owners], names[:num_owners], strict=True))  # of each kind, the last before the sharing
    specs = {kind: _attention_spec(kind, values, block_size) for kind in counts if kind != "state"}
    if "state" in counts:
        state = StateLayer(**values["state"]).make_spec(
            block_size, tensor_parallel_size, num_speculative_tokens, gdn_prefill_backend
        )
        if not specs:  # vLLM caches no prefixes of states alone: one block, as long as the longest request
            state = replace(state, block_size=values["max_model_len"], num_prefill_checkpoint_blocks=0)
        specs["state"] = state
    owned = {names[i]: specs[kinds[i]] for i in range(num_owners)}
    if "layer_kv_heads" in values:
        heads = zip(owned.items(), values["layer_kv_heads"], strict=True)
        owned = {name: replace(spec, num_kv_heads=number) for (name, spec), number in heads}  # type: ignore[call-arg]
    drafter = values.get("drafter", [])
    if drafts_itself and num_speculative_tokens:
        owned |= {f"drafter.{number}": specs[kind] for number, kind in enumerate(drafter)}
    return Model(
        values["title"],
        values["source"],
        values["max_model_len"],
        on_one_card(owned, tensor_parallel_size),
        {names[i]: owners[kinds[i]] for i in range(num_owners, len(kinds))},
        values.get("num_heads"),
        *_weights(values),
        values.get("weights_from", ""),
        values.get("weights_unknown", ""),
        values.get("max_model_len_limit", values["max_model_len"]),
        len(drafter) - drafter.count("indexer"),
        values.get("kv_cache_dtype", "auto"),
    )


def _find(name: str, models: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Return the model of this name, as people type it. Raises `ConfigError` with the names most like an unknown one.

    qwen-3.5-35b-a3b   Qwen3.5-35B-A3B   Qwen/Qwen3.5-35B-A3B   Qwen/Qwen3.6-35B-A3B   the same
    """
    for own, values in models.items():
        files = re.findall(r"config\.json of (\S+) on Hugging Face", values["source"])
        if _plain(name) in map(_plain, (own, *files, *values.get("also", ()))):
            return values
    raise ConfigError(_unknown(name, list(models)))


def _plain(name: str) -> str:
    """Return a name without its owner, its capitals, its signs, and the words of a variant with the same shape."""
    words = re.split(r"[^a-z0-9]+", name.lower().rpartition("/")[2])
    return "".join(word for word in words if word not in SAME_SHAPE)


def _unknown(name: str, names: list[str]) -> str:
    """Return the error for an unknown name: the names most like it, or all names."""
    alike = get_close_matches(name.lower().rpartition("/")[2], names, n=3, cutoff=0.5)
    if alike:
        return f"unknown model {shown(name)}; did you mean {' or '.join(alike)}? Or give the path of its config.json"
    known = listed(names, "mini-kv plan --list")
    return f"unknown model {shown(name)}; choose from {known}, or give the path of a config.json"


def _weights(values: dict[str, Any]) -> tuple[float | None, float | None, float | None]:
    """Return the parameters that a token uses, the bytes of all weights, and the share of them that a token uses."""
    total = values.get("num_parameters")
    if total is None:
        return None, values.get("weight_bytes"), values.get("active_share")
    active = values.get("num_active_parameters", total)
    return active, values.get("weight_bytes", BYTES * total), active / total


def _kinds(values: dict[str, Any]) -> list[str]:
    """Return the kind of each layer. In models.toml `layers` is repeated until there are `num_layers`."""
    layers: list[str] = values["layers"]
    return list(islice(cycle(layers), values.get("num_layers", len(layers))))


def _attention_spec(kind: str, values: dict[str, Any], block_size: int) -> KVCacheSpec:
    if "index_size" in values:
        return compressed.make_spec(kind, values, block_size)
    shape = (block_size, values["num_kv_heads"], values["head_size"], BYTES)
    size_v = values.get("head_size_v")
    if kind == "full":  # of which Gemma 4 and MiMo have fewer heads, in Gemma 4 each of them larger
        heads, size = values.get("full_num_kv_heads", shape[1]), values.get("full_head_size", shape[2])
        return FullAttentionSpec(block_size, heads, size, BYTES, head_size_v=values.get("full_head_size_v", size_v))
    if kind == "window":
        return SlidingWindowSpec(*shape, sliding_window=values["reach"], head_size_v=size_v)
    if kind == "chunks":
        return ChunkedLocalAttentionSpec(*shape, attention_chunk_size=values["reach"])
    if kind == "indexer":
        return MLAAttentionSpec(block_size, 1, values["index_bytes"], dtype_bytes=1, cache_role="indexer")
    return MLAAttentionSpec(*shape)


def _read() -> dict[str, dict[str, Any]]:
    return tomllib.loads(MODELS.read_text(encoding="utf-8"))

"""The KV of DeepSeek-V4's layers: a window, vectors for several tokens each, and tokens not yet compressed.

    kept of a layer      tokens per vector    tokens per block    reach
    window                       1                   64            128     every layer
    latent-4                     4                  256            all     layers of ratio 4
    indexer-4                    4                  256            all     "
    pending-4                    1                    4              8     "
    index-pending-4              1                    4              8     "
    latent-128                 128                  256            all     layers of ratio 128
    pending-128                  1                    8            128     "

Pages are rounded up to a multiple of 576 bytes. With several cards, each keeps all of it.
Source: vLLM 0.33, models/deepseek_v4 (attention.py, compressor.py), v1/attention/backends/mla/sparse_swa.py.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from mini_kv.core.errors import ConfigError
from mini_kv.core.kv_cache_interface import AttentionSpec, MLAAttentionSpec, SlidingWindowMLASpec

KINDS = {
    0: ["window"],
    4: ["indexer-4", "index-pending-4", "window", "latent-4", "pending-4"],
    128: ["window", "latent-128", "pending-128"],
}
"""The caches of a layer, by its ratio, in the order in which vLLM creates them."""
BLOCK = 256
"""Tokens per block of compressed vectors. vLLM aligns longer blocks in a way that is not modelled here."""
VECTOR_BYTES = 584
"""Bytes of a latent vector: 448 numbers in 8 bits, 64 rotated ones in 16 bits, and scales."""
_PAGE_BYTES = 576


def kinds_of_layers(ratios: Sequence[int]) -> list[str]:
    """Return the caches of all layers, in order."""
    return [kind for ratio in ratios for kind in KINDS[ratio]]


def make_spec(kind: str, sizes: Mapping[str, Any], block_size: int) -> AttentionSpec:
    """Return the spec of one cache of a layer.

    Args:
        kind: the cache, as in `KINDS`.
        sizes: elements of a vector, `head_size`, elements and bytes of an indexer's vector, `index_size` and
            `index_bytes`, and the window, `reach`.
        block_size: tokens per block that the caller asked for.

    Raises `ConfigError` if that is more than `BLOCK`.
    """
    if block_size > BLOCK:
        raise ConfigError(f"block_size is {block_size}: compressed layers are planned in blocks of {BLOCK} tokens")
    spec: AttentionSpec
    _, _, ratio = kind.rpartition("-")
    if kind == "window":
        spec = SlidingWindowMLASpec(64, 1, VECTOR_BYTES, 1, None, "fp8", sliding_window=sizes["reach"])
    elif "pending" in kind:  # as values and weights in 32 bits; at ratio 4, vectors overlap and take twice as much
        overlap = 2 if ratio == "4" else 1
        elements = 2 * overlap * sizes["index_size" if kind.startswith("index") else "head_size"]
        window = overlap * int(ratio)
        spec = SlidingWindowMLASpec(8 // overlap, head_size=elements, dtype_bytes=4, sliding_window=window)
    else:
        is_indexer = kind.startswith("index")
        size = sizes["index_bytes"] if is_indexer else VECTOR_BYTES
        role, mode = ("indexer", "none") if is_indexer else ("sparse", "fp8")
        spec = MLAAttentionSpec(BLOCK, 1, size, 1, None, mode, cache_role=role, tokens_per_state=int(ratio))
    return replace(spec, page_size_padded=-(-spec.real_page_size_bytes // _PAGE_BYTES) * _PAGE_BYTES)

"""Checks of the arguments of `paged_attention`: shapes, dtypes and devices, never values."""

import torch
from torch import Tensor

from mini_kv.attention.kv_cache import PagedKVCache
from mini_kv.attention.metadata import AttentionMetadata
from mini_kv.attention.options import AttentionOptions
from mini_kv.core.errors import ConfigError

_QUERY_DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


def check_attention(
    query: Tensor,
    kv_cache: PagedKVCache,
    metadata: AttentionMetadata,
    options: AttentionOptions,
    out: Tensor | None,
) -> None:
    """Raise `ConfigError` unless the arguments of `paged_attention` belong together."""
    _check_query(query, kv_cache)
    if options.decay is not None:
        raise ConfigError("a layer with a decay keeps a state, and no keys and values: see paged_linear_attention")
    if options.sinks is not None and options.sinks.shape != query.shape[1:2]:
        num_heads = query.shape[1]
        raise ConfigError(f"sinks is {list(options.sinks.shape)}; it must be [num_heads], here [{num_heads}]")
    if out is not None and (out.shape, out.dtype, out.device) != (query.shape, query.dtype, query.device):
        raise ConfigError(f"out is {list(out.shape)}, {out.dtype}, {out.device}; it must be like query")
    _check_metadata(query, kv_cache, metadata)


def _check_query(query: Tensor, kv_cache: PagedKVCache) -> None:
    if query.dim() != 3:
        raise ConfigError(f"query is {list(query.shape)}; it must be [num_tokens, num_heads, head_size]")
    _, num_heads, head_size = query.shape
    if head_size != kv_cache.head_size:
        raise ConfigError(f"query has head size {head_size}, the cache {kv_cache.head_size}")
    if num_heads % kv_cache.num_kv_heads != 0:
        raise ConfigError(f"{num_heads} heads cannot share {kv_cache.num_kv_heads} heads of keys evenly")
    if query.dtype not in _QUERY_DTYPES:
        raise ConfigError(f"query is {query.dtype}; it must be one of {', '.join(map(str, _QUERY_DTYPES))}")
    if query.dtype != kv_cache.data.dtype and not kv_cache.is_quantized:
        raise ConfigError(f"query is {query.dtype}, the cache {kv_cache.data.dtype}")
    if kv_cache.data.dtype == torch.int8 and kv_cache.scales is None:
        raise ConfigError("an int8 cache needs its scales: make it with allocate_kv_cache")


def _check_metadata(query: Tensor, kv_cache: PagedKVCache, metadata: AttentionMetadata) -> None:
    num_rows, num_columns = metadata.block_tables.shape
    if not metadata.num_reqs == num_rows == len(metadata.query_start_loc) - 1:
        raise ConfigError(
            f"for {metadata.num_reqs} seq_lens there must be as many rows of block_tables (here {num_rows}) and one "
            f"more in query_start_loc (here {len(metadata.query_start_loc)})"
        )
    if metadata.max_seq_len > num_columns * kv_cache.block_size:
        raise ConfigError(
            f"max_seq_len is {metadata.max_seq_len}; a row of block_tables has room for "
            f"{num_columns} blocks of {kv_cache.block_size} tokens"
        )
    for name in ("block_tables", "seq_lens", "query_start_loc"):
        tensor = getattr(metadata, name)
        if tensor.dtype != torch.int32:
            raise ConfigError(f"{name} is {tensor.dtype}; it must be int32")
        if tensor.device != query.device:
            raise ConfigError(f"query is on {query.device}, {name} on {tensor.device}")
    if kv_cache.data.device != query.device:
        raise ConfigError(f"query is on {query.device}, the cache on {kv_cache.data.device}")


def check_write(key: Tensor, value: Tensor, kv_cache: PagedKVCache, slot_mapping: Tensor) -> None:
    """Raise `ConfigError` unless the arguments of `write_kv` belong together."""
    row = (kv_cache.num_kv_heads, kv_cache.head_size)
    if key.shape != value.shape or key.shape[1:] != row or slot_mapping.shape != key.shape[:1]:
        raise ConfigError(
            f"key {list(key.shape)}, value {list(value.shape)} and slot_mapping {list(slot_mapping.shape)} do not fit "
            f"together: the cache takes [num_tokens, {row[0]}, {row[1]}], and one slot per token"
        )
    if slot_mapping.dtype != torch.int64:
        raise ConfigError(f"slot_mapping is {slot_mapping.dtype}; a slot is int64")
    if not key.device == value.device == slot_mapping.device == kv_cache.data.device:
        raise ConfigError("key, value, slot_mapping and the cache are not on one device")

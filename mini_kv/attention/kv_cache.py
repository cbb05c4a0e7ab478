"""The memory of keys and values, and the functions that write, gather and copy them.

The cache of a layer is logically `[num_blocks, 2, block_size, num_kv_heads, head_size]`. One block is one contiguous
range of memory, keys first, then values. So moving a block is one copy.

    block 0                                    block 1
    | K: token 0, 1, 2, 3 | V: token 0, 1, 2, 3 | K: ...          a token's row is num_kv_heads * head_size numbers
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from mini_kv.core.errors import ConfigError

Layout = Literal["NHD", "HND"]
"""Order of tokens (N) and heads (H) within a block in memory, outermost first. The logical shape is always the same."""

_CACHE_DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int8, torch.float8_e4m3fn)


@dataclass(frozen=True, slots=True)
class PagedKVCache:
    """One layer's keys and values in blocks. See `mini_kv.attention.quantized` for the meaning of the scales."""

    data: Tensor
    """`[num_blocks, num_planes, block_size, num_kv_heads, head_size]`, logically.

    Two planes are keys and values. One plane is both (multi-head latent attention).
    """
    scales: Tensor | None = None
    """`[num_blocks, num_planes, block_size, num_kv_heads]`, float32: one per token and KV head, if `data` is int8."""
    tensor_scales: tuple[float, float] = (1.0, 1.0)
    """The scale of all keys and the scale of all values, if `data` is fp8."""

    @property
    def num_blocks(self) -> int:
        """Physical blocks, the null block included."""
        return self.data.shape[0]

    @property
    def num_planes(self) -> int:
        """2 for keys and values, 1 if one plane is both."""
        return self.data.shape[1]

    @property
    def block_size(self) -> int:
        """Tokens per block."""
        return self.data.shape[2]

    @property
    def num_kv_heads(self) -> int:
        """Number of KV heads."""
        return self.data.shape[3]

    @property
    def head_size(self) -> int:
        """Elements per head."""
        return self.data.shape[4]

    @property
    def k_cache(self) -> Tensor:
        """The keys, `[num_blocks, block_size, num_kv_heads, head_size]`, a view."""
        return self.data[:, 0]

    @property
    def v_cache(self) -> Tensor:
        """The values, `[num_blocks, block_size, num_kv_heads, head_size]`, a view."""
        return self.data[:, -1]

    @property
    def is_quantized(self) -> bool:
        """Whether the numbers have 8 bits and need a scale."""
        return self.data.dtype in (torch.int8, torch.float8_e4m3fn)


def allocate_kv_cache(
    num_blocks: int,
    block_size: int,
    num_kv_heads: int,
    head_size: int,
    *,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    layout: Layout = "NHD",
    tensor_scales: tuple[float, float] = (1.0, 1.0),
) -> PagedKVCache:
    """Return an empty cache for one layer. Raises `ConfigError` for a shape or dtype that cannot work."""
    sizes = {"num_blocks": num_blocks, "block_size": block_size, "num_kv_heads": num_kv_heads, "head_size": head_size}
    for name, value in sizes.items():
        if value < 1:
            raise ConfigError(f"{name} is {value}, it must be at least 1")
    if dtype not in _CACHE_DTYPES:
        raise ConfigError(f"dtype is {dtype}; a KV cache holds {', '.join(map(str, _CACHE_DTYPES))}")
    if tensor_scales != (1.0, 1.0) and dtype != torch.float8_e4m3fn:
        raise ConfigError(f"tensor_scales are for float8_e4m3fn; dtype is {dtype}")
    if min(tensor_scales) <= 0:
        raise ConfigError(f"tensor_scales are {tensor_scales}, they must be positive")
    if layout == "NHD":
        data = torch.zeros((num_blocks, 2, block_size, num_kv_heads, head_size), dtype=dtype, device=device)
    elif layout == "HND":
        data = torch.zeros((num_blocks, 2, num_kv_heads, block_size, head_size), dtype=dtype, device=device)
        data = data.transpose(2, 3)
    else:
        raise ConfigError(f"layout is {layout!r}; there are 'NHD' and 'HND'")
    scales = None
    if dtype == torch.int8:
        scales = torch.zeros((num_blocks, 2, block_size, num_kv_heads), dtype=torch.float32, device=device)
    return PagedKVCache(data, scales, tensor_scales)


def reshape_and_cache(key: Tensor, value: Tensor, k_cache: Tensor, v_cache: Tensor, slot_mapping: Tensor) -> None:
    """Write each token's key and value to its slot. A token with slot -1 is not written.

    Args:
        key: `[num_tokens, num_kv_heads, head_size]`.
        value: the same shape.
        k_cache: `[num_blocks, block_size, num_kv_heads, head_size]`, written in place.
        v_cache: the same shape, written in place.
        slot_mapping: `[num_tokens]`, int64.

    Source: vLLM `reshape_and_cache_flash`. Negative slots are left out by hand: as an index, -1 is the last slot.
    """
    block_size = k_cache.shape[1]
    written = slot_mapping >= 0
    slots = slot_mapping[written]
    blocks, offsets = slots // block_size, slots % block_size
    k_cache[blocks, offsets] = key[written].to(k_cache.dtype)
    v_cache[blocks, offsets] = value[written].to(v_cache.dtype)


def gather_kv(cache: Tensor, block_ids: Tensor, num_tokens: int) -> Tensor:
    """Return the first `num_tokens` tokens of a request as one tensor, `[num_tokens, num_kv_heads, head_size]`.

    Args:
        cache: `[num_blocks, block_size, num_kv_heads, head_size]`: the keys, or the values.
        block_ids: the request's row of the block table. Entries after its last block are not read.
        num_tokens: its number of tokens.
    """
    num_blocks = -(-num_tokens // cache.shape[1])
    return cache[block_ids[:num_blocks].to(torch.int64)].flatten(0, 1)[:num_tokens]


def copy_blocks(tensors: Sequence[Tensor], pairs: Sequence[tuple[int, int]]) -> None:
    """Copy whole blocks in every tensor, for copy-on-write before a step.

    All sources are read before any target is written, so a block may be both.

    Args:
        tensors: the memory of all layers, each tensor once, scales included. Blocks are their first dimension.
        pairs: block ids as (source, target): `SchedulerOutput.kv_cache_block_copies`. No target may occur twice.

    Raises:
        ConfigError: an id is not a block of the cache, or a target occurs twice. Nothing has been copied then.
    """
    if not pairs:
        return
    sources, targets = [source for source, _ in pairs], [target for _, target in pairs]
    if len(set(targets)) < len(targets):
        raise ConfigError(f"a block is the target of two copies: {sorted(targets)}")
    num_blocks = min(len(tensor) for tensor in tensors)
    outside = [block_id for pair in pairs for block_id in pair if not 0 <= block_id < num_blocks]
    if outside:
        raise ConfigError(f"no such blocks: {outside}; the cache has 0 to {num_blocks - 1}")
    for tensor in tensors:
        tensor[targets] = tensor[sources]

"""Keys and values in 8 bits.

int8    a scale for each token and KV head: the largest of its numbers becomes 127. The scales are next to the block and
        are copied with it.
fp8     a scale for all keys and one for all values, fixed beforehand. Each number has its own exponent, so the scale
        matters less.
"""

import torch
from torch import Tensor

from mini_kv.attention.kv_cache import PagedKVCache

_INT8_MAX = 127.0
FP8_MAX = 448.0
"""Largest number of float8_e4m3fn."""


def quantize_per_token_head(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return `x` in int8 and its scales. The dequantized numbers differ from `x` by at most half a scale.

    Args:
        x: `[..., head_size]`, with one scale per row.

    Returns:
        int8 of the same shape, -127 to 127 (-128 has no opposite, so it is not used), and float32 scales `[...]`, 0.0
        for a row of zeros.
    """
    x = x.float()
    scales = x.abs().amax(dim=-1) / _INT8_MAX
    divisor = torch.where(scales == 0, torch.ones_like(scales), scales)
    return torch.round(x / divisor.unsqueeze(-1)).clamp(-_INT8_MAX, _INT8_MAX).to(torch.int8), scales


def dequantize(x: Tensor, scales: Tensor) -> Tensor:
    """Return the values of int8 `[..., head_size]` with its scales `[...]`, in float32."""
    return x.float() * scales.unsqueeze(-1)


def to_fp8(x: Tensor, scale: float) -> Tensor:
    """Return `x / scale` as float8_e4m3fn. A value that is too large becomes the largest number, not NaN."""
    return (x.float() / scale).clamp(-FP8_MAX, FP8_MAX).to(torch.float8_e4m3fn)


def write_kv_torch(key: Tensor, value: Tensor, kv_cache: PagedKVCache, slot_mapping: Tensor) -> None:
    """Write each token's key and value to its slot, in the cache's own form. A token with slot -1 is not written.

    Args:
        key: `[num_tokens, num_kv_heads, head_size]`.
        value: the same shape. Not used if the cache has one plane.
        kv_cache: written in place, scales included.
        slot_mapping: `[num_tokens]`, int64.
    """
    if len(slot_mapping) == 0:
        return
    if int(slot_mapping.min()) < 0:  # else no mask: to index with one costs more than to look
        written = slot_mapping >= 0
        key, value, slot_mapping = key[written], value[written], slot_mapping[written]
    blocks, offsets = slot_mapping // kv_cache.block_size, slot_mapping % kv_cache.block_size
    for plane, x in enumerate((key, value)[: kv_cache.num_planes]):  # of one plane, the value is the key
        memory = kv_cache.data[:, plane]
        if kv_cache.scales is not None:
            x, kv_cache.scales[blocks, plane, offsets] = quantize_per_token_head(x)
        elif memory.dtype == torch.float8_e4m3fn:
            x = to_fp8(x, kv_cache.tensor_scales[plane])
        memory[blocks, offsets] = x.to(memory.dtype)


def quantize_per_tensor(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return `x` in int8 and its one scale. One large number anywhere makes all others less precise."""
    flat, scales = quantize_per_token_head(x.reshape(1, -1))
    return flat.view(x.shape), scales[0].expand(x.shape[:-1])


def quantize_per_channel(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return `x` in int8 and a scale for each channel of each head, over all tokens.

    KIVI does this with keys, because their outliers are in the same few channels. It needs all tokens first, so it
    suits a full block, not a token that is written alone.

    Args:
        x: `[num_tokens, num_kv_heads, head_size]`.

    Returns:
        int8 of the same shape, and float32 scales `[num_kv_heads, head_size]`, to be multiplied with.
    """
    by_channel, scales = quantize_per_token_head(x.permute(1, 2, 0))
    return by_channel.permute(2, 0, 1), scales


def dequantize_rows(kv_cache: PagedKVCache, blocks: Tensor, offsets: Tensor) -> tuple[Tensor, Tensor]:
    """Return keys and values of these slots as float64, `[num_slots, num_kv_heads, head_size]` each."""
    planes = []
    for plane in range(kv_cache.num_planes):
        x = kv_cache.data[blocks, plane, offsets].double()
        if kv_cache.scales is not None:
            x = x * kv_cache.scales[blocks, plane, offsets].double().unsqueeze(-1)
        elif kv_cache.data.dtype == torch.float8_e4m3fn:
            x = x * kv_cache.tensor_scales[plane]
        planes.append(x)
    return planes[0], planes[-1]

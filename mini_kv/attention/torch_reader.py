"""Keys and values copied out of their blocks, for attention with plain torch operations.

The cache is seen as rows. A row is copied as one piece. The keys of a block are followed by its values.

    NHD     a row is a block's keys, or its values:             row 2 * block_id + plane
    HND     a row is one head of a block's keys or values:      row (2 * block_id + plane) * num_kv_heads + head

In a cache of one plane the factor 2 is absent, and keys and values are the same rows.
"""

import math
import threading

import torch
from torch import Tensor

from mini_kv.attention.kv_cache import PagedKVCache


class Workspace(threading.local):
    """Memory that the calls of one thread reuse, because allocating new memory costs more than the attention."""

    def __init__(self) -> None:
        """Start without memory."""
        self._memory: dict[tuple[str, torch.dtype], Tensor] = {}

    def take(self, name: str, shape: tuple[int, ...], like: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """Return an uninitialized tensor of this shape. The next call with the same name returns the same memory."""
        dtype = dtype or like.dtype
        if like.device.type != "cpu":
            return like.new_empty(shape, dtype=dtype)  # torch keeps a GPU's memory by itself
        key, num_elements = (name, dtype), math.prod(shape)
        if key not in self._memory or self._memory[key].numel() < num_elements:
            with torch.inference_mode(False):  # else calls outside inference mode could not write to it later
                self._memory[key] = torch.empty(num_elements, dtype=dtype)
        return self._memory[key][:num_elements].view(shape)


workspace = Workspace()
"""The workspace of all calls. Each thread has memory of its own."""


class BlockReader:
    """Copies blocks in few operations, because each costs microseconds. The next copy overwrites the last one."""

    def __init__(self, kv_cache: PagedKVCache, block_tables: Tensor) -> None:
        """View the cache as rows. `block_tables` is `[num_reqs, max_num_blocks]`."""
        self.kv_cache = kv_cache
        self.block_tables = block_tables
        data = kv_cache.data
        # Scales, or padding, may lie between blocks.
        self._is_nhd = data[0, 0].is_contiguous() and data.stride(0) == kv_cache.num_planes * data.stride(1)
        self.rows: Tensor
        """The cache as rows, which `row_ids` index: `[num_rows, row_size]`, a view."""
        if self._is_nhd:
            self.rows = kv_cache.data.flatten(0, 1).flatten(1)
        else:  # padded blocks come here, too: no view has their rows, so all of the cache is copied. Right, and slow
            self.rows = kv_cache.data.transpose(2, 3).flatten(0, 2).flatten(1)

    def row_ids(self, block_ids: Tensor, planes: tuple[int, ...] = (0, 1)) -> Tensor:
        """Return row ids of blocks `[..., num_blocks]`: `[..., len(planes), num_blocks]` (HND: heads before blocks).

        Plane 0 is the keys, plane 1 the values.
        """
        num_planes = self.kv_cache.num_planes
        keys = num_planes * block_ids.to(torch.int64)
        rows = torch.stack([keys + plane % num_planes for plane in planes], dim=-2)
        if self._is_nhd:
            return rows
        num_kv_heads = self.kv_cache.num_kv_heads
        heads = torch.arange(num_kv_heads, device=rows.device).unsqueeze(1)
        return num_kv_heads * rows.unsqueeze(-2) + heads

    def copy(self, row_ids: Tensor) -> Tensor:
        """Return rows `[n, num_planes, num_blocks]` as `[n, num_planes, heads, tokens, head_size]`, in their dtype."""
        buffer, x = self.buffer(row_ids.shape)
        torch.index_select(self.rows, 0, row_ids.flatten(), out=buffer)
        return x

    def dequantized(self, row_ids: Tensor) -> Tensor:
        """Return the same for rows of 8 bits, as dequantized numbers in float32."""
        narrow, _ = self.buffer(row_ids.shape)
        wide, x = self.buffer(row_ids.shape, torch.float32)
        wide.copy_(torch.index_select(self.rows, 0, row_ids.flatten(), out=narrow))
        return x.mul_(self.scales(row_ids).unsqueeze(-1))

    def scales(self, row_ids: Tensor) -> Tensor:
        """Return the factors of rows of 8 bits, `[n, num_planes, heads, tokens]`, for fp8 `[n, num_planes, 1, 1]`."""
        if not self._is_nhd:
            row_ids = row_ids[:, :, 0] // self.kv_cache.num_kv_heads
        if self.kv_cache.scales is None:
            planes = row_ids[:, :, :1] % self.kv_cache.num_planes
            return torch.tensor(self.kv_cache.tensor_scales, device=row_ids.device)[planes, None]
        found = self.kv_cache.scales.flatten(0, 1)[row_ids]
        return found.flatten(2, 3).transpose(2, 3).contiguous()

    def read(self, request: int, begin: int, end: int, planes: tuple[int, ...] = (0, 1)) -> Tensor:
        """Return these positions of a request, `[len(planes), heads, tokens, head_size]`. 8 bits become float32."""
        block_size = self.kv_cache.block_size
        first_block, end_block = begin // block_size, -(-end // block_size)
        row_ids = self.row_ids(self.block_tables[request : request + 1, first_block:end_block], planes)
        x = self.dequantized(row_ids) if self.kv_cache.is_quantized else self.copy(row_ids)
        return x[0, :, :, begin - first_block * block_size : end - first_block * block_size]

    def buffer(self, shape: torch.Size, dtype: torch.dtype | None = None) -> tuple[Tensor, Tensor]:
        """Return memory for rows of this shape in two views: the rows to copy to, and the shape that `copy` returns.

        In the cache's own dtype, unless another is given.
        """
        num_kv_heads, head_size = self.kv_cache.num_kv_heads, self.kv_cache.head_size
        buffer = workspace.take("rows", (shape.numel(), self.rows.shape[1]), self.rows, dtype)
        if self._is_nhd:
            return buffer, buffer.view(*shape[:2], -1, num_kv_heads, head_size).transpose(2, 3)
        return buffer, buffer.view(*shape[:2], num_kv_heads, -1, head_size)

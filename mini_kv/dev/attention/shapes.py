"""Batches for measurements, with the least bytes and floating-point operations that they need."""

from dataclasses import dataclass

import torch
from torch import Tensor

from mini_kv.attention.kv_cache import Layout, PagedKVCache, allocate_kv_cache
from mini_kv.attention.metadata import AttentionMetadata, build_metadata
from mini_kv.attention.quantized import write_kv_torch


@dataclass(frozen=True, slots=True)
class Shape:
    """A batch of one layer."""

    query_lens: tuple[int, ...]
    seq_lens: tuple[int, ...]
    num_heads: int = 32
    num_kv_heads: int = 8
    head_size: int = 128
    block_size: int = 16
    dtype: torch.dtype = torch.bfloat16
    cache_dtype: torch.dtype | None = None
    """Dtype of the cache. `None`: as `dtype`."""
    layout: Layout = "NHD"

    @property
    def is_decode(self) -> bool:
        """Whether every request has one new token."""
        return set(self.query_lens) == {1}

    @property
    def is_even(self) -> bool:
        """Whether all requests have equal lengths, so that their keys form one contiguous tensor without padding."""
        return len(set(self.query_lens)) == len(set(self.seq_lens)) == 1

    @property
    def kv_bytes(self) -> int:
        """Bytes of the present keys and values, with their scales."""
        numbers = 2 * self.num_kv_heads * sum(self.seq_lens)
        cache_dtype = self.cache_dtype or self.dtype
        scales = 4 * numbers if cache_dtype == torch.int8 else 0
        return numbers * self.head_size * cache_dtype.itemsize + scales

    @property
    def bytes(self) -> int:
        """Bytes that any implementation moves: keys and values, queries and results, the block table."""
        queries = 2 * sum(self.query_lens) * self.num_heads * self.head_size * self.dtype.itemsize
        return self.kv_bytes + queries + 4 * sum(-(-n // self.block_size) for n in self.seq_lens)

    @property
    def flops(self) -> int:
        """Operations of both products, over the pairs that the causal mask leaves."""
        pairs = sum(q * n - q * (q - 1) // 2 for q, n in zip(self.query_lens, self.seq_lens, strict=True))
        return 4 * self.num_heads * self.head_size * pairs


def decode(batch: int, context: int, **settings: object) -> Shape:
    """Return a batch of equal requests with one new token each."""
    return Shape((1,) * batch, (context,) * batch, **settings)  # type: ignore[arg-type]


def prefill(batch: int, new: int, context: int = 0, **settings: object) -> Shape:
    """Return a batch of equal requests with `new` tokens each, on `context` that are cached."""
    return Shape((new,) * batch, (context + new,) * batch, **settings)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class Inputs:
    """One set of paged tensors of a shape. For equal requests there is a contiguous set, too, with other numbers."""

    shape: Shape
    query: Tensor
    """`[num_tokens, num_heads, head_size]`."""
    kv_cache: PagedKVCache
    metadata: AttentionMetadata
    out: Tensor
    keys: Tensor | None
    """`[batch, num_kv_heads, seq_len, head_size]`, contiguous."""
    values: Tensor | None

    @property
    def padded_query(self) -> Tensor:
        """The queries as torch's attention takes them, `[batch, num_heads, query_len, head_size]`."""
        batch = len(self.shape.query_lens)
        return self.query.view(batch, -1, *self.query.shape[1:]).transpose(1, 2)


def make_inputs(shape: Shape, device: torch.device, seed: int, *, with_contiguous: bool) -> Inputs:
    """Return random tensors of a shape, with blocks in random order."""
    generator = torch.Generator(device).manual_seed(seed)
    num_blocks = [-(-n // shape.block_size) for n in shape.seq_lens]
    ids = torch.randperm(sum(num_blocks), generator=torch.Generator().manual_seed(seed)) + 1
    tables = torch.zeros(len(num_blocks), max(num_blocks), dtype=torch.int32)
    for row, part in enumerate(ids.split(num_blocks)):
        tables[row, : len(part)] = part
    kv_cache = allocate_kv_cache(
        sum(num_blocks) + 1,
        shape.block_size,
        shape.num_kv_heads,
        shape.head_size,
        dtype=shape.cache_dtype or shape.dtype,
        device=device,
        layout=shape.layout,
    )
    _fill(kv_cache, shape.dtype, generator)

    def random(*sizes: int) -> Tensor:
        return torch.randn(sizes, generator=generator, device=device, dtype=torch.float32).to(shape.dtype)

    query = random(sum(shape.query_lens), shape.num_heads, shape.head_size)
    contiguous: list[Tensor | None] = [None, None]
    if with_contiguous and shape.is_even:
        sizes = (len(num_blocks), shape.num_kv_heads, shape.seq_lens[0], shape.head_size)
        contiguous = [random(*sizes), random(*sizes)]
    metadata = build_metadata(shape.query_lens, shape.seq_lens, tables.to(device), shape.block_size)
    return Inputs(shape, query, kv_cache, metadata, torch.zeros_like(query), contiguous[0], contiguous[1])


def _fill(kv_cache: PagedKVCache, dtype: torch.dtype, generator: torch.Generator) -> None:
    """Write random keys and values to every slot, in parts, because float32 needs more memory than the cache."""
    num_slots, device = kv_cache.num_blocks * kv_cache.block_size, kv_cache.data.device
    for begin in range(0, num_slots, 65536):
        slots = torch.arange(begin, min(begin + 65536, num_slots), device=device)
        sizes = (len(slots), kv_cache.num_kv_heads, kv_cache.head_size)
        key, value = (torch.randn(sizes, generator=generator, device=device).to(dtype) for _ in range(2))
        write_kv_torch(key, value, kv_cache, slots)

"""Random batches of attention over blocks, and what must come out: dense attention in float64, without blocks."""

import math
import random
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from mini_kv.attention.kv_cache import PagedKVCache, allocate_kv_cache
from mini_kv.attention.metadata import AttentionMetadata, build_metadata
from mini_kv.attention.options import AttentionOptions
from mini_kv.attention.quantized import dequantize_rows, write_kv_torch

GARBAGE = 1e4
"""Finite, and far larger than any score: what stands behind the last token of a half-filled block."""


@dataclass
class Problem:
    """A batch whose keys and values lie in scrambled blocks, with poison wherever nothing may be read."""

    query: Tensor
    """`[num_tokens, num_heads, head_size]`."""
    kv_cache: PagedKVCache
    metadata: AttentionMetadata
    options: AttentionOptions
    query_lens: list[int]
    keys: list[Tensor]
    """Of each request, `[seq_len, num_kv_heads, head_size]`, float64: the numbers that the cache stands for."""
    values: list[Tensor]


def make_problem(
    query_lens,
    seq_lens,
    *,
    num_heads=4,
    num_kv_heads=2,
    head_size=16,
    block_size=4,
    dtype=torch.float32,
    cache_dtype=None,
    layout="NHD",
    options=None,
    tensor_scales=(1.0, 1.0),
    num_planes=2,
    seed=0,
):
    """Return such a batch. Blocks that no query may see are NaN all over; so is block 0, the null block."""
    options = options or AttentionOptions()
    generator = torch.Generator().manual_seed(seed)
    num_blocks_each = [-(-seq_len // block_size) for seq_len in seq_lens]
    kv_cache = allocate_kv_cache(
        sum(num_blocks_each) + 3,
        block_size,
        num_kv_heads,
        head_size,
        dtype=cache_dtype or dtype,
        layout=layout,
        tensor_scales=tensor_scales,
    )
    if num_planes == 1:  # as multi-head latent attention has it; a clone of half of each block lies densely
        scales = None if kv_cache.scales is None else kv_cache.scales[:, :1].clone()
        kv_cache = replace(kv_cache, data=kv_cache.data[:, :1].clone(), scales=scales)
    poison(kv_cache, slice(None), torch.nan)
    ids = list(range(1, kv_cache.num_blocks))
    random.Random(seed).shuffle(ids)
    nan_block = ids.pop()
    block_tables = torch.full((len(seq_lens), max(num_blocks_each, default=0) + 1), nan_block, dtype=torch.int32)
    keys, values = [], []
    for row, (query_len, seq_len) in enumerate(zip(query_lens, seq_lens, strict=True)):
        blocks = [ids.pop() for _ in range(num_blocks_each[row])]
        key, value = (
            torch.randn((seq_len, num_kv_heads, head_size), generator=generator).to(dtype) for _ in ("key", "value")
        )
        slots = [blocks[p // block_size] * block_size + p % block_size for p in range(seq_len)]
        poison(kv_cache, blocks[-1:], GARBAGE)
        write_kv_torch(key, value, kv_cache, torch.tensor(slots, dtype=torch.int64))
        where = torch.tensor(blocks, dtype=torch.int64).repeat_interleave(block_size)[:seq_len]
        key, value = dequantize_rows(kv_cache, where, torch.arange(seq_len) % block_size)
        keys.append(key)
        values.append(value)
        first = options.first_visible(seq_len - query_len)
        for index in range(first // block_size):  # the window has moved past these: another request may have them
            poison(kv_cache, [blocks[index]], torch.nan)
            blocks[index] = 0
        block_tables[row, : len(blocks)] = torch.tensor(blocks, dtype=torch.int32)
    query = torch.randn((sum(query_lens), num_heads, head_size), generator=generator).to(dtype)
    metadata = build_metadata(query_lens, seq_lens, block_tables, block_size)
    return Problem(query, kv_cache, metadata, options, list(query_lens), keys, values)


def poison(kv_cache, blocks, number):
    """Fill blocks with a number, or with the nearest that their dtype has."""
    if kv_cache.scales is not None:
        kv_cache.data[blocks] = 127
        kv_cache.scales[blocks] = number
    else:
        largest = torch.finfo(kv_cache.data.dtype).max
        kv_cache.data[blocks] = torch.tensor(number, dtype=torch.float64).clamp(max=largest).to(kv_cache.data.dtype)


def dense(problem):
    """Return the result and the log-sum-exp in float64, by a mask over all pairs of tokens and plain softmax."""
    query, options = problem.query.double(), problem.options
    num_heads, head_size = query.shape[1:]
    outs, lses = [query.new_zeros(0, num_heads, head_size)], [query.new_zeros(0, num_heads)]
    start = 0
    for query_len, keys, values in zip(problem.query_lens, problem.keys, problem.values, strict=True):
        seq_len, num_kv_heads, _ = keys.shape
        keys, values = (x.repeat_interleave(num_heads // num_kv_heads, dim=1) for x in (keys, values))
        scores = torch.einsum("qhd,khd->hqk", query[start : start + query_len], keys)
        scores *= options.scale if options.scale is not None else head_size**-0.5
        if options.logits_soft_cap:
            scores = options.logits_soft_cap * torch.tanh(scores / options.logits_soft_cap)
        visible = torch.zeros(query_len, seq_len, dtype=torch.bool)
        for i in range(query_len):
            for j in range(seq_len):
                visible[i, j] = is_visible(seq_len - query_len + i, j, options)
        scores = scores.masked_fill(~visible, -torch.inf)
        if options.sinks is not None:
            sinks = options.sinks.double().view(-1, 1, 1).expand(-1, query_len, 1)
            scores = torch.cat([scores, sinks], dim=2)
        weights = torch.softmax(scores, dim=2)[:, :, :seq_len]
        outs.append(torch.einsum("hqk,khd->qhd", weights, values))
        lses.append(torch.logsumexp(scores, dim=2).T)
        start += query_len
    return torch.cat(outs), torch.cat(lses)


def is_visible(query, key, options):
    """Return whether the token at position `query` sees the one at `key`: the definition."""
    if key > query:
        return False
    if options.sliding_window is not None and query - key >= options.sliding_window:
        return False
    return options.chunk_size is None or query // options.chunk_size == key // options.chunk_size


def relative_error(found, expected):
    """Return the norm of the difference by the norm of what was expected; NaN is infinitely wrong."""
    difference = (found.double() - expected).norm()
    error = float(difference / expected.norm()) if expected.numel() else float(difference)
    return float("inf") if math.isnan(error) else error

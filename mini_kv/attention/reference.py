"""Attention over blocks, the obvious way: one request, one head, one query at a time. The oracle of all the others."""

import torch
from torch import Tensor

from mini_kv.attention.kv_cache import PagedKVCache
from mini_kv.attention.metadata import AttentionMetadata
from mini_kv.attention.options import AttentionOptions
from mini_kv.attention.quantized import dequantize_rows


def paged_attention_reference(
    query: Tensor, kv_cache: PagedKVCache, metadata: AttentionMetadata, options: AttentionOptions
) -> tuple[Tensor, Tensor]:
    """Return what each query makes of the keys and values that it sees, and its log-sum-exp; computed in float64.

    Reads exactly the visible slots and nothing else, so whatever lies in other blocks, or behind the end of a
    half-filled one, may be anything.

    Args:
        query: `[num_tokens, num_heads, head_size]`.
        kv_cache: holds all keys and values of the batch, the new ones included.
        metadata: whose queries these are.
        options: the kind of attention.

    Returns:
        `[num_tokens, num_heads, head_size]` in the query's dtype, `[num_tokens, num_heads]` in float64. A head of the
        queries reads the head of the keys with its number divided by how many share one: 0 1 2 3 read 0 0 1 1.

    Costs O(num_tokens * num_heads) Python steps.
    """
    num_tokens, num_heads, head_size = query.shape
    heads_per_kv_head = num_heads // kv_cache.num_kv_heads
    out = torch.zeros((num_tokens, num_heads, head_size), dtype=torch.float64)
    lse = torch.full((num_tokens, num_heads), -torch.inf, dtype=torch.float64)
    starts = metadata.query_start_loc.tolist()
    for request, seq_len in enumerate(metadata.seq_lens.tolist()):
        query_len = starts[request + 1] - starts[request]
        for i in range(query_len):
            position = seq_len - query_len + i
            first = options.first_visible(position)
            slots = [
                (int(metadata.block_tables[request, p // kv_cache.block_size]), p % kv_cache.block_size)
                for p in range(first, position + 1)
            ]
            blocks, offsets = (torch.tensor(column) for column in zip(*slots, strict=True))
            keys, values = dequantize_rows(kv_cache, blocks, offsets)  # [visible, num_kv_heads, head_size], float64
            token = starts[request] + i
            for head in range(num_heads):
                kv_head = head // heads_per_kv_head
                out[token, head], lse[token, head] = _attend(
                    query[token, head].double(), keys[:, kv_head], values[:, kv_head], head, options
                )
    return out.to(query.dtype), lse


def _attend(q: Tensor, keys: Tensor, values: Tensor, head: int, options: AttentionOptions) -> tuple[Tensor, Tensor]:
    """Return one head's result for one query, `[head_size]`, and its log-sum-exp."""
    scores = keys @ q * options.scale_for(len(q))
    if options.logits_soft_cap is not None:
        scores = options.logits_soft_cap * torch.tanh(scores / options.logits_soft_cap)
    lse = torch.logsumexp(scores, dim=0)
    if options.sinks is not None:
        lse = torch.logaddexp(lse, options.sinks[head].double())
    return torch.exp(scores - lse) @ values, lse

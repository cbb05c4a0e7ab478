"""Attention over blocks, one request, one query, one head at a time. Tests compare every other backend with it."""

import torch
from torch import Tensor

from mini_kv.attention.kv_cache import PagedKVCache
from mini_kv.attention.metadata import AttentionMetadata
from mini_kv.attention.options import AttentionOptions
from mini_kv.attention.quantized import dequantize_rows


def obstacle(query: Tensor, kv_cache: PagedKVCache, options: AttentionOptions) -> str | None:
    """Return None: this backend supports every call."""
    return None


def attend(
    query: Tensor, kv_cache: PagedKVCache, metadata: AttentionMetadata, options: AttentionOptions, out: Tensor
) -> Tensor:
    """Write each query's attention over the keys and values that it sees to `out`. Return the log-sum-exp. In float64.

    Reads only the visible slots. So other blocks, and slots after a request's last token, may have any content.
    Arguments as in `paged_attention`. Costs O(num_tokens * num_heads) Python steps.
    """
    num_tokens, num_heads, _ = query.shape
    heads_per_kv_head = num_heads // kv_cache.num_kv_heads
    lse = query.new_full((num_tokens, num_heads), -torch.inf, dtype=torch.float32)
    starts = metadata.query_start_loc.tolist()
    for request, seq_len in enumerate(metadata.seq_lens.tolist()):
        query_len = starts[request + 1] - starts[request]
        for i in range(query_len):
            token, position = starts[request] + i, seq_len - query_len + i
            keys, values = visible_kv(kv_cache, metadata.block_tables[request], position, options)
            for head in range(num_heads):
                kv_head = head // heads_per_kv_head
                out[token, head], lse[token, head] = attend_once(
                    query[token, head].double(), keys[:, kv_head], values[:, kv_head], head, options
                )
    return lse


def visible_kv(
    kv_cache: PagedKVCache, block_ids: Tensor, position: int, options: AttentionOptions
) -> tuple[Tensor, Tensor]:
    """Return the keys and values that a token at `position` sees, `[visible, num_kv_heads, head_size]`, float64."""
    positions = range(options.first_visible(position), position + 1)
    blocks = block_ids[[p // kv_cache.block_size for p in positions]].to(torch.int64)
    offsets = torch.tensor([p % kv_cache.block_size for p in positions], device=blocks.device)
    return dequantize_rows(kv_cache, blocks, offsets)


def attend_once(q: Tensor, keys: Tensor, values: Tensor, head: int, options: AttentionOptions) -> tuple[Tensor, Tensor]:
    """Return one head's result for one query, `[head_size]`, and its log-sum-exp.

    Args:
        q: `[head_size]`, float64.
        keys: `[visible, head_size]`, float64.
        values: the same.
        head: number of the head, for the sinks.
        options: the kind of attention.
    """
    scores = keys @ q * options.scale_for(len(q))
    if options.logits_soft_cap is not None:
        scores = options.logits_soft_cap * torch.tanh(scores / options.logits_soft_cap)
    lse = torch.logsumexp(scores, dim=0)
    if options.sinks is not None:
        lse = torch.logaddexp(lse, options.sinks[head].double())
    return torch.exp(scores - lse) @ values, lse

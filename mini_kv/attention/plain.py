"""Attention over blocks in readable code, as slow reference for `torch_backend`. One request at a time, in float64."""

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
    """Write each query's attention over the visible keys and values to `out`. Return the log-sum-exp. In float64."""
    lse = query.new_full(query.shape[:2], -torch.inf, dtype=torch.float32)  # [num_tokens, num_heads]
    starts = metadata.query_start_loc.tolist()
    with query.device:  # where tensors are made from here on
        for request, seq_len in enumerate(metadata.seq_lens.tolist()):
            new = slice(starts[request], starts[request + 1])
            if new.start < new.stop:
                q, table = query[new], metadata.block_tables[request]
                out[new], lse[new] = attend_to_request(q, kv_cache, table, seq_len, options)
    return lse


def attend_to_request(
    q: Tensor, cache: PagedKVCache, table: Tensor, seq_len: int, options: AttentionOptions
) -> tuple[Tensor, Tensor]:
    """Return result and log-sum-exp of a request's queries `[new, num_heads, head_size]`."""
    new, num_heads, head_size = q.shape
    q_at = torch.arange(seq_len - new, seq_len)  # [new]: positions of the queries
    first_seen = torch.tensor([options.first_visible(p) for p in q_at.tolist()])  # [new]
    k_at = torch.arange(int(first_seen[0]), seq_len)  # [seen]: positions of the keys

    blocks = table[k_at // cache.block_size].long()  # [seen]: the table has the block,
    offsets = k_at % cache.block_size  # [seen]: what is left, the slot
    keys, values = dequantize_rows(cache, blocks, offsets)  # [seen, num_kv_heads, head_size]
    group = num_heads // cache.num_kv_heads
    keys = keys.repeat_interleave(group, dim=1)  # [seen, num_heads, head_size]
    values = values.repeat_interleave(group, dim=1)  # [seen, num_heads, head_size]

    scores = torch.einsum("qhd,khd->hqk", q.double(), keys)  # [num_heads, new, seen]
    scores = scores * options.scale_for(head_size)
    if options.logits_soft_cap is not None:
        scores = options.logits_soft_cap * torch.tanh(scores / options.logits_soft_cap)
    hidden = (k_at < first_seen[:, None]) | (k_at > q_at[:, None])  # [new, seen]
    scores = scores.masked_fill(hidden, -torch.inf)
    if options.sinks is not None:
        sinks = options.sinks[:, None, None].expand(-1, new, 1)  # [num_heads, new, 1]
        scores = torch.cat([scores, sinks], dim=2)  # [num_heads, new, seen + 1]
    weights = torch.softmax(scores, dim=2)[:, :, : len(keys)]  # [num_heads, new, seen]
    out = torch.einsum("hqk,khd->qhd", weights, values)  # [new, num_heads, head_size]
    return out, torch.logsumexp(scores, dim=2).T  # and [new, num_heads]

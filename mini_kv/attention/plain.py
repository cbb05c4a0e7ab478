"""Attention over blocks in a few torch operations: the slow twin of `torch_backend`, written to be read.

Copies each request's keys and values out of their blocks, then attends to all of them at once.
"""

import torch
from torch import Tensor

from mini_kv.attention.kv_cache import PagedKVCache
from mini_kv.attention.metadata import AttentionMetadata
from mini_kv.attention.options import AttentionOptions
from mini_kv.attention.quantized import dequantize_rows


def obstacle(query: Tensor, kv_cache: PagedKVCache, options: AttentionOptions) -> str | None:
    """Return why this backend cannot do the call; there is no such reason."""
    return None


def attend(
    query: Tensor, kv_cache: PagedKVCache, metadata: AttentionMetadata, options: AttentionOptions, out: Tensor
) -> Tensor:
    """Write to `out` what each query makes of the keys and values that it sees; return the log-sum-exp. In float64."""
    lse = query.new_full(query.shape[:2], -torch.inf, dtype=torch.float32)  # [num_tokens, num_heads]
    starts = metadata.query_start_loc.tolist()
    for request, seq_len in enumerate(metadata.seq_lens.tolist()):
        new = slice(starts[request], starts[request + 1])
        if new.start < new.stop:
            q, block_ids = query[new], metadata.block_tables[request]
            out[new], lse[new] = attend_to_request(q, kv_cache, block_ids, seq_len, options)
    return lse


def attend_to_request(
    q: Tensor, kv_cache: PagedKVCache, block_ids: Tensor, seq_len: int, options: AttentionOptions
) -> tuple[Tensor, Tensor]:
    """Return the result of one request's new tokens, and its log-sum-exp; `q` is `[new, num_heads, head_size]`."""
    new, num_heads, head_size = q.shape
    queries_at = torch.arange(seq_len - new, seq_len, device=q.device)  # [new]: the last positions of the request
    first_seen = torch.tensor([options.first_visible(p) for p in queries_at.tolist()], device=q.device)  # [new]
    keys_at = torch.arange(int(first_seen[0]), seq_len, device=q.device)  # [seen]: every position that a query sees

    blocks = block_ids[keys_at // kv_cache.block_size].long()  # [seen]: the table says which block,
    offsets = keys_at % kv_cache.block_size  # [seen]: and the rest which slot of it
    keys, values = dequantize_rows(kv_cache, blocks, offsets)  # [seen, num_kv_heads, head_size], float64
    group = num_heads // kv_cache.num_kv_heads
    keys, values = keys.repeat_interleave(group, 1), values.repeat_interleave(group, 1)  # [seen, num_heads, head_size]

    scores = torch.einsum("qhd,khd->hqk", q.double(), keys) * options.scale_for(head_size)  # [num_heads, new, seen]
    if options.logits_soft_cap is not None:
        scores = options.logits_soft_cap * torch.tanh(scores / options.logits_soft_cap)
    hidden = (keys_at < first_seen[:, None]) | (keys_at > queries_at[:, None])  # [new, seen]: too long ago, or later
    scores = scores.masked_fill(hidden, -torch.inf)
    if options.sinks is not None:
        sinks = options.sinks.double()[:, None, None].expand(-1, new, 1)  # [num_heads, new, 1]: stand for no token
        scores = torch.cat([scores, sinks], dim=2)
    weights = torch.softmax(scores, dim=2)[:, :, : len(keys)]  # [num_heads, new, seen]
    out = torch.einsum("hqk,khd->qhd", weights, values)  # [new, num_heads, head_size]
    return out, torch.logsumexp(scores, dim=2).T  # and [new, num_heads]

"""Attention over blocks with plain torch operations, fast on a CPU.

What makes it fast, in order: no large allocation a call; a request at a time, so nothing is padded; keys and values
copied out of their blocks in chunks that stay in the processor's cache; the heads that share a key as rows of one matrix.

    scores   [head of keys, queries * heads that share it, positions]     filled chunk by chunk, then one softmax
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from mini_kv.attention.kv_cache import PagedKVCache
from mini_kv.attention.metadata import AttentionMetadata
from mini_kv.attention.options import AttentionOptions

CHUNK_TOKENS = 256
"""Tokens copied at a time; measured: smaller costs calls, larger falls out of the cache."""


def paged_attention_torch(
    query: Tensor, kv_cache: PagedKVCache, metadata: AttentionMetadata, options: AttentionOptions
) -> tuple[Tensor, Tensor]:
    """Return what each query makes of the keys and values that it sees, and its log-sum-exp.

    Same arguments and result as `paged_attention_reference`; the log-sum-exp is float32.
    """
    out = torch.zeros_like(query)
    lse = torch.full(query.shape[:2], -torch.inf, dtype=torch.float32, device=query.device)
    starts = metadata.query_start_loc.tolist()
    for request, seq_len in enumerate(metadata.seq_lens.tolist()):
        start, end = starts[request], starts[request + 1]
        if start < end:
            row = metadata.block_tables[request]
            out[start:end], lse[start:end] = _attend(query[start:end], kv_cache, row, seq_len, options)
    return out, lse


def _attend(
    query: Tensor, kv_cache: PagedKVCache, row: Tensor, seq_len: int, options: AttentionOptions
) -> tuple[Tensor, Tensor]:
    """Return the result and the log-sum-exp for one request's queries, `[query_len, num_heads, ...]`."""
    query_len, num_heads, head_size = query.shape
    num_kv_heads = kv_cache.num_kv_heads
    group = num_heads // num_kv_heads
    # [num_kv_heads, query_len * group, head_size]: query i of head h of the group is row i * group + h
    q = query.view(query_len, num_kv_heads, group, head_size).transpose(0, 1).reshape(num_kv_heads, -1, head_size)
    q = (q * options.scale_for(head_size)).to(torch.float32)

    block_size = kv_cache.block_size
    first_block = options.first_visible(seq_len - query_len) // block_size  # what lies before it may be overwritten
    first = first_block * block_size
    block_ids = row[first_block : -(-seq_len // block_size)].to(torch.int64)
    scores = q.new_empty((num_kv_heads, q.shape[1], seq_len - first))
    for begin, keys in _chunks(kv_cache, 0, block_ids, seq_len - first):
        torch.bmm(q, keys.permute(1, 2, 0), out=scores[:, :, begin : begin + len(keys)])
    weights, lse = _softmax(scores, query_len, first, seq_len, options)
    out = torch.zeros_like(q)
    for begin, values in _chunks(kv_cache, 1, block_ids, seq_len - first):
        out.baddbmm_(weights[:, :, begin : begin + len(values)], values.transpose(0, 1))
    out = out.view(num_kv_heads, query_len, group, head_size).transpose(0, 1).reshape(query_len, num_heads, head_size)
    lse = lse.view(num_kv_heads, query_len, group).transpose(0, 1).reshape(query_len, num_heads)
    return out.to(query.dtype), lse


def _chunks(kv_cache: PagedKVCache, plane: int, block_ids: Tensor, num_tokens: int) -> Iterator[tuple[int, Tensor]]:
    """Yield the request's keys (plane 0) or values (1) in stretches: where each begins, and its tokens in float32.

    A stretch is `[tokens, num_kv_heads, head_size]`, and is overwritten by the next one.
    """
    data, block_size = kv_cache.data, kv_cache.block_size
    shape = data.shape[2:]
    is_nhd = data.is_contiguous()
    # Block b's keys and values as two rows of one matrix, whatever the order within the block.
    rows = (data if is_nhd else data.transpose(2, 3)).reshape(2 * kv_cache.num_blocks, -1)
    blocks_at_once = max(CHUNK_TOKENS // block_size, 1)
    buffer = rows.new_empty((min(blocks_at_once, len(block_ids)), rows.shape[1]))
    for index in range(0, len(block_ids), blocks_at_once):
        ids = 2 * block_ids[index : index + blocks_at_once] + plane
        part = torch.index_select(rows, 0, ids, out=buffer[: len(ids)])
        if is_nhd:
            part = part.view(-1, *shape[1:])
        else:
            part = part.view(-1, shape[1], block_size, shape[2]).transpose(1, 2).reshape(-1, *shape[1:])
        begin = index * block_size
        part = part[: num_tokens - begin].to(torch.float32)
        if kv_cache.scales is not None:
            scales = kv_cache.scales[block_ids[index : index + blocks_at_once], plane].reshape(-1, shape[1], 1)
            part = part * scales[: len(part)]
        elif data.dtype == torch.float8_e4m3fn:
            part = part * kv_cache.tensor_scales[plane]
        yield begin, part


def _softmax(
    scores: Tensor, query_len: int, first: int, seq_len: int, options: AttentionOptions
) -> tuple[Tensor, Tensor]:
    """Turn scores into weights in place; return them and the log-sum-exp, `[num_kv_heads, query_len * group]`.

    scores      [num_kv_heads, query_len * group, seq_len - first], for the positions from `first` on
    """
    if options.logits_soft_cap is not None:
        scores.div_(options.logits_soft_cap).tanh_().mul_(options.logits_soft_cap)
    num_kv_heads, num_rows, num_positions = scores.shape
    hidden = _hidden(query_len, first, seq_len, options)
    if hidden is not None:
        by_query = scores.view(num_kv_heads, query_len, -1, num_positions)
        by_query.masked_fill_(hidden.to(scores.device).unsqueeze(1), -torch.inf)
    lse = torch.logsumexp(scores, dim=-1)
    if options.sinks is not None:
        # [num_heads] -> [num_kv_heads, group], once a query
        sinks = options.sinks.to(lse).view(num_kv_heads, -1).repeat(1, query_len)
        lse = torch.logaddexp(lse, sinks)
    return scores.sub_(lse.unsqueeze(-1)).exp_(), lse


def _hidden(query_len: int, first: int, seq_len: int, options: AttentionOptions) -> Tensor | None:
    """Return which positions each query must not see, `[query_len, seq_len - first]`; `None` if it sees them all."""
    queries = range(seq_len - query_len, seq_len)
    if query_len == 1 and options.first_visible(queries[0]) == first:
        return None
    positions = torch.arange(first, seq_len)
    starts = torch.tensor([options.first_visible(position) for position in queries])
    ends = torch.arange(seq_len - query_len, seq_len)
    return (positions < starts.unsqueeze(1)) | (positions > ends.unsqueeze(1))

"""Attention over blocks with plain torch operations, fast on a CPU.

What makes it fast, in order: no large allocation inside a call; a request at a time, so nothing is padded; keys and
values copied out of their blocks in stretches that stay in the processor's cache; the heads that share a key as rows of
one matrix. Two ways from there:

    scores     all scores of a few queries at once, then one softmax: any mask, soft cap, any form of the cache
    flash      torch's own fused attention, a stretch at a time, the parts put together by their log-sum-exp

The second reads half as many bytes for 16-bit caches and never holds the scores of a long prompt; it knows no mask
but the causal one.

    q          [num_kv_heads, group, query_len, head_size]: the group of heads that share one head of keys
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from mini_kv.attention.kv_cache import PagedKVCache
from mini_kv.attention.metadata import AttentionMetadata
from mini_kv.attention.options import AttentionOptions

CHUNK_TOKENS = 256
"""Tokens copied at a time; measured: smaller costs calls, larger falls out of the cache."""
QUERIES_AT_ONCE = 16
"""Queries whose scores are held at a time, so that a long prompt does not need all of them."""

_Part = tuple[Tensor, Tensor]
"""Result `[num_kv_heads, group, query_len, head_size]` and log-sum-exp `[num_kv_heads, group, query_len]`."""


def obstacle(query: Tensor, kv_cache: PagedKVCache, options: AttentionOptions) -> str | None:
    """Return why this backend cannot do the call; there is no such reason."""
    return None


def attend(
    query: Tensor, kv_cache: PagedKVCache, metadata: AttentionMetadata, options: AttentionOptions, out: Tensor
) -> Tensor:
    """Write to `out` what each query makes of the keys and values that it sees; return the log-sum-exp.

    Arguments as in `paged_attention`.
    """
    lse = query.new_full(query.shape[:2], -torch.inf, dtype=torch.float32)
    starts, seq_lens = metadata.query_start_loc.tolist(), metadata.seq_lens.tolist()
    reader = _Reader(kv_cache, metadata.block_tables.to(torch.int64))
    for request, seq_len in enumerate(seq_lens):
        tokens = slice(starts[request], starts[request + 1])
        query_len = tokens.stop - tokens.start
        if query_len == 0:
            continue
        q = query[tokens].view(query_len, kv_cache.num_kv_heads, -1, query.shape[2]).permute(1, 2, 0, 3).contiguous()
        way = _flash if _can_flash(q, kv_cache, seq_len, options) else _scores
        part, part_lse = way(q, reader, request, seq_len, options)
        if options.sinks is not None:
            part, part_lse = _add_sinks(part, part_lse, options.sinks)
        out[tokens].view(query_len, kv_cache.num_kv_heads, -1, query.shape[2]).copy_(part.permute(2, 0, 1, 3))
        lse[tokens] = part_lse.permute(2, 0, 1).flatten(1)
    return lse


class _Reader:
    """Copies stretches of requests out of their blocks, into memory that is allocated once a call.

    A stretch is `[num_kv_heads, tokens, head_size]`, and is overwritten by the next one of the same plane.
    """

    def __init__(self, kv_cache: PagedKVCache, block_tables: Tensor) -> None:
        self.kv_cache = kv_cache
        self.block_tables = block_tables  # int64, or each read would convert its ids
        data = kv_cache.data
        self.is_nhd, self.is_hnd = data.is_contiguous(), data.transpose(2, 3).is_contiguous()
        # Whatever is copied as one piece is a row: a block's keys (NHD), or its keys of one head (HND).
        self.rows = data.flatten(0, 1).flatten(1) if self.is_nhd else data.transpose(2, 3).flatten(0, 2).flatten(1)
        self._buffers = [self.rows.new_empty(0), self.rows.new_empty(0)]

    def stretches(self, plane: int, request: int, first: int, end: int) -> Iterator[tuple[int, int, Tensor]]:
        """Yield positions `first` to `end` piece by piece, as (begin, end, keys or values)."""
        for aligned in range(first // CHUNK_TOKENS * CHUNK_TOKENS, end, CHUNK_TOKENS):
            begin, stop = max(first, aligned), min(end, aligned + CHUNK_TOKENS)
            yield begin, stop, self.read(plane, request, begin, stop)

    def read(self, plane: int, request: int, begin: int, end: int) -> Tensor:
        """Return keys (plane 0) or values (1) of these positions; of a quantised cache in float32."""
        kv_cache, block_size = self.kv_cache, self.kv_cache.block_size
        block_ids = self.block_tables[request, begin // block_size : -(-end // block_size)]
        tokens = slice(begin % block_size, begin % block_size + end - begin)
        if self.is_nhd:
            rows = self._copy(plane, 2 * block_ids + plane)
            x = rows.view(-1, kv_cache.num_kv_heads, kv_cache.head_size).transpose(0, 1)[:, tokens]
        elif self.is_hnd:
            heads = torch.arange(kv_cache.num_kv_heads, device=block_ids.device)
            ids = (2 * block_ids + plane) * kv_cache.num_kv_heads + heads.unsqueeze(1)
            x = self._copy(plane, ids.flatten()).view(kv_cache.num_kv_heads, -1, kv_cache.head_size)[:, tokens]
        else:
            x = kv_cache.data[block_ids, plane].flatten(0, 1).transpose(0, 1)[:, tokens]
        if kv_cache.scales is not None:
            scales = kv_cache.scales[block_ids, plane].flatten(0, 1)[tokens]
            return x.to(torch.float32) * scales.T.unsqueeze(-1)
        if kv_cache.is_quantized:
            return x.to(torch.float32) * kv_cache.tensor_scales[plane]
        return x

    def _copy(self, plane: int, ids: Tensor) -> Tensor:
        num_elements = len(ids) * self.rows.shape[1]
        if self._buffers[plane].numel() < num_elements:
            self._buffers[plane] = self.rows.new_empty(num_elements)
        buffer = self._buffers[plane][:num_elements].view(len(ids), -1)
        return torch.index_select(self.rows, 0, ids, out=buffer)


def _scores(q: Tensor, reader: _Reader, request: int, seq_len: int, options: AttentionOptions) -> _Part:
    """Return result `[num_kv_heads, group, query_len, head_size]` and log-sum-exp of a request, by way of scores."""
    query_len = q.shape[2]
    dtype = torch.float64 if q.dtype == torch.float64 else torch.float32
    q = (q * options.scale_for(q.shape[3])).to(dtype)
    parts = [
        _scores_of_a_few(q[:, :, i : i + QUERIES_AT_ONCE], reader, request, seq_len - query_len + i, options)
        for i in range(0, query_len, QUERIES_AT_ONCE)
    ]
    outs, lses = zip(*parts, strict=True)
    return torch.cat(outs, dim=2), torch.cat(lses, dim=2)


def _scores_of_a_few(q: Tensor, reader: _Reader, request: int, position: int, options: AttentionOptions) -> _Part:
    """Return the same for scaled queries at `position` and on."""
    num_kv_heads, group, num_queries, head_size = q.shape
    first, end = options.first_visible(position), position + num_queries
    rows = q.reshape(num_kv_heads, group * num_queries, head_size)
    scores = q.new_empty((num_kv_heads, group * num_queries, end - first))
    for begin, stop, keys in reader.stretches(0, request, first, end):
        torch.bmm(rows, keys.to(q.dtype).transpose(1, 2), out=scores[:, :, begin - first : stop - first])
    if options.logits_soft_cap is not None:
        scores.div_(options.logits_soft_cap).tanh_().mul_(options.logits_soft_cap)
    if num_queries > 1:
        hidden = _hidden(range(position, end), first, options).to(scores.device)
        scores.view(num_kv_heads, group, num_queries, -1).masked_fill_(hidden, -torch.inf)
    lse = torch.logsumexp(scores, dim=-1)
    weights = scores.sub_(lse.unsqueeze(-1)).exp_()
    out = torch.zeros_like(rows)
    for begin, stop, values in reader.stretches(1, request, first, end):
        out.baddbmm_(weights[:, :, begin - first : stop - first], values.to(q.dtype))
    return out.view(q.shape), lse.view(q.shape[:3])


def _hidden(positions: range, first: int, options: AttentionOptions) -> Tensor:
    """Return which keys each query must not see, `[len(positions), positions.stop - first]`."""
    keys = torch.arange(first, positions.stop)
    starts = torch.tensor([options.first_visible(position) for position in positions])
    ends = torch.arange(positions.start, positions.stop)
    return (keys < starts.unsqueeze(1)) | (keys > ends.unsqueeze(1))


def _can_flash(q: Tensor, kv_cache: PagedKVCache, seq_len: int, options: AttentionOptions) -> bool:
    """Return whether torch's fused attention can do this request, and does it faster."""
    if options.logits_soft_cap is not None or q.device.type != "cpu":
        return False
    if not hasattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu"):
        return False  # a private operation: it may go
    if q.shape[2] == 1:
        return q.dtype in (torch.float16, torch.bfloat16) and not kv_cache.is_quantized
    return options.first_visible(seq_len - 1) == 0


def _flash(q: Tensor, reader: _Reader, request: int, seq_len: int, options: AttentionOptions) -> _Part:
    """Return result and log-sum-exp of a request, by torch's fused attention over stretches.

    positions      first ............ seq_len - query_len ... seq_len
                   | context: all see all |  tail: causal   |           a single query has no tail: it sees itself, too
    """
    query_len = q.shape[2]
    first = options.first_visible(seq_len - 1)
    if query_len == 1:
        pieces = zip(
            reader.stretches(0, request, first, seq_len), reader.stretches(1, request, first, seq_len), strict=True
        )
        return _combine([_fused(q, keys, values, False, options) for (_, _, keys), (_, _, values) in pieces])
    context = seq_len - query_len
    parts = []
    if context > first:
        keys, values = (reader.read(plane, request, first, context) for plane in (0, 1))
        parts.append(_fused(q, keys, values, False, options))
    keys, values = (reader.read(plane, request, context, seq_len) for plane in (0, 1))
    parts.append(_fused(q, keys, values, True, options))
    return _combine(parts)


def _fused(q: Tensor, keys: Tensor, values: Tensor, is_causal: bool, options: AttentionOptions) -> _Part:
    """Return result and log-sum-exp of all queries over these keys, `[num_kv_heads, tokens, head_size]`."""
    num_kv_heads, group, _, head_size = q.shape
    if is_causal:  # heads of keys as the batch, and the group as heads that all read the same memory
        rows = q
        keys, values = (x.unsqueeze(1).expand(-1, group, -1, -1) for x in (keys, values))
    else:  # the group as more queries of one head
        rows = q.reshape(1, num_kv_heads, -1, head_size)
        keys, values = keys.unsqueeze(0), values.unsqueeze(0)
    out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        rows.to(keys.dtype), keys, values, is_causal=is_causal, scale=options.scale_for(head_size)
    )
    return out.view(q.shape), lse.view(q.shape[:3])


def _combine(parts: list[_Part]) -> _Part:
    """Return attention over the union of disjoint sets of keys, none of them empty; see `merge`."""
    if len(parts) == 1:
        return parts[0]
    outs = torch.stack([out for out, _ in parts])
    lses = torch.stack([lse for _, lse in parts])
    lse = torch.logsumexp(lses, dim=0)
    return (outs * torch.exp(lses - lse).unsqueeze(-1)).sum(dim=0), lse


def _add_sinks(out: Tensor, lse: Tensor, sinks: Tensor) -> _Part:
    """Return the same attention with one more score in each softmax, which stands for no token."""
    with_sinks = torch.logaddexp(lse, sinks.to(lse).view(lse.shape[0], lse.shape[1], 1))
    return out * torch.exp(lse - with_sinks).unsqueeze(-1), with_sinks

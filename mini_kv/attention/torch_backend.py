"""Attention over blocks with torch operations, fast on a CPU. `plain` computes the same in 60 lines.

It is fast for four reasons, the most important first. No call makes a large allocation. Keys and values are copied out
of their blocks in pieces that fit in the processor's cache. It uses few operations, because each costs microseconds.
The query heads that share a KV head are rows of one matrix. There are three ways to compute a request:

    decode     one query per request: torch's own fused attention, a piece at a time, combined by the log-sum-exp;
               8 bits are widened in the processor's cache, scored without their scales, and then scaled
    prompt     many queries: the same, over the earlier tokens and over the queries' own tokens
    scores     all scores of a few queries at once, then one softmax: any mask, soft cap, any form of the cache

    q          [num_kv_heads, group, query_len, head_size]: the group of query heads that share one KV head
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mini_kv.attention.kv_cache import PagedKVCache
from mini_kv.attention.metadata import AttentionMetadata
from mini_kv.attention.options import AttentionOptions
from mini_kv.attention.torch_plan import Batch, DecodePlan, blocks_at_once, plan_decode
from mini_kv.attention.torch_reader import BlockReader, workspace

_QUERIES_AT_ONCE = 16
"""Number of queries whose scores are in memory at a time, so that a long prompt does not need all of them."""

_fused: Any = getattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu", None)
"""Result and log-sum-exp, of `[batch, heads, tokens, head_size]` each. It is private in torch and may be removed."""
_FUSED_SHARES_HEADS = tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 13)
"""Whether that operation lets a group of query heads share a KV head, in a tested version of torch."""
_Part = tuple[Tensor, Tensor]
"""Result `[..., head_size]` and log-sum-exp `[...]`."""


def obstacle(query: Tensor, kv_cache: PagedKVCache, options: AttentionOptions) -> str | None:
    """Return None: this backend supports every call."""
    return None


def attend(
    query: Tensor, kv_cache: PagedKVCache, metadata: AttentionMetadata, options: AttentionOptions, out: Tensor
) -> Tensor:
    """Write each query's attention over the keys and values that it sees to `out`. Return the log-sum-exp.

    Arguments as in `paged_attention`.
    """
    lse = query.new_full(query.shape[:2], -torch.inf, dtype=torch.float32)
    reader = BlockReader(kv_cache, metadata.block_tables)
    plan = _plan_of(query, reader, metadata, options)
    for request, tokens, seq_len in plan.others:
        grouped = (tokens.stop - tokens.start, kv_cache.num_kv_heads, -1, query.shape[2])
        q = query[tokens].view(grouped).permute(1, 2, 0, 3)
        way = _way(q.shape[2], seq_len, query, kv_cache, options)
        part, part_lse = way(q, reader, request, seq_len, options)
        out[tokens].view(grouped).copy_(part.permute(2, 0, 1, 3))
        lse[tokens] = part_lse.permute(2, 0, 1).flatten(1)
    if plan.decode is not None:
        rows = plan.decode.rows
        part, part_lse = _decode(query[rows], reader, plan.decode, options)
        out[rows], lse[rows] = part.to(out.dtype), part_lse.to(lse.dtype)
    if options.sinks is not None:
        _add_sinks(out[: plan.num_tokens], lse[: plan.num_tokens], options.sinks)
    return lse


class _Plan(NamedTuple):
    """The plan of all layers of one kind. The first of them makes it, and the step's metadata keeps it."""

    num_tokens: int
    others: list[tuple[int, slice, int]]
    """The requests that do not decode, each as (index of the request, rows of its queries, its length)."""
    decode: DecodePlan | None


def _plan_of(query: Tensor, reader: BlockReader, metadata: AttentionMetadata, options: AttentionOptions) -> _Plan:
    """Return the plan for layers of this kind, making it if the metadata has none."""
    data = reader.kv_cache.data
    kind = (options.sliding_window, options.chunk_size, options.logits_soft_cap, query.dtype, data.dtype)
    key = ("torch", *kind, data.shape[1:], data.is_contiguous())
    if key not in metadata.plans:
        metadata.plans[key] = _make_plan(query, reader, metadata, options)
    plan: _Plan = metadata.plans[key]
    return plan


def _make_plan(query: Tensor, reader: BlockReader, metadata: AttentionMetadata, options: AttentionOptions) -> _Plan:
    starts, seq_lens = metadata.query_start_loc.tolist(), metadata.seq_lens.tolist()
    others, decodes = [], []
    for request, seq_len in enumerate(seq_lens):
        tokens = slice(starts[request], starts[request + 1])
        if _way(tokens.stop - tokens.start, seq_len, query, reader.kv_cache, options) is _decode:
            decodes.append(request)
        elif tokens.start < tokens.stop:
            others.append((request, tokens, seq_len))
    decode = plan_decode(query, reader, decodes, starts, seq_lens, options) if decodes else None
    return _Plan(starts[-1], others, decode)


def _way(query_len: int, seq_len: int, query: Tensor, kv_cache: PagedKVCache, options: AttentionOptions) -> Any:
    """Return the fastest of the three ways that can compute this request."""
    if _fused is None or options.logits_soft_cap is not None or query.device.type != "cpu":
        return _scores
    if query_len == 1:
        return _decode
    return _prompt if options.first_visible(seq_len - 1) == 0 else _scores


def _decode(query: Tensor, reader: BlockReader, plan: DecodePlan, options: AttentionOptions) -> _Part:
    """Return result `[num_requests, num_heads, head_size]` and log-sum-exp of requests with one query each.

    A long request is split into many pieces. A short request is one piece, and many of these are copied at once. For 32
    requests of 200 tokens (8 heads of 16 on 4 KV heads), one by one takes 3.3 ms and together 1.1 ms.
    """
    head_size, scale = query.shape[2], options.scale_for(query.shape[2])
    q = query.view(len(query), reader.kv_cache.num_kv_heads, -1, head_size)
    parts = []
    is_quantized = reader.kv_cache.is_quantized
    if is_quantized:
        q = q.to(torch.float32)
    for batch in plan.batches:
        kv = reader.dequantized(batch.row_ids) if is_quantized else reader.copy(batch.row_ids)
        parts.append(_attend_to_pieces(q[batch.which], kv, batch, scale))
    if plan.full_which:
        attend = _attend_to_full_pieces_in_8_bits if is_quantized else _attend_to_full_pieces
        parts += attend(q, plan.full_row_ids, plan.full_which, reader, scale)
    outs, lses = zip(*parts, strict=True)
    if len(parts) > 1:
        outs, lses = (torch.cat(outs),), (torch.cat(lses),)
    out, lse = _combine_by_request(outs[0], lses[0], plan)
    return out.flatten(1, 2), lse.flatten(1)


def _attend_to_pieces(q: Tensor, kv: Tensor, batch: Batch, scale: float) -> _Part:
    """Return attention of queries `[n, num_kv_heads, group, head_size]`, each over its own padded piece.

    kv         [n, 2, num_kv_heads, tokens, head_size]
    """
    mask = None
    if batch.hidden is None or batch.mask is None:
        kv = kv[:, :, :, batch.visible]
    else:
        span, is_hidden = batch.hidden
        # A weight of zero is not enough: unwritten memory may be NaN, and 0 * NaN is NaN.
        kv[:, :, :, span].masked_fill_(is_hidden, 0)
        mask = batch.mask.to(q.dtype).expand(-1, -1, q.shape[2], -1)
    keys, values = kv.unbind(1)
    out, lse = _fused(q, keys, values, attn_mask=mask, scale=scale)
    return out, lse


def _attend_to_full_pieces(
    q: Tensor, row_ids: Tensor, index: Sequence[int], reader: BlockReader, scale: float
) -> list[_Part]:
    """Return attention over pieces of full size, each with the query that `index` gives.

    With long requests, most of the time is spent here. Each piece evicts the interpreter from the processor's cache, so
    this loop makes only two calls per piece.
    """
    buffer, kv = reader.buffer(row_ids[:1].shape)
    keys, values = kv.unbind(1)
    queries, parts = q.split(1), []
    for which, ids in zip(index, row_ids.flatten(1), strict=True):
        torch.index_select(reader.rows, 0, ids, out=buffer)
        parts.append(_fused(queries[which], keys, values, scale=scale))
    return parts


def _attend_to_full_pieces_in_8_bits(
    q: Tensor, row_ids: Tensor, index: Sequence[int], reader: BlockReader, scale: float
) -> list[_Part]:
    """Return the same attention: all scores, then one softmax of all pieces, then all results.

    8 bits become float32 in memory that stays in the processor's cache, one plane at a time. A token's scale multiplies
    its score and its weight instead of its key and value, which are `head_size` times as many numbers.
    """
    key_ids, value_ids = row_ids.unbind(1)
    key_scales, value_scales = reader.scales(row_ids).unsqueeze(3).unbind(1)
    narrow, _ = reader.buffer(row_ids[:1, :1].shape)
    wide, plane = reader.buffer(row_ids[:1, :1].shape, torch.float32)
    keys = values = plane[0, 0]
    scores = q.new_empty(len(index), *q.shape[1:3], keys.shape[1])
    for which, ids, piece in zip(index, key_ids.flatten(1), scores, strict=True):
        wide.copy_(torch.index_select(reader.rows, 0, ids, out=narrow))
        torch.bmm(q[which], keys.transpose(1, 2), out=piece)
    scores.mul_(scale * key_scales)
    lse = scores.logsumexp(dim=-1, keepdim=True)
    weights = scores.sub_(lse).exp_().mul_(value_scales)
    out = torch.empty_like(q[index])
    for ids, piece, result in zip(value_ids.flatten(1), weights, out, strict=True):
        wide.copy_(torch.index_select(reader.rows, 0, ids, out=narrow))
        torch.bmm(piece, values, out=result)
    return [(out, lse.squeeze(-1))]


def _combine_by_request(out: Tensor, lse: Tensor, plan: DecodePlan) -> _Part:
    """Return attention of each request over all of its pieces."""
    if plan.table is None:
        return out, lse
    if plan.is_padded:
        out = torch.cat([out, torch.zeros_like(out[:1])])
        lse = torch.cat([lse, torch.full_like(lse[:1], -torch.inf)])
    return _combine(out[plan.table], lse[plan.table])


def _prompt(q: Tensor, reader: BlockReader, request: int, seq_len: int, options: AttentionOptions) -> _Part:
    """Return result and log-sum-exp of a request with many queries. They read each copied key many times.

    positions      0 ................ seq_len - query_len ... seq_len
                   | context: all see all |  tail: causal   |
    """
    _, group, query_len, head_size = q.shape
    if reader.kv_cache.is_quantized:
        q = q.to(torch.float32)
    # Each head's rows side by side: tokens a power of two apart get in each other's way in the cache.
    heads = workspace.take("queries", tuple(q.shape), q).copy_(q).view(1, -1, query_len, head_size)
    keys, values = _copied_by_head(reader, request, seq_len, q)
    if not _FUSED_SHARES_HEADS:
        keys, values = (x.repeat_interleave(group, dim=1) for x in (keys, values))
    context, scale = seq_len - query_len, options.scale_for(head_size)
    outs, lses = [], []
    for begin, end, is_causal in ((0, context, False), (context, seq_len, True)):
        if begin < end:
            part = slice(begin, end)
            out, lse = _fused(heads, keys[:, :, part], values[:, :, part], is_causal=is_causal, scale=scale)
            outs.append(out)
            lses.append(lse)
    out, lse = _combine(outs, lses)
    return out.view(q.shape), lse.view(q.shape[:3])


def _copied_by_head(reader: BlockReader, request: int, seq_len: int, q: Tensor) -> Tensor:
    """Return all keys and values of a request, `[2, 1, num_kv_heads, seq_len, head_size]`, contiguous."""
    kv = workspace.take("heads", (2, q.shape[0], seq_len, q.shape[3]), q)
    for begin, end in _stretches(0, seq_len, reader.kv_cache):
        kv[:, :, begin:end] = reader.read(request, begin, end)
    return kv.unsqueeze(1)


def _stretches(first: int, end: int, kv_cache: PagedKVCache) -> Iterator[tuple[int, int]]:
    """Yield positions `first` to `end`, as many at a time as are copied at once, as (begin, end)."""
    at_once = blocks_at_once(kv_cache) * kv_cache.block_size
    for aligned in range(first // at_once * at_once, end, at_once):
        yield max(first, aligned), min(end, aligned + at_once)


def _scores(q: Tensor, reader: BlockReader, request: int, seq_len: int, options: AttentionOptions) -> _Part:
    """Return result and log-sum-exp of a request, computed from all scores."""
    query_len = q.shape[2]
    dtype = torch.float64 if q.dtype == torch.float64 else torch.float32
    q = (q * options.scale_for(q.shape[3])).to(dtype)
    parts = [
        _scores_of_a_few(q[:, :, i : i + _QUERIES_AT_ONCE], reader, request, seq_len - query_len + i, options)
        for i in range(0, query_len, _QUERIES_AT_ONCE)
    ]
    outs, lses = zip(*parts, strict=True)
    return torch.cat(outs, dim=2), torch.cat(lses, dim=2)


def _scores_of_a_few(q: Tensor, reader: BlockReader, request: int, position: int, options: AttentionOptions) -> _Part:
    """Return the same for scaled queries at positions from `position` on."""
    num_kv_heads, group, num_queries, head_size = q.shape
    first, end = options.first_visible(position), position + num_queries
    rows = q.reshape(num_kv_heads, group * num_queries, head_size)
    scores = workspace.take("scores", (num_kv_heads, group * num_queries, end - first), q)
    for begin, stop in _stretches(first, end, reader.kv_cache):
        (keys,) = reader.read(request, begin, stop, (0,)).to(q.dtype)
        torch.bmm(rows, keys.transpose(1, 2), out=scores[:, :, begin - first : stop - first])
    if options.logits_soft_cap is not None:
        scores.div_(options.logits_soft_cap).tanh_().mul_(options.logits_soft_cap)
    if num_queries > 1:
        hidden = _hidden(range(position, end), first, options).to(scores.device)
        scores.view(num_kv_heads, group, num_queries, -1).masked_fill_(hidden, -torch.inf)
    largest = scores.amax(dim=-1, keepdim=True)  # finite: every token sees at least itself
    weights = scores.sub_(largest).exp_()
    total = weights.sum(dim=-1, keepdim=True)
    out = torch.zeros_like(rows)
    for begin, stop in _stretches(first, end, reader.kv_cache):
        (values,) = reader.read(request, begin, stop, (1,)).to(q.dtype)
        out.baddbmm_(weights[:, :, begin - first : stop - first], values)
    out, lse = out.div_(total), total.log_().add_(largest)
    return out.reshape(q.shape), lse.reshape(q.shape[:3])


def _hidden(positions: range, first: int, options: AttentionOptions) -> Tensor:
    """Return which keys each query must not see, `[len(positions), positions.stop - first]`."""
    keys = torch.arange(first, positions.stop)
    starts = torch.tensor([options.first_visible(position) for position in positions])
    ends = torch.arange(positions.start, positions.stop)
    return (keys < starts.unsqueeze(1)) | (keys > ends.unsqueeze(1))


def _combine(outs: Sequence[Tensor] | Tensor, lses: Sequence[Tensor] | Tensor) -> _Part:
    """Return attention over the union of disjoint sets of keys. See `merge`. A query's first set is not empty."""
    if len(outs) == 1:
        return outs[0], lses[0]
    lse = torch.stack(tuple(lses))
    shares = torch.softmax(lse, dim=0)
    out = outs[0] * shares[0].unsqueeze(-1)
    for part, share in zip(outs[1:], shares[1:], strict=True):
        out.addcmul_(part, share.unsqueeze(-1))
    return out, lse.amax(dim=0) - shares.amax(dim=0).log()  # the largest part's share of the whole


def _add_sinks(out: Tensor, lse: Tensor, sinks: Tensor) -> None:
    """Add one more score, which belongs to no token, to each softmax."""
    with_sinks = torch.logaddexp(lse, sinks.to(lse))
    out.mul_(torch.exp(lse - with_sinks).unsqueeze(-1))
    lse.copy_(with_sinks)

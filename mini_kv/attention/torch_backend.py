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

import math
import threading
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from mini_kv.attention.kv_cache import PagedKVCache
from mini_kv.attention.metadata import AttentionMetadata
from mini_kv.attention.options import AttentionOptions

CHUNK_TOKENS = 256
"""Tokens copied at a time; measured: smaller costs calls, larger falls out of the cache."""
QUERIES_AT_ONCE = 16
"""Queries whose scores are held at a time, so that a long prompt does not need all of them."""

_fused: Any = getattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu", None)
"""Result and log-sum-exp, of `[batch, heads, tokens, head_size]` each. A private operation of torch: it may go."""
_FUSED_SHARES_HEADS = tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 13)
"""Whether it reads one head of keys for a group of heads; what older ones do was not looked at."""
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
    reader = _Reader(kv_cache, metadata.block_tables)
    for request, seq_len in enumerate(seq_lens):
        tokens = slice(starts[request], starts[request + 1])
        query_len = tokens.stop - tokens.start
        if query_len == 0:
            continue
        q = query[tokens].view(query_len, kv_cache.num_kv_heads, -1, query.shape[2]).permute(1, 2, 0, 3)
        way = _flash if _can_flash(q, kv_cache, seq_len, options) else _scores
        part, part_lse = way(q, reader, request, seq_len, options)
        if options.sinks is not None:
            part, part_lse = _add_sinks(part, part_lse, options.sinks)
        out[tokens].view(query_len, kv_cache.num_kv_heads, -1, query.shape[2]).copy_(part.permute(2, 0, 1, 3))
        lse[tokens] = part_lse.permute(2, 0, 1).flatten(1)
    return lse


class _Workspace(threading.local):
    """Memory that the calls of a thread use again: page by page, fresh memory costs more than the attention in it."""

    def __init__(self) -> None:
        self._memory: dict[tuple[str, torch.dtype], Tensor] = {}

    def take(self, name: str, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """Return a tensor of this shape with anything in it; it is the next taker's, too, who says the same name."""
        if like.device.type != "cpu":
            return like.new_empty(shape)  # torch keeps a GPU's memory by itself
        key, num_elements = (name, like.dtype), math.prod(shape)
        if key not in self._memory or self._memory[key].numel() < num_elements:
            self._memory[key] = like.new_empty(num_elements)
        return self._memory[key][:num_elements].view(shape)


_workspace = _Workspace()


class _Reader:
    """Copies stretches of requests out of their blocks, with as few operations as can be: each costs microseconds.

    A stretch is `[num_kv_heads, tokens, head_size]`, and is overwritten by the next one of the same name.
    """

    def __init__(self, kv_cache: PagedKVCache, block_tables: Tensor) -> None:
        self.kv_cache = kv_cache
        self.block_tables = block_tables.to(torch.int64)
        data, num_kv_heads = kv_cache.data, kv_cache.num_kv_heads
        # Whatever is copied as one piece is a row: a block's keys (NHD), or its keys of one head (HND).
        self.row_ids = torch.stack([2 * self.block_tables, 2 * self.block_tables + 1])  # [2, num_reqs, num_blocks]
        self.is_nhd = data.is_contiguous()
        if self.is_nhd:
            self.rows = data.flatten(0, 1).flatten(1)
        else:
            self.rows = data.transpose(2, 3).flatten(0, 2).flatten(1)
            heads = torch.arange(num_kv_heads, device=data.device).unsqueeze(1)
            self.row_ids = num_kv_heads * self.row_ids.unsqueeze(2) + heads  # [2, num_reqs, num_kv_heads, num_blocks]
        self._views: dict[tuple[str, int], tuple[Tensor, Tensor]] = {}

    def read(self, plane: int, request: int, begin: int, end: int, name: str) -> Tensor:
        """Return keys (plane 0) or values (1) of these positions; of a quantised cache in float32."""
        kv_cache, block_size = self.kv_cache, self.kv_cache.block_size
        first_block, end_block = begin // block_size, -(-end // block_size)
        ids = self.row_ids[plane, request, ..., first_block:end_block]
        buffer, x = self._buffer(name, end_block - first_block)
        torch.index_select(self.rows, 0, ids if self.is_nhd else ids.flatten(), out=buffer)
        tokens = slice(begin - first_block * block_size, end - first_block * block_size)
        if tokens.stop - tokens.start < x.shape[1]:
            x = x[:, tokens]
        if kv_cache.scales is not None:
            block_ids = self.block_tables[request, first_block:end_block]
            scales = kv_cache.scales[block_ids, plane].flatten(0, 1)[tokens]
            return x.to(torch.float32) * scales.T.unsqueeze(-1)
        if kv_cache.is_quantized:
            return x.to(torch.float32) * kv_cache.tensor_scales[plane]
        return x

    def both(self, request: int, begin: int, end: int) -> tuple[Tensor, Tensor]:
        """Return keys and values of these positions."""
        return self.read(0, request, begin, end, "keys"), self.read(1, request, begin, end, "values")

    def _buffer(self, name: str, num_blocks: int) -> tuple[Tensor, Tensor]:
        """Return memory for so many blocks, seen as rows to copy to, and seen as `read` returns it."""
        if (name, num_blocks) not in self._views:
            num_kv_heads, head_size = self.kv_cache.num_kv_heads, self.kv_cache.head_size
            num_rows = num_blocks if self.is_nhd else num_blocks * num_kv_heads
            buffer = _workspace.take(name, (num_rows, self.rows.shape[1]), self.rows)
            if self.is_nhd:
                x = buffer.view(-1, num_kv_heads, head_size).transpose(0, 1)
            else:
                x = buffer.view(num_kv_heads, -1, head_size)
            self._views[name, num_blocks] = buffer, x
        return self._views[name, num_blocks]


def _stretches(first: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield positions `first` to `end` piece by piece, as (begin, end)."""
    for aligned in range(first // CHUNK_TOKENS * CHUNK_TOKENS, end, CHUNK_TOKENS):
        yield max(first, aligned), min(end, aligned + CHUNK_TOKENS)


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
    scores = _workspace.take("scores", (num_kv_heads, group * num_queries, end - first), q)
    for begin, stop in _stretches(first, end):
        keys = reader.read(0, request, begin, stop, "stretch").to(q.dtype)
        torch.bmm(rows, keys.transpose(1, 2), out=scores[:, :, begin - first : stop - first])
    if options.logits_soft_cap is not None:
        scores.div_(options.logits_soft_cap).tanh_().mul_(options.logits_soft_cap)
    if num_queries > 1:
        hidden = _hidden(range(position, end), first, options).to(scores.device)
        scores.view(num_kv_heads, group, num_queries, -1).masked_fill_(hidden, -torch.inf)
    largest = scores.amax(dim=-1, keepdim=True)  # finite: everybody sees at least itself
    weights = scores.sub_(largest).exp_()
    total = weights.sum(dim=-1, keepdim=True)
    out = torch.zeros_like(rows)
    for begin, stop in _stretches(first, end):
        values = reader.read(1, request, begin, stop, "stretch").to(q.dtype)
        out.baddbmm_(weights[:, :, begin - first : stop - first], values)
    out, lse = out.div_(total), total.log_().add_(largest)
    return out.reshape(q.shape), lse.reshape(q.shape[:3])


def _hidden(positions: range, first: int, options: AttentionOptions) -> Tensor:
    """Return which keys each query must not see, `[len(positions), positions.stop - first]`."""
    keys = torch.arange(first, positions.stop)
    starts = torch.tensor([options.first_visible(position) for position in positions])
    ends = torch.arange(positions.start, positions.stop)
    return (keys < starts.unsqueeze(1)) | (keys > ends.unsqueeze(1))


def _can_flash(q: Tensor, kv_cache: PagedKVCache, seq_len: int, options: AttentionOptions) -> bool:
    """Return whether torch's fused attention can do this request, and does it faster."""
    if _fused is None or options.logits_soft_cap is not None or q.device.type != "cpu":
        return False
    if q.shape[2] == 1:
        return q.dtype in (torch.float16, torch.bfloat16) and not kv_cache.is_quantized
    return options.first_visible(seq_len - 1) == 0


def _flash(q: Tensor, reader: _Reader, request: int, seq_len: int, options: AttentionOptions) -> _Part:
    """Return result and log-sum-exp of a request, by torch's fused attention."""
    if reader.kv_cache.is_quantized:
        q = q.to(torch.float32)
    way = _flash_one if q.shape[2] == 1 else _flash_many
    return way(q, reader, request, seq_len, options)


def _flash_one(q: Tensor, reader: _Reader, request: int, seq_len: int, options: AttentionOptions) -> _Part:
    """Return the same for a single query, stretch by stretch: it is cheap beside the copy, which has to be small."""
    scale = options.scale_for(q.shape[3])
    rows = q.flatten(1, 2).unsqueeze(0)  # the group as more queries of one head
    parts = []
    for begin, end in _stretches(options.first_visible(seq_len - 1), seq_len):
        keys, values = reader.both(request, begin, end)
        parts.append(_fused(rows, keys.unsqueeze(0), values.unsqueeze(0), scale=scale))
    out, lse = _combine(parts)
    return out.view(q.shape), lse.view(q.shape[:3])


def _flash_many(q: Tensor, reader: _Reader, request: int, seq_len: int, options: AttentionOptions) -> _Part:
    """Return the same for the queries of a prompt, which read what was copied many times.

    positions      0 ................ seq_len - query_len ... seq_len
                   | context: all see all |  tail: causal   |
    """
    num_kv_heads, group, query_len, head_size = q.shape
    heads = q.reshape(1, num_kv_heads * group, query_len, head_size)
    parts = []
    for begin, end in ((0, seq_len - query_len), (seq_len - query_len, seq_len)):
        if begin < end:
            # Each head's rows side by side: tokens a power of two apart get in each other's way in the cache.
            keys, values = (x.contiguous().unsqueeze(0) for x in reader.both(request, begin, end))
            if not _FUSED_SHARES_HEADS:
                keys, values = (x.repeat_interleave(group, dim=1) for x in (keys, values))
            is_tail = end == seq_len
            parts.append(_fused(heads, keys, values, is_causal=is_tail, scale=options.scale_for(head_size)))
    out, lse = _combine(parts)
    return out.view(q.shape), lse.view(q.shape[:3])


def _combine(parts: list[_Part]) -> _Part:
    """Return attention over the union of disjoint sets of keys, none of them empty; see `merge`."""
    if len(parts) == 1:
        return parts[0]
    outs = torch.stack([out for out, _ in parts])
    lses = torch.stack([lse for _, lse in parts])
    shares = torch.softmax(lses, dim=0)
    lse = lses.amax(dim=0) - shares.amax(dim=0).log()  # the largest part's share of the whole
    return (outs * shares.unsqueeze(-1)).sum(dim=0), lse


def _add_sinks(out: Tensor, lse: Tensor, sinks: Tensor) -> _Part:
    """Return the same attention with one more score in each softmax, which stands for no token."""
    with_sinks = torch.logaddexp(lse, sinks.to(lse).view(lse.shape[0], lse.shape[1], 1))
    return out * torch.exp(lse - with_sinks).unsqueeze(-1), with_sinks

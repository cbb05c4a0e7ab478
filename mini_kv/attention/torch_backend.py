"""Attention over blocks with plain torch operations, fast on a CPU.

What makes it fast, in order: no large allocation inside a call; keys and values copied out of their blocks in pieces
that stay in the processor's cache; few operations, for each costs microseconds; the heads that share a key as rows of
one matrix. Three ways from there:

    decode     one query a request: torch's own fused attention, a piece at a time, put together by the log-sum-exp
    prompt     many queries: the same, over what came before them and over themselves
    scores     all scores of a few queries at once, then one softmax: any mask, soft cap, any form of the cache

    q          [num_kv_heads, group, query_len, head_size]: the group of heads that share one head of keys
"""

from collections.abc import Iterator, Sequence
from itertools import takewhile
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mini_kv.attention.kv_cache import PagedKVCache
from mini_kv.attention.metadata import AttentionMetadata
from mini_kv.attention.options import AttentionOptions
from mini_kv.attention.torch_reader import BlockReader, workspace

PIECE_BYTES = 2**20
"""Keys and values copied at a time: half of a common second-level cache. Less costs calls, more falls out of it."""
QUERIES_AT_ONCE = 16
"""Queries whose scores are held at a time, so that a long prompt does not need all of them."""

_fused: Any = getattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu", None)
"""Result and log-sum-exp, of `[batch, heads, tokens, head_size]` each. A private operation of torch: it may go."""
_FUSED_SHARES_HEADS = tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 13)
"""Whether it reads one head of keys for a group of heads; what older ones do was not looked at."""
_Part = tuple[Tensor, Tensor]
"""Result `[..., head_size]` and log-sum-exp `[...]`."""


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
    reader = BlockReader(kv_cache, metadata.block_tables)
    decodes = []
    for request, seq_len in enumerate(seq_lens):
        tokens = slice(starts[request], starts[request + 1])
        query_len = tokens.stop - tokens.start
        way = _way(query_len, seq_len, query, kv_cache, options)
        if way is _decode:
            decodes.append(request)
        elif query_len > 0:
            q = query[tokens].view(query_len, kv_cache.num_kv_heads, -1, query.shape[2]).permute(1, 2, 0, 3)
            part, part_lse = way(q, reader, request, seq_len, options)
            out[tokens].view(query_len, kv_cache.num_kv_heads, -1, query.shape[2]).copy_(part.permute(2, 0, 1, 3))
            lse[tokens] = part_lse.permute(2, 0, 1).flatten(1)
    if decodes:
        rows = torch.tensor([starts[request] for request in decodes])
        part, part_lse = _decode(query[rows], reader, decodes, [seq_lens[r] for r in decodes], options)
        out[rows], lse[rows] = part.to(out.dtype), part_lse.to(lse.dtype)
    if options.sinks is not None:
        _add_sinks(out[: starts[-1]], lse[: starts[-1]], options.sinks)
    return lse


def _way(query_len: int, seq_len: int, query: Tensor, kv_cache: PagedKVCache, options: AttentionOptions) -> Any:
    """Return which of the three ways is the fastest that can do this request."""
    if _fused is None or options.logits_soft_cap is not None or query.device.type != "cpu":
        return _scores
    if query_len == 1:
        return _scores if kv_cache.is_quantized else _decode
    return _prompt if options.first_visible(seq_len - 1) == 0 else _scores


class _Piece(NamedTuple):
    """Blocks of one request, few enough to be copied at once, and which of their tokens its query sees."""

    which: int
    """Of the request, among those that decode."""
    first_block: int
    num_blocks: int
    begin: int
    """First visible token, counted from the beginning of the first block."""
    end: int


def _decode(
    query: Tensor, reader: BlockReader, requests: Sequence[int], seq_lens: Sequence[int], options: AttentionOptions
) -> _Part:
    """Return result `[len(requests), num_heads, head_size]` and log-sum-exp of requests with one query each.

    A long request is many pieces. Short ones are a piece each, and many are copied at once: with 32 requests of 200
    tokens, 8 heads of 16 on 4, one by one takes 3.3 ms, together 1.1.
    """
    head_size, scale = query.shape[2], options.scale_for(query.shape[2])
    q = query.view(len(requests), reader.kv_cache.num_kv_heads, -1, head_size)
    pieces = _pieces(seq_lens, reader.kv_cache, options)
    index = torch.tensor([piece.which for piece in pieces])
    row_ids = _row_ids(pieces, reader, torch.tensor(requests)[index])
    num_small, parts = len(pieces) - _count_full(pieces, reader.kv_cache), []
    for begin, end in _batches(pieces[:num_small], reader.kv_cache):
        kv = reader.copy(row_ids[begin:end, ..., : pieces[end - 1].num_blocks])
        parts.append(_attend_to_pieces(q[index[begin:end]], kv, pieces[begin:end], scale))
    if num_small < len(pieces):
        parts += _attend_to_full_pieces(q, row_ids[num_small:], index[num_small:].tolist(), reader, scale)
    outs, lses = zip(*parts, strict=True)
    out, lse = _combine_by_request(torch.cat(outs), torch.cat(lses), index.tolist())
    return out.flatten(1, 2), lse.flatten(1)


def _pieces(seq_lens: Sequence[int], kv_cache: PagedKVCache, options: AttentionOptions) -> list[_Piece]:
    """Return what each request's last token sees, in pieces, the small ones first."""
    found = []
    block_size, most = kv_cache.block_size, _blocks_at_once(kv_cache)
    for index, seq_len in enumerate(seq_lens):
        first = options.first_visible(seq_len - 1)
        end_block = -(-seq_len // block_size)
        for block in range(first // block_size, end_block, most):
            num_blocks = min(most, end_block - block)
            begin, end = max(0, first - block * block_size), min(num_blocks * block_size, seq_len - block * block_size)
            found.append(_Piece(index, block, num_blocks, begin, end))
    return sorted(found, key=lambda piece: (piece.num_blocks, piece.end - piece.begin))


def _blocks_at_once(kv_cache: PagedKVCache) -> int:
    """Return how many blocks are copied at a time."""
    block_bytes: int = kv_cache.data[0].numel() * kv_cache.data.element_size()
    return max(1, PIECE_BYTES // block_bytes)


def _count_full(pieces: Sequence[_Piece], kv_cache: PagedKVCache) -> int:
    """Return how many pieces at the end are as large as one may be, and visible from first to last."""
    most = _blocks_at_once(kv_cache)
    full = (most, 0, most * kv_cache.block_size)
    return sum(1 for _ in takewhile(lambda p: (p.num_blocks, p.begin, p.end) == full, reversed(pieces)))


def _batches(pieces: Sequence[_Piece], kv_cache: PagedKVCache) -> Iterator[tuple[int, int]]:
    """Yield which pieces to copy together, as (begin, end): padded to the last, they are no more than one may be."""
    most, begin = _blocks_at_once(kv_cache), 0
    for end in range(1, len(pieces) + 1):
        if end == len(pieces) or (end + 1 - begin) * pieces[end].num_blocks > most:
            yield begin, end
            begin = end


def _row_ids(pieces: Sequence[_Piece], reader: BlockReader, requests: Tensor) -> Tensor:
    """Return where the pieces lie; a piece with fewer blocks than the largest repeats its last one."""
    first = torch.tensor([piece.first_block for piece in pieces])
    last = first + torch.tensor([piece.num_blocks - 1 for piece in pieces])
    columns = first.unsqueeze(1) + torch.arange(pieces[-1].num_blocks)
    columns = torch.minimum(columns, last.unsqueeze(1))  # what stands behind a request's last block may be anything
    return reader.row_ids(reader.block_tables[requests.unsqueeze(1), columns])


def _attend_to_pieces(q: Tensor, kv: Tensor, pieces: Sequence[_Piece], scale: float) -> _Part:
    """Return attention of queries `[n, num_kv_heads, group, head_size]`, each over its own padded piece.

    kv         [n, 2, num_kv_heads, tokens, head_size]
    """
    begin, end, mask = pieces[0].begin, pieces[0].end, None
    if any((piece.begin, piece.end) != (begin, end) for piece in pieces):
        mask = q.new_full((len(pieces), 1, 1, kv.shape[3]), -torch.inf)
        for x, row, piece in zip(kv, mask, pieces, strict=True):
            row[..., piece.begin : piece.end] = 0
            # A weight of zero is not enough: zero times what nobody has written may be NaN.
            x[:, :, : piece.begin] = 0
            x[:, :, piece.end :] = 0
        mask = mask.expand(-1, -1, q.shape[2], -1)
    elif end - begin < kv.shape[3]:
        kv = kv[:, :, :, begin:end]
    keys, values = kv.unbind(1)
    out, lse = _fused(q, keys, values, attn_mask=mask, scale=scale)
    return out, lse


def _attend_to_full_pieces(
    q: Tensor, row_ids: Tensor, index: Sequence[int], reader: BlockReader, scale: float
) -> list[_Part]:
    """Return attention over pieces as large as one may be, each by the query that `index` says.

    Where the time goes with long requests. Each piece drives the interpreter out of the processor's cache, so that
    two calls a piece are all that this loop makes.
    """
    buffer, kv = reader.buffer(row_ids[:1].shape)
    keys, values = kv.unbind(1)
    queries, parts = q.split(1), []
    for which, ids in zip(index, row_ids.flatten(1), strict=True):
        torch.index_select(reader.rows, 0, ids, out=buffer)
        parts.append(_fused(queries[which], keys, values, scale=scale))
    return parts


def _combine_by_request(out: Tensor, lse: Tensor, index: Sequence[int]) -> _Part:
    """Return attention of each request over all of its pieces; `index` says whose each piece is."""
    places: list[list[int]] = [[] for _ in range(max(index) + 1)]
    for place, request in enumerate(index):
        places[request].append(place)
    most = max(map(len, places))
    if most * len(places) > len(index):  # those with fewer pieces than others get some of no weight
        out = torch.cat([out, torch.zeros_like(out[:1])])
        lse = torch.cat([lse, torch.full_like(lse[:1], -torch.inf)])
    table = torch.tensor([found + [len(index)] * (most - len(found)) for found in places]).T
    return _combine(out[table], lse[table])


def _prompt(q: Tensor, reader: BlockReader, request: int, seq_len: int, options: AttentionOptions) -> _Part:
    """Return result and log-sum-exp of a request with many queries, which read what was copied many times.

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
    at_once = _blocks_at_once(kv_cache) * kv_cache.block_size
    for aligned in range(first // at_once * at_once, end, at_once):
        yield max(first, aligned), min(end, aligned + at_once)


def _scores(q: Tensor, reader: BlockReader, request: int, seq_len: int, options: AttentionOptions) -> _Part:
    """Return result and log-sum-exp of a request, by way of scores."""
    query_len = q.shape[2]
    dtype = torch.float64 if q.dtype == torch.float64 else torch.float32
    q = (q * options.scale_for(q.shape[3])).to(dtype)
    parts = [
        _scores_of_a_few(q[:, :, i : i + QUERIES_AT_ONCE], reader, request, seq_len - query_len + i, options)
        for i in range(0, query_len, QUERIES_AT_ONCE)
    ]
    outs, lses = zip(*parts, strict=True)
    return torch.cat(outs, dim=2), torch.cat(lses, dim=2)


def _scores_of_a_few(q: Tensor, reader: BlockReader, request: int, position: int, options: AttentionOptions) -> _Part:
    """Return the same for scaled queries at `position` and on."""
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
    largest = scores.amax(dim=-1, keepdim=True)  # finite: everybody sees at least itself
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
    """Return attention over the union of disjoint sets of keys; see `merge`. A query's first set is not empty."""
    if len(outs) == 1:
        return outs[0], lses[0]
    lse = torch.stack(tuple(lses))
    shares = torch.softmax(lse, dim=0)
    out = outs[0] * shares[0].unsqueeze(-1)
    for part, share in zip(outs[1:], shares[1:], strict=True):
        out.addcmul_(part, share.unsqueeze(-1))
    return out, lse.amax(dim=0) - shares.amax(dim=0).log()  # the largest part's share of the whole


def _add_sinks(out: Tensor, lse: Tensor, sinks: Tensor) -> None:
    """Make it the same attention with one more score in each softmax, which stands for no token."""
    with_sinks = torch.logaddexp(lse, sinks.to(lse))
    out.mul_(torch.exp(lse - with_sinks).unsqueeze(-1))
    lse.copy_(with_sinks)

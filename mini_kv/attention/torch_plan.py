"""Plans a decode on a CPU: the pieces of requests that are copied and computed together. Once per kind of layer.

    request     0                              1     2          blocks of 4 tokens, of which 4 are copied at a time
    tokens      ....|....|....|....||....|.    ..    ....|..
    pieces      full                 b         a     c          a and b are copied together, padded; then c

Source: FlashInfer's `plan` and `run`, which split the work in the same way.
"""

from collections.abc import Iterator, Sequence
from itertools import takewhile
from typing import NamedTuple

import torch
from torch import Tensor

from mini_kv.attention.kv_cache import PagedKVCache
from mini_kv.attention.options import AttentionOptions
from mini_kv.attention.torch_reader import BlockReader

PIECE_BYTES = 2**20
"""Bytes copied at a time: half of a common second-level cache. Smaller pieces cost more calls, larger ones miss."""


class Piece(NamedTuple):
    """Blocks of one request, few enough to be copied at once, and the tokens in them that its query sees."""

    which: int
    """Index of the request, among those that decode."""
    first_block: int
    num_blocks: int
    begin: int
    """First visible token, counted from the beginning of the first block."""
    end: int


class Batch(NamedTuple):
    """Pieces that are copied together, padded to the longest."""

    which: Tensor | slice
    """Index of the request of each piece."""
    row_ids: Tensor
    visible: slice
    """Tokens that all queries see, if all see the same."""
    hidden: tuple[slice, Tensor] | None
    """Otherwise the range with hidden tokens, and the queries that must not see them, `[n, 1, 1, tokens, 1]`."""
    mask: Tensor | None
    """Values that are added to the scores, `[n, 1, 1, tokens]`: minus infinity for hidden tokens."""


class DecodePlan(NamedTuple):
    """Places of the queries, keys and values of all decoding requests."""

    rows: Tensor | slice
    """Rows of the queries, in the order of the requests' indices."""
    batches: list[Batch]
    full_row_ids: Tensor
    """Row ids of the pieces of full size."""
    full_which: list[int]
    table: Tensor | None
    """`[most pieces of a request, num_requests]`: its parts, in the order in which they are computed.

    `None`: each request is one piece, and the requests are in the order of the pieces, so that nothing is combined.
    """
    is_padded: bool
    """Whether some requests have fewer parts than others."""


def plan_decode(
    query: Tensor,
    reader: BlockReader,
    requests: list[int],
    starts: Sequence[int],
    seq_lens: Sequence[int],
    options: AttentionOptions,
) -> DecodePlan:
    """Return the plan for these requests, which have one query each."""
    kv_cache = reader.kv_cache
    pieces = _pieces([seq_lens[request] for request in requests], kv_cache, options)
    is_one_each = len(pieces) == len(requests)
    if is_one_each:
        requests = [requests[piece.which] for piece in pieces]
        pieces = [piece._replace(which=index) for index, piece in enumerate(pieces)]
    which = [piece.which for piece in pieces]
    row_ids = _row_ids(pieces, reader, [requests[index] for index in which])
    num_small = len(pieces) - _count_full(pieces, kv_cache)
    batches = []
    for begin, end in _batches(pieces[:num_small], kv_cache):
        num_blocks = pieces[end - 1].num_blocks
        visible = slice(pieces[begin].begin, pieces[begin].end)
        hidden, mask = _hidden(pieces[begin:end], num_blocks * kv_cache.block_size, query)
        queries = slice(begin, end) if is_one_each else torch.tensor(which[begin:end])
        batches.append(Batch(queries, row_ids[begin:end, ..., :num_blocks], visible, hidden, mask))
    table, is_padded = (None, False) if is_one_each else _table(which)
    rows: Tensor | slice = slice(len(requests))
    if requests != list(range(starts[-1])):
        rows = torch.tensor([starts[request] for request in requests])
    return DecodePlan(rows, batches, row_ids[num_small:], which[num_small:], table, is_padded)


def _pieces(seq_lens: Sequence[int], kv_cache: PagedKVCache, options: AttentionOptions) -> list[Piece]:
    """Return the tokens that each request's last token sees, in pieces, the small ones first."""
    found = []
    block_size, most = kv_cache.block_size, blocks_at_once(kv_cache)
    for index, seq_len in enumerate(seq_lens):
        first = options.first_visible(seq_len - 1)
        end_block = -(-seq_len // block_size)
        for block in range(first // block_size, end_block, most):
            num_blocks = min(most, end_block - block)
            begin, end = max(0, first - block * block_size), min(num_blocks * block_size, seq_len - block * block_size)
            found.append(Piece(index, block, num_blocks, begin, end))
    return sorted(found, key=lambda piece: (piece.num_blocks, piece.end - piece.begin))


def blocks_at_once(kv_cache: PagedKVCache) -> int:
    """Return the number of blocks that are copied at a time."""
    block_bytes: int = kv_cache.data[0].numel() * kv_cache.data.element_size()
    return max(1, PIECE_BYTES // block_bytes)


def _count_full(pieces: Sequence[Piece], kv_cache: PagedKVCache) -> int:
    """Return the number of pieces at the end that have full size and only visible tokens."""
    most = blocks_at_once(kv_cache)
    full = (most, 0, most * kv_cache.block_size)
    return sum(1 for _ in takewhile(lambda p: (p.num_blocks, p.begin, p.end) == full, reversed(pieces)))


def _batches(pieces: Sequence[Piece], kv_cache: PagedKVCache) -> Iterator[tuple[int, int]]:
    """Yield the pieces to copy together, as (begin, end). Padded to the last one, they have at most full size."""
    most, begin = blocks_at_once(kv_cache), 0
    for end in range(1, len(pieces) + 1):
        if end == len(pieces) or (end + 1 - begin) * pieces[end].num_blocks > most:
            yield begin, end
            begin = end


def _row_ids(pieces: Sequence[Piece], reader: BlockReader, requests: Sequence[int]) -> Tensor:
    """Return the row ids of the pieces. A piece with fewer blocks than the largest repeats its last block."""
    spans = [(row, p.first_block, p.first_block + p.num_blocks - 1) for row, p in zip(requests, pieces, strict=True)]
    rows, first, last = torch.tensor(spans).T.unsqueeze(2)
    columns = first + torch.arange(pieces[-1].num_blocks)
    columns = torch.minimum(columns, last)  # what stands behind a request's last block may be anything
    return reader.row_ids(reader.block_tables[rows, columns])


def _hidden(
    pieces: Sequence[Piece], num_tokens: int, query: Tensor
) -> tuple[tuple[slice, Tensor] | None, Tensor | None]:
    """Return `Batch.hidden` and `Batch.mask` of pieces that are padded to `num_tokens` tokens."""
    if len({(piece.begin, piece.end) for piece in pieces}) == 1:
        return None, None
    tokens, ends = torch.arange(num_tokens), torch.tensor([(piece.begin, piece.end) for piece in pieces])
    is_hidden = (tokens < ends[:, :1]) | (tokens >= ends[:, 1:])
    mask = query.new_zeros(is_hidden.shape).masked_fill_(is_hidden, -torch.inf)[:, None, None]
    all_see_the_first = all(piece.begin == 0 for piece in pieces)
    span = slice(min(piece.end for piece in pieces) if all_see_the_first else 0, num_tokens)
    return (span, is_hidden[:, None, None, span, None]), mask


def _table(index: Sequence[int]) -> tuple[Tensor, bool]:
    """Return the parts of each request, `[most parts, num_requests]`, and whether some requests have fewer than others.

    Requests with fewer parts than others get additional parts with weight 0 at the end.
    """
    places: list[list[int]] = [[] for _ in range(max(index) + 1)]
    for place, request in enumerate(index):
        places[request].append(place)
    most = max(map(len, places))
    table = torch.tensor([found + [len(index)] * (most - len(found)) for found in places]).T
    return table, most * len(places) > len(index)

"""The kernels: attention over blocks, the merge of its splits, the write of new keys and values.

They run on a GPU. With TRITON_INTERPRET=1 in the environment before this module is imported, they run on any Linux CPU.

A program of `attend_kernel` has a few queries of one request, with all query heads that share one KV head. So each
key is loaded once for all of them. The program loops over the request's positions tile by tile. A long context may be
split over several programs, each with its own softmax. `merge_kernel` combines these.

    rows of a program, 3 query heads that share one KV head, 16 rows:
        query     0 0 0  1 1 1  2 2 2  3 3 3  4 4 4  -          BLOCK_Q = 5; the last row is idle
        head      0 1 2  0 1 2  0 1 2  0 1 2  0 1 2

    positions     |begin ... full_end|   every row sees all of them: no mask, no bounds
                                     |full_end ... end|   each row its own part: causal, window, chunk

Names in capitals are known when the kernel is compiled. Scores are kept times log2(e), since the hardware has exp2.
"""

import triton
import triton.language as tl

# fmt: off

LOG2E = tl.constexpr(1.4426950408889634)
LN2 = tl.constexpr(0.6931471805599453)

# Integers that change while a server runs. Triton would compile a kernel again when one becomes 1 or a multiple of 16.
CHANGING = ("num_reqs", "table_stride", "num_splits", "lse_stride_split", "num_rows")


@triton.jit
def find_queries(query_start_loc, num_reqs, BLOCK_Q: tl.constexpr, ONE_QUERY_EACH: tl.constexpr):
    """Return a program's request, and the index of its first query in it, which may be after the request's last query.

    query_start_loc     [num_reqs + 1], int32

    Request r's tiles are numbered from `start_loc[r] // BLOCK_Q + r` on. So some tile ids are unused. But a request's
    first tile follows from `query_start_loc` alone, so binary search finds the request.
    """
    tile = tl.num_programs(0) - 1 - tl.program_id(0)  # the end of a long prompt has most to do, and begins
    request = 0
    if ONE_QUERY_EACH:
        return tile, request
    behind = num_reqs
    while behind - request > 1:
        middle = (request + behind) // 2
        if tl.load(query_start_loc + middle) // BLOCK_Q + middle <= tile:
            request = middle
        else:
            behind = middle
    return request, (tile - tl.load(query_start_loc + request) // BLOCK_Q - request) * BLOCK_Q


@triton.jit
def first_visible_position(position, WINDOW: tl.constexpr, CHUNK: tl.constexpr):
    """Return the first position that the token at `position` sees: `AttentionOptions.first_visible`."""
    first = 0
    if WINDOW > 0:
        first = tl.maximum(first, position - WINDOW + 1)
    if CHUNK > 0:
        first = tl.maximum(first, position // CHUNK * CHUNK)
    return first


@triton.jit
def range_to_read(
    first_position, end, split, split_tokens,
    TILE: tl.constexpr, WINDOW: tl.constexpr, CHUNK: tl.constexpr, IS_SPLIT: tl.constexpr,
):
    """Return first_visible, begin, full_end and end of a program with queries at positions `first_position` to `end`.

    Nothing before `first_visible` may be read. `begin` is the start of its tile or of the split, which may be empty.
    """
    first_visible = first_visible_position(first_position, WINDOW, CHUNK)
    begin = first_visible // TILE * TILE
    if IS_SPLIT:
        begin += split * split_tokens
        end = tl.minimum(end, begin + split_tokens)
    full_end = begin
    if WINDOW == 0 and CHUNK == 0:
        full_end = tl.maximum(begin, tl.minimum(end, first_position + 1) // TILE * TILE)
    return first_visible, begin, full_end, end


@triton.jit
def add_sink(
    acc, total, largest,  # as in `attend_to_tiles`
    sink,  # [BLOCK_M], float32: of each row's head
):
    """Return the three running sums with the sink's score added to each softmax."""
    sink = sink.to(tl.float32) * LOG2E
    with_sink = tl.maximum(largest, sink)
    shrink = tl.exp2(largest - with_sink)
    return acc * shrink[:, None], total * shrink + tl.exp2(sink - with_sink), with_sink


@triton.jit(do_not_specialize=CHANGING)
def attend_kernel(
    out,  # [num_splits, num_tokens, num_heads, head_size]: float32 if split, else the query's dtype
    lse,  # [num_splits, num_tokens, num_heads], float32
    query,  # [num_tokens, num_heads, head_size]
    k_cache, v_cache,  # [num_blocks, block_size, num_kv_heads, head_size]
    k_scales, v_scales,  # [num_blocks, block_size, num_kv_heads], float32: of an int8 cache
    sinks,  # [num_heads], float32
    block_tables,  # [num_reqs, max_num_blocks], int32
    seq_lens, query_start_loc,  # [num_reqs], [num_reqs + 1], int32
    num_reqs, score_scale, value_scale,  # of q times k, of all values: the scales of an fp8 cache included
    soft_cap, split_tokens,  # positions per split, a multiple of TILE
    out_stride_split, out_stride_token, out_stride_head, lse_stride_split, lse_stride_token,
    query_stride_token, query_stride_head, cache_stride_block, cache_stride_slot, cache_stride_head,
    scales_stride_block, scales_stride_slot, scales_stride_head, table_stride,
    BLOCK_SIZE: tl.constexpr, HEAD_SIZE: tl.constexpr, BLOCK_D: tl.constexpr,  # head size, up to a power of two
    GROUP: tl.constexpr, BLOCK_M: tl.constexpr, TILE: tl.constexpr,  # heads per KV head; rows; positions per step
    WINDOW: tl.constexpr, CHUNK: tl.constexpr,  # 0: none
    HAS_SOFT_CAP: tl.constexpr, HAS_SINKS: tl.constexpr, HAS_SCALES: tl.constexpr,
    IS_SPLIT: tl.constexpr, ONE_QUERY_EACH: tl.constexpr, COMPUTE: tl.constexpr,  # COMPUTE: dtype that is multiplied
):
    """Compute attention of a tile of queries over a split. Grid: (tiles of queries, num_kv_heads, num_splits)."""
    BLOCK_Q: tl.constexpr = BLOCK_M // GROUP
    kv_head, split = tl.program_id(1), tl.program_id(2)
    request, first_query = find_queries(query_start_loc, num_reqs, BLOCK_Q, ONE_QUERY_EACH)
    start = tl.load(query_start_loc + request)
    query_len = tl.load(query_start_loc + request + 1) - start
    if first_query >= query_len:
        return
    seq_len = tl.load(seq_lens + request)

    rows = tl.arange(0, BLOCK_M)
    queries = first_query + rows // GROUP
    heads = kv_head * GROUP + rows % GROUP
    is_row = (rows // GROUP < BLOCK_Q) & (queries < query_len)
    tokens = (start + queries).to(tl.int64)
    elements = tl.arange(0, BLOCK_D)
    first_position = seq_len - query_len + first_query
    positions = first_position + rows // GROUP  # [BLOCK_M], of the queries
    end = tl.minimum(first_position + BLOCK_Q, seq_len)
    first_visible, begin, full_end, end = range_to_read(
        first_position, end, split, split_tokens, TILE, WINDOW, CHUNK, IS_SPLIT)

    q_rows = query + tokens[:, None] * query_stride_token + heads[:, None] * query_stride_head + elements[None, :]
    q = tl.load(q_rows, mask=is_row[:, None] & (elements[None, :] < HEAD_SIZE), other=0.0).to(COMPUTE)
    table = block_tables + request.to(tl.int64) * table_stride
    acc = tl.zeros([BLOCK_M, BLOCK_D], dtype=tl.float32)
    total = tl.zeros([BLOCK_M], dtype=tl.float32)
    largest = tl.full([BLOCK_M], float("-inf"), tl.float32)
    for part in tl.static_range(2):  # 0: without masks, 1: with
        acc, total, largest = attend_to_tiles(
            acc, total, largest, q, positions, table,
            k_cache + kv_head * cache_stride_head, v_cache + kv_head * cache_stride_head,
            k_scales + kv_head * scales_stride_head, v_scales + kv_head * scales_stride_head,
            begin if part == 0 else full_end, full_end if part == 0 else end, first_visible, score_scale, soft_cap,
            cache_stride_block, cache_stride_slot, scales_stride_block, scales_stride_slot,
            BLOCK_SIZE, HEAD_SIZE, BLOCK_D, TILE, WINDOW, CHUNK, HAS_SOFT_CAP, HAS_SCALES, part == 1, COMPUTE,
        )

    if HAS_SINKS and not IS_SPLIT:
        acc, total, largest = add_sink(acc, total, largest, tl.load(sinks + heads, mask=is_row, other=0.0))
    acc = acc * value_scale
    out_rows = out + split * out_stride_split + tokens * out_stride_token + heads * out_stride_head
    lse_rows = lse + split * lse_stride_split + tokens * lse_stride_token + heads
    store_result(acc, total, largest, out_rows, lse_rows, is_row, HEAD_SIZE, BLOCK_D)


@triton.jit
def store_result(
    acc, total, largest,  # as in `attend_to_tiles`
    out_rows,  # [BLOCK_M] pointers to [head_size]: float32, or the query's dtype
    lse_rows,  # [BLOCK_M] pointers to float32
    is_row,  # [BLOCK_M]
    HEAD_SIZE: tl.constexpr, BLOCK_D: tl.constexpr,
):
    """Finish the softmax and store it, with its log-sum-exp."""
    is_empty = total == 0.0  # a row that sees none of these positions
    total = tl.where(is_empty, 1.0, total)
    tl.store(lse_rows, tl.where(is_empty, float("-inf"), (largest + tl.log2(total)) * LN2), mask=is_row)
    elements = tl.arange(0, BLOCK_D)
    is_there = is_row[:, None] & (elements[None, :] < HEAD_SIZE)
    found = acc / total[:, None]
    tl.store(out_rows[:, None] + elements[None, :], found.to(out_rows.dtype.element_ty), mask=is_there)


@triton.jit
def load_tile(
    rows,  # [num_blocks, block_size, head_size], strided: one head's keys or values
    slots,  # [TILE], int64: where each position's row begins
    is_read,  # [TILE]
    elements,  # [BLOCK_D]
    HEAD_SIZE: tl.constexpr, BLOCK_D: tl.constexpr, MASKED: tl.constexpr,
):
    """Return the rows, [TILE, BLOCK_D], with zeros where nothing is read."""
    tile = rows + slots[:, None] + elements[None, :]
    if MASKED:
        return tl.load(tile, mask=is_read[:, None] & (elements[None, :] < HEAD_SIZE), other=0.0)
    if BLOCK_D == HEAD_SIZE:
        return tl.load(tile)
    return tl.load(tile, mask=elements[None, :] < HEAD_SIZE, other=0.0)


@triton.jit
def attend_to_tiles(
    acc,  # [BLOCK_M, BLOCK_D], float32: the sum of the values so far, each times exp2(its score - largest)
    total,  # [BLOCK_M], float32: the sum of these factors
    largest,  # [BLOCK_M], float32: the largest score so far
    q,  # [BLOCK_M, BLOCK_D]
    query_positions,  # [BLOCK_M]
    table,  # [max_num_blocks], int32: the request's row of the block table
    keys,  # [num_blocks, block_size, head_size], strided: this head's
    values,  # the same
    k_scales,  # [num_blocks, block_size], float32, strided
    v_scales,  # the same
    begin, end,
    first_visible,  # nothing before it is read
    score_scale, soft_cap,
    stride_block, stride_slot, scales_stride_block, scales_stride_slot,
    BLOCK_SIZE: tl.constexpr, HEAD_SIZE: tl.constexpr, BLOCK_D: tl.constexpr, TILE: tl.constexpr,
    WINDOW: tl.constexpr, CHUNK: tl.constexpr, HAS_SOFT_CAP: tl.constexpr, HAS_SCALES: tl.constexpr,
    MASKED: tl.constexpr, COMPUTE: tl.constexpr,
):
    """Return the three running sums with positions `begin` to `end` added. Without MASKED, all rows see whole tiles."""
    elements = tl.arange(0, BLOCK_D)
    ahead = begin + tl.arange(0, TILE)
    # A tile's block ids are loaded one tile ahead: else the pipeliner keeps no keys in flight, waiting for addresses.
    ids = tl.load(table + ahead // BLOCK_SIZE, mask=(ahead >= first_visible) & (ahead < end), other=0)
    for tile_begin in range(begin, end, TILE):
        positions = tile_begin + tl.arange(0, TILE)
        blocks = ids.to(tl.int64)  # int32 times the stride overflows at a million tokens per layer
        ahead = positions + TILE
        ids = tl.load(table + ahead // BLOCK_SIZE, mask=ahead < end, other=0)
        slots = blocks * stride_block + (positions % BLOCK_SIZE) * stride_slot
        is_read = (positions >= first_visible) & (positions < end)
        v = load_tile(values, slots, is_read, elements, HEAD_SIZE, BLOCK_D, MASKED)  # [TILE, BLOCK_D]
        k = load_tile(keys, slots, is_read, elements, HEAD_SIZE, BLOCK_D, MASKED)

        scores = tl.dot(q, tl.trans(k.to(COMPUTE)), input_precision="ieee") * score_scale
        if HAS_SCALES:  # a key's scale is a factor of its column; a value's goes to its weight below
            scale_slots = blocks * scales_stride_block + (positions % BLOCK_SIZE) * scales_stride_slot
            scores *= tl.load(k_scales + scale_slots, mask=is_read, other=0.0)[None, :]
        if HAS_SOFT_CAP:
            scores = soft_cap * (1.0 - 2.0 / (tl.exp2(scores * (2.0 * LOG2E / soft_cap)) + 1.0))  # cap * tanh(s / cap)
        scores *= LOG2E
        if MASKED:
            is_seen = is_read[None, :] & (positions[None, :] <= query_positions[:, None])
            if WINDOW > 0:
                is_seen &= query_positions[:, None] - positions[None, :] < WINDOW
            if CHUNK > 0:
                is_seen &= query_positions[:, None] // CHUNK == positions[None, :] // CHUNK
            scores = tl.where(is_seen, scores, float("-inf"))

        new_largest = tl.maximum(largest, tl.max(scores, 1))
        anchor = new_largest
        if MASKED:  # a row may have seen nothing yet, and minus infinity minus itself is NaN
            anchor = tl.where(new_largest == float("-inf"), 0.0, new_largest)
        weights = tl.exp2(scores - anchor[:, None])
        shrink = tl.exp2(largest - anchor)
        total = total * shrink + tl.sum(weights, 1)
        if HAS_SCALES:
            weights *= tl.load(v_scales + scale_slots, mask=is_read, other=0.0)[None, :]
        acc = acc * shrink[:, None]
        acc = tl.dot(weights.to(COMPUTE), v.to(COMPUTE), acc, input_precision="ieee")
        largest = new_largest
    return acc, total, largest


@triton.jit(do_not_specialize=CHANGING)
def merge_kernel(
    out,  # [num_tokens, num_heads, head_size]
    lse,  # [num_tokens, num_heads], float32
    parts,  # [num_splits, num_tokens, num_heads, head_size], float32
    part_lses,  # [num_splits, num_tokens, num_heads], float32; minus infinity: nothing in that part
    sinks,  # [num_heads], float32
    query_start_loc,  # [num_reqs + 1], int32
    num_reqs, num_splits,
    out_stride_token, out_stride_head, part_stride_split, part_stride_token, lse_stride_split, lse_stride_token,
    HEAD_SIZE: tl.constexpr, BLOCK_D: tl.constexpr,
    BLOCK_S: tl.constexpr,  # num_splits, rounded up to a power of two
    HAS_SINKS: tl.constexpr,
):
    """Combine the splits of one token and head. Grid: (num_tokens, num_heads)."""
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    if token >= tl.load(query_start_loc + num_reqs):
        return  # a token of no request: the batch was padded
    splits = tl.arange(0, BLOCK_S)
    elements = tl.arange(0, BLOCK_D)
    lse_rows = part_lses + splits * lse_stride_split + token * lse_stride_token + head
    lses = tl.load(lse_rows, mask=splits < num_splits, other=float("-inf"))
    largest = tl.max(lses, 0)
    if HAS_SINKS:
        sink = tl.load(sinks + head).to(tl.float32)
        largest = tl.maximum(largest, sink)
    weights = tl.exp(lses - largest)
    total = tl.sum(weights, 0)
    if HAS_SINKS:
        total += tl.exp(sink - largest)
    part_rows = parts + splits[:, None] * part_stride_split + token * part_stride_token + head * HEAD_SIZE
    is_there = (lses > float("-inf"))[:, None] & (elements[None, :] < HEAD_SIZE)
    found = tl.load(part_rows + elements[None, :], mask=is_there, other=0.0)
    merged = tl.sum(found * (weights / total)[:, None], 0)
    tl.store(lse + token * lse_stride_token + head, largest + tl.log(total))
    out_row = out + token * out_stride_token + head * out_stride_head
    tl.store(out_row + elements, merged.to(out.dtype.element_ty), mask=elements < HEAD_SIZE)


@triton.jit(do_not_specialize=CHANGING)
def write_kv_kernel(
    key,  # [num_tokens, num_kv_heads, head_size]
    value,  # the same
    k_cache,  # [num_blocks, block_size, num_kv_heads, head_size]
    v_cache,  # the same
    k_scales,  # [num_blocks, block_size, num_kv_heads], float32: written, if the cache is int8
    v_scales,  # the same
    slot_mapping,  # [num_tokens], int64; -1: not written
    num_rows,  # num_tokens * num_kv_heads
    key_stride_token, key_stride_head, value_stride_token, value_stride_head,
    cache_stride_block, cache_stride_slot, cache_stride_head,
    scales_stride_block, scales_stride_slot, scales_stride_head,
    NUM_KV_HEADS: tl.constexpr, BLOCK_SIZE: tl.constexpr, HEAD_SIZE: tl.constexpr, BLOCK_D: tl.constexpr,
    ROWS: tl.constexpr,  # of a program; a row is a token's head
    HAS_SCALES: tl.constexpr,
):
    """Write new keys and values to their slots. Grid: (tiles of rows, 2), for keys and values."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    tokens = (rows // NUM_KV_HEADS).to(tl.int64)
    heads = rows % NUM_KV_HEADS
    slots = tl.load(slot_mapping + tokens, mask=rows < num_rows, other=-1)
    is_written = slots >= 0
    blocks = slots // BLOCK_SIZE
    offsets = slots % BLOCK_SIZE
    if tl.program_id(1) == 0:
        source = key + tokens * key_stride_token + heads * key_stride_head
        cache, scales = k_cache, k_scales
    else:
        source = value + tokens * value_stride_token + heads * value_stride_head
        cache, scales = v_cache, v_scales
    elements = tl.arange(0, BLOCK_D)
    is_there = is_written[:, None] & (elements[None, :] < HEAD_SIZE)
    x = tl.load(source[:, None] + elements[None, :], mask=is_there, other=0.0)
    if HAS_SCALES:
        x = x.to(tl.float32)
        scale = tl.div_rn(tl.max(tl.abs(x), 1), 127.0)
        scale_slots = blocks * scales_stride_block + offsets * scales_stride_slot + heads * scales_stride_head
        tl.store(scales + scale_slots, scale, mask=is_written)
        x = tl.div_rn(x, tl.where(scale == 0.0, 1.0, scale)[:, None].broadcast_to(x.shape))
        # plus and minus 1.5 * 2**23: what is left of a float is rounded, half to even, as torch does
        x = (x + 12582912.0) - 12582912.0
    target = cache + blocks * cache_stride_block + offsets * cache_stride_slot + heads * cache_stride_head
    tl.store(target[:, None] + elements[None, :], x.to(cache.dtype.element_ty), mask=is_there)

"""An alternative: the tokens of a request are split among programs, and a second kernel merges what they found.

So a batch of one long request keeps a whole GPU busy. The partial results are in float32, each with its largest score
and its sum of weights; a split without tokens leaves a weight of zero.
"""
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def reshape_and_cache_kernel(
    key,
    value,
    k_cache,
    v_cache,
    slot_mapping,
    key_stride_token,
    key_stride_head,
    value_stride_token,
    value_stride_head,
    cache_stride_block,
    cache_stride_slot,
    cache_stride_head,
    BLOCK_SIZE: tl.constexpr,
    HEAD_SIZE: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """Write one head of one token; grid: (num_tokens, num_kv_heads)."""
    token, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    elements = tl.arange(0, BLOCK_D)
    slot = tl.load(slot_mapping + token)
    is_there = (elements < HEAD_SIZE) & (slot >= 0)
    lanes = slot // BLOCK_SIZE * cache_stride_block + slot % BLOCK_SIZE * cache_stride_slot
    lanes = lanes + head * cache_stride_head + elements
    k = tl.load(key + token * key_stride_token + head * key_stride_head + elements, mask=is_there, other=0.0)
    v = tl.load(value + token * value_stride_token + head * value_stride_head + elements, mask=is_there, other=0.0)
    tl.store(k_cache + lanes, k, mask=is_there)
    tl.store(v_cache + lanes, v, mask=is_there)


def reshape_and_cache(key: Tensor, value: Tensor, k_cache: Tensor, v_cache: Tensor, slot_mapping: Tensor) -> None:
    """Start the kernel, one program for each head of each token."""
    num_tokens, num_kv_heads, head_size = key.shape
    reshape_and_cache_kernel[(num_tokens, num_kv_heads)](
        key,
        value,
        k_cache,
        v_cache,
        slot_mapping,
        *key.stride()[:2],
        *value.stride()[:2],
        *k_cache.stride()[:3],
        BLOCK_SIZE=k_cache.shape[1],
        HEAD_SIZE=head_size,
        BLOCK_D=triton.next_power_of_2(head_size),
    )


@triton.jit
def paged_attention_decode_kernel(
    parts,  # [num_splits, num_reqs, num_heads, head_size], float32
    part_largest,  # [num_splits, num_reqs, num_heads], float32
    part_total,  # the same
    query,
    k_cache,
    v_cache,
    block_tables,
    seq_lens,
    scale,
    num_heads,
    query_stride_req,
    query_stride_head,
    cache_stride_block,
    cache_stride_slot,
    cache_stride_head,
    table_stride,
    GROUP: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    HEAD_SIZE: tl.constexpr,
    BLOCK_G: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCKS_A_SPLIT: tl.constexpr,
):
    """Attend to one split; grid: (num_reqs, num_kv_heads, num_splits)."""
    request, kv_head, split = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    seq_len = tl.load(seq_lens + request)
    group, slots, elements = tl.arange(0, BLOCK_G), tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_D)
    heads = kv_head * GROUP + group
    rows = (split * tl.num_programs(0) + request) * num_heads + heads
    first = split * BLOCKS_A_SPLIT
    end = tl.minimum(first + BLOCKS_A_SPLIT, tl.cdiv(seq_len, BLOCK_SIZE))
    if first >= end:
        tl.store(part_total + rows, tl.zeros([BLOCK_G], dtype=tl.float32), mask=group < GROUP)
        return
    is_query = (group < GROUP)[:, None] & (elements < HEAD_SIZE)[None, :]
    q_rows = query + request * query_stride_req + heads[:, None] * query_stride_head
    q = tl.load(q_rows + elements[None, :], mask=is_query, other=0.0).to(tl.float32)
    largest = tl.full([BLOCK_G], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_G], dtype=tl.float32)
    acc = tl.zeros([BLOCK_G, BLOCK_D], dtype=tl.float32)
    for index in range(first, end):
        block = tl.load(block_tables + request * table_stride + index).to(tl.int64)
        is_token = (slots < BLOCK_SIZE) & (index * BLOCK_SIZE + slots < seq_len)
        is_there = is_token[:, None] & (elements < HEAD_SIZE)[None, :]
        lanes = block * cache_stride_block + slots[:, None] * cache_stride_slot + kv_head * cache_stride_head
        k = tl.load(k_cache + lanes + elements[None, :], mask=is_there, other=0.0).to(tl.float32)
        scores = tl.where(is_token[None, :], tl.sum(q[:, None, :] * k[None, :, :], 2) * scale, float("-inf"))
        new_largest = tl.maximum(largest, tl.max(scores, 1))
        weights = tl.exp(scores - new_largest[:, None])
        total = total * tl.exp(largest - new_largest) + tl.sum(weights, 1)
        v = tl.load(v_cache + lanes + elements[None, :], mask=is_there, other=0.0).to(tl.float32)
        acc = acc * tl.exp(largest - new_largest)[:, None] + tl.sum(weights[:, :, None] * v[None, :, :], 1)
        largest = new_largest
    tl.store(part_largest + rows, largest, mask=group < GROUP)
    tl.store(part_total + rows, total, mask=group < GROUP)
    tl.store(parts + rows[:, None] * HEAD_SIZE + elements[None, :], acc, mask=is_query)


@triton.jit
def merge_kernel(
    out,
    parts,
    part_largest,
    part_total,
    num_splits,
    out_stride_req,
    out_stride_head,
    HEAD_SIZE: tl.constexpr,
    BLOCK_S: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """Merge the splits of one row; grid: (num_reqs, num_heads)."""
    request, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    num_rows = tl.num_programs(0) * tl.num_programs(1)
    splits, elements = tl.arange(0, BLOCK_S), tl.arange(0, BLOCK_D)
    rows = splits * num_rows + request * tl.num_programs(1) + head
    totals = tl.load(part_total + rows, mask=splits < num_splits, other=0.0)
    largest = tl.load(part_largest + rows, mask=totals > 0, other=float("-inf"))
    if tl.sum(totals, 0) > 0:
        factors = tl.exp(largest - tl.max(largest, 0))
        is_there = (totals > 0)[:, None] & (elements < HEAD_SIZE)[None, :]
        found = tl.load(parts + rows[:, None] * HEAD_SIZE + elements[None, :], mask=is_there, other=0.0)
        merged = tl.sum(found * factors[:, None], 0) / tl.sum(totals * factors, 0)
        out_row = out + request * out_stride_req + head * out_stride_head
        tl.store(out_row + elements, merged, mask=elements < HEAD_SIZE)


def paged_attention_decode(
    out: Tensor,
    query: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_tables: Tensor,
    seq_lens: Tensor,
    scale: float,
) -> None:
    """Start both kernels, two blocks a split."""
    num_reqs, num_heads, head_size = query.shape
    _, block_size, num_kv_heads, _ = k_cache.shape
    group, num_splits = num_heads // num_kv_heads, triton.cdiv(int(seq_lens.max()), 2 * block_size)
    if num_splits == 0:
        return
    parts = query.new_empty((num_splits, *query.shape))
    part_largest, part_total = query.new_empty(parts.shape[:3]), query.new_empty(parts.shape[:3])
    paged_attention_decode_kernel[(num_reqs, num_kv_heads, num_splits)](
        parts,
        part_largest,
        part_total,
        query,
        k_cache,
        v_cache,
        block_tables,
        seq_lens,
        scale,
        num_heads,
        *query.stride()[:2],
        *k_cache.stride()[:3],
        block_tables.stride(0),
        GROUP=group,
        BLOCK_SIZE=block_size,
        HEAD_SIZE=head_size,
        BLOCK_G=triton.next_power_of_2(group),
        BLOCK_N=triton.next_power_of_2(block_size),
        BLOCK_D=triton.next_power_of_2(head_size),
        BLOCKS_A_SPLIT=2,
    )
    merge_kernel[(num_reqs, num_heads)](
        out,
        parts,
        part_largest,
        part_total,
        num_splits,
        *out.stride()[:2],
        HEAD_SIZE=head_size,
        BLOCK_S=triton.next_power_of_2(num_splits),
        BLOCK_D=triton.next_power_of_2(head_size),
    )

"""An alternative: tiles of 32 positions, whatever the block size; ids looked up lane by lane; products by `tl.dot`.

So do the kernels of vLLM. The write kernel takes rows of many tokens at once, and is started once for the keys and once
for the values.
"""
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def reshape_and_cache_kernel(
    source,
    cache,
    slot_mapping,
    num_tokens,
    source_stride_token,
    source_stride_head,
    cache_stride_block,
    cache_stride_slot,
    cache_stride_head,
    NUM_KV_HEADS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    HEAD_SIZE: tl.constexpr,
    BLOCK_D: tl.constexpr,
    ROWS: tl.constexpr,
):
    """Write rows, a row being one head of one token; grid: (tiles of rows,)."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    tokens, heads = rows // NUM_KV_HEADS, rows % NUM_KV_HEADS
    slots = tl.load(slot_mapping + tokens, mask=tokens < num_tokens, other=-1)
    elements = tl.arange(0, BLOCK_D)
    is_there = (slots >= 0)[:, None] & (elements < HEAD_SIZE)[None, :]
    sources = source + tokens.to(tl.int64) * source_stride_token + heads * source_stride_head
    targets = slots // BLOCK_SIZE * cache_stride_block + slots % BLOCK_SIZE * cache_stride_slot
    targets += heads * cache_stride_head
    numbers = tl.load(sources[:, None] + elements[None, :], mask=is_there)
    tl.store(cache + targets[:, None] + elements[None, :], numbers, mask=is_there)


def reshape_and_cache(key: Tensor, value: Tensor, k_cache: Tensor, v_cache: Tensor, slot_mapping: Tensor) -> None:
    """Start the kernel twice: for the keys, for the values."""
    num_tokens, num_kv_heads, head_size = key.shape
    for source, cache in ((key, k_cache), (value, v_cache)):
        reshape_and_cache_kernel[(triton.cdiv(num_tokens * num_kv_heads, 16),)](
            source,
            cache,
            slot_mapping,
            num_tokens,
            *source.stride()[:2],
            *cache.stride()[:3],
            NUM_KV_HEADS=num_kv_heads,
            BLOCK_SIZE=cache.shape[1],
            HEAD_SIZE=head_size,
            BLOCK_D=triton.next_power_of_2(head_size),
            ROWS=16,
        )


@triton.jit
def paged_attention_decode_kernel(
    out,
    query,
    k_cache,
    v_cache,
    block_tables,
    seq_lens,
    scale,
    out_stride_req,
    out_stride_head,
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
    BLOCK_D: tl.constexpr,
    TILE: tl.constexpr,
):
    """Attend with a group of heads; grid: (num_kv_heads, num_reqs)."""
    kv_head, request = tl.program_id(0), tl.program_id(1)
    seq_len = tl.load(seq_lens + request)
    if seq_len > 0:
        group, elements = tl.arange(0, BLOCK_G), tl.arange(0, BLOCK_D)
        is_query = (group < GROUP)[:, None] & (elements < HEAD_SIZE)[None, :]
        heads = kv_head * GROUP + group
        q_rows = query + request * query_stride_req + heads * query_stride_head
        q = tl.load(q_rows[:, None] + elements[None, :], mask=is_query, other=0.0).to(tl.float32)
        q *= scale * 1.4426950408889634  # then powers of two do for powers of e
        largest = tl.full([BLOCK_G], float("-inf"), tl.float32)
        total = tl.zeros([BLOCK_G], dtype=tl.float32)
        acc = tl.zeros([BLOCK_G, BLOCK_D], dtype=tl.float32)
        for begin in range(0, seq_len, TILE):
            positions = begin + tl.arange(0, TILE)
            is_token = positions < seq_len
            ids = tl.load(block_tables + request * table_stride + positions // BLOCK_SIZE, mask=is_token, other=0)
            lanes = ids.to(tl.int64) * cache_stride_block + positions % BLOCK_SIZE * cache_stride_slot
            lanes = (lanes + kv_head * cache_stride_head)[:, None] + elements[None, :]
            is_there = is_token[:, None] & (elements < HEAD_SIZE)[None, :]
            k = tl.load(k_cache + lanes, mask=is_there, other=0.0).to(tl.float32)
            scores = tl.dot(q, tl.trans(k), input_precision="ieee")
            scores = tl.where(is_token[None, :], scores, float("-inf"))
            new_largest = tl.maximum(largest, tl.max(scores, 1))
            weights = tl.exp2(scores - new_largest[:, None])
            shrink = tl.exp2(largest - new_largest)
            v = tl.load(v_cache + lanes, mask=is_there, other=0.0).to(tl.float32)
            acc = tl.dot(weights, v, acc * shrink[:, None], input_precision="ieee")
            total = total * shrink + tl.sum(weights, 1)
            largest = new_largest
        out_rows = out + request * out_stride_req + heads * out_stride_head
        tl.store(out_rows[:, None] + elements[None, :], acc / total[:, None], mask=is_query)


def paged_attention_decode(
    out: Tensor,
    query: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_tables: Tensor,
    seq_lens: Tensor,
    scale: float,
) -> None:
    """Start the kernel, one program for each head of keys and request."""
    num_reqs, num_heads, head_size = query.shape
    _, block_size, num_kv_heads, _ = k_cache.shape
    group = num_heads // num_kv_heads
    paged_attention_decode_kernel[(num_kv_heads, num_reqs)](
        out,
        query,
        k_cache,
        v_cache,
        block_tables,
        seq_lens,
        scale,
        *out.stride()[:2],
        *query.stride()[:2],
        *k_cache.stride()[:3],
        block_tables.stride(0),
        GROUP=group,
        BLOCK_SIZE=block_size,
        HEAD_SIZE=head_size,
        BLOCK_G=max(16, triton.next_power_of_2(group)),  # tl.dot wants sixteen rows
        BLOCK_D=max(16, triton.next_power_of_2(head_size)),
        TILE=32,
    )

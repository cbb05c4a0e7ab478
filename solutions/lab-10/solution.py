"""lab-10: the reference solution."""
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def reshape_and_cache_kernel(
    key,  # [num_tokens, num_kv_heads, head_size]
    value,  # the same
    k_cache,  # [num_blocks, block_size, num_kv_heads, head_size]
    v_cache,  # the same
    slot_mapping,  # [num_tokens], int64
    key_stride_token,
    key_stride_head,
    value_stride_token,
    value_stride_head,
    cache_stride_block,
    cache_stride_slot,
    cache_stride_head,
    NUM_KV_HEADS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    HEAD_SIZE: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """Write one token's keys and values to its slot; grid: (num_tokens,)."""
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slot_mapping + token)
    if slot < 0:
        return
    heads = tl.arange(0, BLOCK_H)[:, None]
    elements = tl.arange(0, BLOCK_D)[None, :]
    is_there = (heads < NUM_KV_HEADS) & (elements < HEAD_SIZE)
    target = slot // BLOCK_SIZE * cache_stride_block + slot % BLOCK_SIZE * cache_stride_slot
    lanes = target + heads * cache_stride_head + elements
    k = tl.load(key + token * key_stride_token + heads * key_stride_head + elements, mask=is_there, other=0.0)
    tl.store(k_cache + lanes, k.to(k_cache.dtype.element_ty), mask=is_there)
    v = tl.load(value + token * value_stride_token + heads * value_stride_head + elements, mask=is_there, other=0.0)
    tl.store(v_cache + lanes, v.to(v_cache.dtype.element_ty), mask=is_there)


def reshape_and_cache(key: Tensor, value: Tensor, k_cache: Tensor, v_cache: Tensor, slot_mapping: Tensor) -> None:
    """Start `reshape_and_cache_kernel`, one program per token."""
    num_tokens, num_kv_heads, head_size = key.shape
    reshape_and_cache_kernel[(num_tokens,)](
        key,
        value,
        k_cache,
        v_cache,
        slot_mapping,
        *key.stride()[:2],
        *value.stride()[:2],
        *k_cache.stride()[:3],
        NUM_KV_HEADS=num_kv_heads,
        BLOCK_SIZE=k_cache.shape[1],
        HEAD_SIZE=head_size,
        BLOCK_H=triton.next_power_of_2(num_kv_heads),
        BLOCK_D=triton.next_power_of_2(head_size),
    )


@triton.jit
def paged_attention_decode_kernel(
    out,  # [num_reqs, num_heads, head_size]
    query,  # the same shape
    k_cache,  # [num_blocks, block_size, num_kv_heads, head_size]
    v_cache,  # the same
    block_tables,  # [num_reqs, max_num_blocks], int32
    seq_lens,  # [num_reqs], int32
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
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """Attend with the heads that share one head of keys; grid: (num_reqs, num_kv_heads)."""
    request = tl.program_id(0).to(tl.int64)
    kv_head = tl.program_id(1)
    seq_len = tl.load(seq_lens + request)
    if seq_len == 0:
        return
    group = tl.arange(0, BLOCK_G)
    heads = kv_head * GROUP + group
    slots = tl.arange(0, BLOCK_N)
    elements = tl.arange(0, BLOCK_D)
    is_element = elements < HEAD_SIZE
    is_query = (group < GROUP)[:, None] & is_element[None, :]
    q_rows = query + request * query_stride_req + heads[:, None] * query_stride_head
    q = tl.load(q_rows + elements[None, :], mask=is_query, other=0.0).to(tl.float32) * scale

    largest = tl.full([BLOCK_G], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_G], dtype=tl.float32)
    acc = tl.zeros([BLOCK_G, BLOCK_D], dtype=tl.float32)
    for index in range(tl.cdiv(seq_len, BLOCK_SIZE)):
        block = tl.load(block_tables + request * table_stride + index).to(tl.int64)
        is_token = (slots < BLOCK_SIZE) & (index * BLOCK_SIZE + slots < seq_len)
        is_there = is_token[:, None] & is_element[None, :]
        lanes = block * cache_stride_block + slots[:, None] * cache_stride_slot + kv_head * cache_stride_head
        lanes += elements[None, :]
        k = tl.load(k_cache + lanes, mask=is_there, other=0.0).to(tl.float32)
        v = tl.load(v_cache + lanes, mask=is_there, other=0.0).to(tl.float32)
        scores = tl.sum(q[:, None, :] * k[None, :, :], 2)  # [BLOCK_G, BLOCK_N]
        scores = tl.where(is_token[None, :], scores, float("-inf"))
        new_largest = tl.maximum(largest, tl.max(scores, 1))
        weights = tl.exp(scores - new_largest[:, None])
        shrink = tl.exp(largest - new_largest)
        total = total * shrink + tl.sum(weights, 1)
        acc = acc * shrink[:, None] + tl.sum(weights[:, :, None] * v[None, :, :], 1)
        largest = new_largest

    out_rows = out + request * out_stride_req + heads[:, None] * out_stride_head
    tl.store(out_rows + elements[None, :], (acc / total[:, None]).to(out.dtype.element_ty), mask=is_query)


def paged_attention_decode(
    out: Tensor,
    query: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_tables: Tensor,
    seq_lens: Tensor,
    scale: float,
) -> None:
    """Start `paged_attention_decode_kernel`, one program for each request and head of keys."""
    num_reqs, num_heads, head_size = query.shape
    _, block_size, num_kv_heads, _ = k_cache.shape
    group = num_heads // num_kv_heads
    paged_attention_decode_kernel[(num_reqs, num_kv_heads)](
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
        BLOCK_G=triton.next_power_of_2(group),
        BLOCK_N=triton.next_power_of_2(block_size),
        BLOCK_D=triton.next_power_of_2(head_size),
    )

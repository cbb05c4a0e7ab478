"""lab-10: the kernel. Your work goes here: two kernels, and the launcher of the second.

Run it from the repository's root:

    LAB_IMPL=starter pytest labs/lab-10
    $env:LAB_IMPL="starter"; pytest labs/lab-10          (PowerShell on Linux; on Windows itself there is no Triton)

What you need of Triton's language:

    tl.program_id(0)                 which program of the grid this is, along its first dimension
    tl.arange(0, N)                  the lanes 0 to N - 1; N is a power of two, known before the kernel runs
    x[:, None], x[None, :]           a column, a row; together they span a tile, as in numpy
    tl.load(p, mask=m, other=0.0)    reads where m is true; where it is not you get `other`, or, without it, anything
    tl.store(p, x, mask=m)           writes where m is true
    pointer + 3                      the place 3 elements on, whatever their size; + an array gives an array of places
    x.to(tl.int64), x.to(tl.float32) the same numbers, wider
    tl.max(x, 1), tl.sum(x, 1)       over the columns, a number for each row

All strides are counted in elements, and the last dimension of every tensor has stride 1. The signatures are a proposal:
the tests call the launchers.
"""
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

import triton
import triton.language as tl
from torch import Tensor

from mini_kv.course import todo


@triton.jit
def reshape_and_cache_kernel(
    key,  # [num_tokens, num_kv_heads, head_size]
    value,  # the same
    k_cache,  # [num_blocks, block_size, num_kv_heads, head_size]
    v_cache,  # the same, with the same strides
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
    BLOCK_H: tl.constexpr,  # NUM_KV_HEADS, rounded up to a power of two
    BLOCK_D: tl.constexpr,  # HEAD_SIZE, rounded up to a power of two
):
    """Write one token's keys and values to its slot. One program per token.

    1. Which token, and which slot is it to go to? A negative slot is padding: `return`, and nothing is read or written.
    2. The tile of the token's numbers has BLOCK_H rows, one for each head, and BLOCK_D columns. Which of its lanes are
       real?
    3. Where the token's keys are: `key`, plus steps for token and head, plus the element.
    4. Where they go: slot 11 in blocks of 4 is block 2, place 3. Steps for the block, the place in it, the head.
    5. Load and store the keys, then the values, each number once.

    Example, blocks of 4 tokens, `slot_mapping` 11 -1 4: program 0 writes to block 2, place 3; program 1 returns;
    program 2 writes to block 1, place 0.
    """
    todo("lab-10", "reshape_and_cache_kernel", "step 1, the token's slot")


def reshape_and_cache(key: Tensor, value: Tensor, k_cache: Tensor, v_cache: Tensor, slot_mapping: Tensor) -> None:
    """Start `reshape_and_cache_kernel`, one program per token. Given; this is what a launcher looks like."""
    num_tokens, num_kv_heads, head_size = key.shape
    reshape_and_cache_kernel[(num_tokens,)](  # in the brackets: the grid
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
    v_cache,  # the same, with the same strides
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
    GROUP: tl.constexpr,  # query heads that share one head of keys
    BLOCK_SIZE: tl.constexpr,
    HEAD_SIZE: tl.constexpr,
    BLOCK_G: tl.constexpr,  # each of these is the one above, rounded up to a power of two: GROUP,
    BLOCK_N: tl.constexpr,  # BLOCK_SIZE,
    BLOCK_D: tl.constexpr,  # HEAD_SIZE
):
    """Attend with the query heads that share one head of keys, for one request. One program each.

    Query heads 0 to GROUP - 1 read head 0 of the keys, the next GROUP heads read head 1, and so on.

    1. Which request, which head of keys? A request of length 0 is padding: `return`, and its output stays as it is.
    2. Load the group's queries, `[BLOCK_G, BLOCK_D]`. All sums from here on are in float32, whatever the cache keeps.
    3. For each block of the request, no further: its id from the request's row of the table; its keys and its values,
       `[BLOCK_N, BLOCK_D]` each, those places only that hold one of the request's tokens, and each of them once.
    4. Scores, `[BLOCK_G, BLOCK_N]`: q times k, times `scale`. A place without a token scores minus infinity.
    5. Fold them in as in lab-09: three running numbers for each row, the largest score so far (before the first block
       that is minus infinity), the sum of the weights, the weighted sum of the values. A new largest score shrinks
       both sums.
    6. Divide, and store the rows of the group to `out`.

    Ids are int32, and id times stride may be more than that: widen the id before you multiply.

    Example, blocks of 4 tokens, a request of 6 tokens with the row 7 3: the program reads all of block 7, the first two
    places of block 3, and nothing else of the cache.
    """
    todo("lab-10", "paged_attention_decode_kernel", "step 1, the request and its length")


def paged_attention_decode(
    out: Tensor,
    query: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_tables: Tensor,
    seq_lens: Tensor,
    scale: float,
) -> None:
    """Write to `out` what each request's one new token makes of the request's keys and values.

    Start `paged_attention_decode_kernel`. Its grid has two dimensions: requests, heads of keys. How many query heads
    share one head of keys follows from the shapes.

    Args:
        out: `[num_reqs, num_heads, head_size]`, written in place; like all of these, it may be a view of something.
        query: the same shape.
        k_cache: `[num_blocks, block_size, num_kv_heads, head_size]`; `num_heads` is a multiple of `num_kv_heads`.
        v_cache: the same shape and strides.
        block_tables: `[num_reqs, max_num_blocks]`, int32. Behind a request's last block an entry may be anything.
        seq_lens: `[num_reqs]`, int32, the new token included: its key and value have been written.
        scale: factor of all scores.
    """
    todo("lab-10", "paged_attention_decode", "the grid, then the arguments in the kernel's order")

"""lab-10: the kernel. Your work goes here: two kernels, and the launcher of the second.

Run it from the repository's root:

    LAB_IMPL=starter pytest labs/lab-10
    $env:LAB_IMPL="starter"; pytest labs/lab-10          (PowerShell on Linux; on Windows itself there is no Triton)

What you need of Triton's language:

    tl.program_id(0)                 which program of the grid this is, along its first dimension
    tl.arange(0, N)                  the lanes 0 to N - 1, where N is a power of two, known before the kernel runs
    x[:, None], x[None, :]           a column and a row, which together span a tile, as in numpy
    tl.load(p, mask=m, other=0.0)    reads where m is true, and elsewhere gives `other`, or without it any number
    tl.store(p, x, mask=m)           writes where m is true
    pointer + 3                      the place 3 elements on, whatever their size (+ an array: an array of places)
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

    A negative slot is padding: `return`, and nothing is read or written. The tile of the token's numbers has BLOCK_H
    rows, one per head, and BLOCK_D columns, and not all of its lanes are real. The token's keys are at `key`, plus
    strides for token and head, plus the element. Slot 11 in blocks of 4 is block 2, place 3. Load and store each number
    once.

    Example, blocks of 4 tokens, `slot_mapping` 11 -1 4: program 0 writes to block 2, place 3. Program 1 returns.
    Program 2 writes to block 1, place 0.
    """
    todo("lab-10", "reshape_and_cache_kernel", "which lanes are masked, and where does each of the others go?")


def reshape_and_cache(key: Tensor, value: Tensor, k_cache: Tensor, v_cache: Tensor, slot_mapping: Tensor) -> None:
    """Start `reshape_and_cache_kernel`, one program per token. Given, as an example of a launcher."""
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

    - A request of length 0 is padding: `return`, and its output is unchanged.
    - The group's queries are a tile `[BLOCK_G, BLOCK_D]`. All sums are in float32, whatever the cache's type.
    - The program reads the blocks of the request and no others: keys and values, `[BLOCK_N, BLOCK_D]` each, only the
      places with a token of the request, and each of them once.
    - Scores, `[BLOCK_G, BLOCK_N]`, are q times k, times `scale`. A place without a token scores minus infinity.
    - As in lab-09, each row has a running maximum (minus infinity before the first block), a sum of weights, and a
      weighted sum of values. A new maximum scales both sums down. The quotient goes to the group's rows of `out`.
    - Ids are int32, and id times stride may need more bits: widen the id before you multiply.

    Example, blocks of 4 tokens, a request of 6 tokens with the row 7 3: the program reads all of block 7, the first two
    places of block 3, and nothing else of the cache.
    """
    todo(
        "lab-10",
        "paged_attention_decode_kernel",
        "which places of a block are masked, and what do their scores become?",
    )


def paged_attention_decode(
    out: Tensor,
    query: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_tables: Tensor,
    seq_lens: Tensor,
    scale: float,
) -> None:
    """Write to `out` the attention of each request's one new token over the request's keys and values.

    Start `paged_attention_decode_kernel`. Its grid has two dimensions: requests, and heads of keys. The shapes give the
    number of query heads per head of keys. A request of length 0 is padding: its rows of `out` are unchanged.

    Args:
        out: `[num_reqs, num_heads, head_size]`, written in place. It may be a view, as all of these tensors.
        query: the same shape.
        k_cache: `[num_blocks, block_size, num_kv_heads, head_size]`. `num_heads` is a multiple of `num_kv_heads`.
        v_cache: the same shape and strides.
        block_tables: `[num_reqs, max_num_blocks]`, int32. Entries after a request's last block may be invalid.
        seq_lens: `[num_reqs]`, int32, with the new token, whose key and value have been written.
        scale: factor of all scores.
    """
    todo("lab-10", "paged_attention_decode", "how many programs are there, and which strides do they need?")

"""lab-10, the ladder: five small kernels, each one step of the decode kernel. Your work goes here.

Run it from the repository's root:

    LAB_IMPL=starter pytest labs/lab-10-ladder
    $env:LAB_IMPL="starter"; pytest labs/lab-10-ladder          (PowerShell on Linux)

The launchers are given, the kernels are yours. What you need of Triton's language:

    tl.program_id(0)                 which program of the grid this is
    tl.arange(0, N)                  the lanes 0 to N - 1, where N is a power of two, known before the kernel runs
    x[:, None], x[None, :]           a column and a row, which together span a tile
    tl.load(p, mask=m, other=0.0)    reads where m is true, and elsewhere gives `other`, or without it any number
    tl.store(p, x, mask=m)           writes where m is true
    tl.exp(x), tl.max(x, 0), tl.sum(x, 0), tl.maximum(a, b), x.to(tl.int64)

Strides are counted in elements. The last dimension of every tensor has stride 1.
"""
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

import triton
import triton.language as tl
from torch import Tensor

from mini_kv.course import todo


@triton.jit
def masked_copy_kernel(target, source, num_elements, TILE: tl.constexpr):
    """Copy this program's TILE of the `num_elements` numbers, and touch nothing else.

    Program 0 has the numbers 0 to TILE - 1, program 1 the next ones. The last program may have fewer than TILE.

    Example, 21 numbers and TILE 8: program 2 copies the numbers 16 to 20, and its last three lanes do nothing.
    """
    todo("lab-10-ladder", "masked_copy_kernel", "which lanes are masked?")


def masked_copy(target: Tensor, source: Tensor, tile: int) -> None:
    """Copy `source` `[num_elements]` to `target`, a tile per program. Given."""
    masked_copy_kernel[(triton.cdiv(len(source), tile),)](target, source, len(source), TILE=tile)


@triton.jit
def row_softmax_kernel(out, scores, num_columns, out_stride, scores_stride, BLOCK_C: tl.constexpr):
    """Write the softmax of one row of scores: program 3 has row 3. Every finite score is allowed.

    BLOCK_C is `num_columns`, rounded up to a power of two. A stride is the distance from one row to the next.

    Example: the scores `[1000, 1000]` become `[0.5, 0.5]`.
    """
    todo("lab-10-ladder", "row_softmax_kernel", "which lanes are masked, and what does a masked lane hold?")


def row_softmax(out: Tensor, scores: Tensor) -> None:
    """Start a program per row of `scores` `[num_rows, num_columns]`. `out` has the same shape. Given."""
    rows, columns = scores.shape
    block = triton.next_power_of_2(columns)
    row_softmax_kernel[(rows,)](out, scores, columns, out.stride(0), scores.stride(0), BLOCK_C=block)


@triton.jit
def online_softmax_kernel(out, scores, values, num_columns, stride, TILE: tl.constexpr):
    """Write the mean of a row's values, weighted by the softmax of its scores, and read each number only once.

    `scores` and `values` have rows of `num_columns` numbers, `stride` apart, which may be longer than a tile. `out` has
    a number per row. A second pass over the row is a fault. Sums from before a larger score are relative to a smaller
    one.

    Example: scores `[0, 0, ln 2]`, values `[1, 2, 3]`: the weights are 1/4, 1/4, 1/2, the result is 2.25.
    """
    todo("lab-10-ladder", "online_softmax_kernel", "which three numbers summarize the tiles before this one?")


def online_softmax(out: Tensor, scores: Tensor, values: Tensor, tile: int) -> None:
    """Start a program per row of `scores` and `values` `[num_rows, num_columns]`. `out` is `[num_rows]`. Given."""
    rows, columns = scores.shape
    online_softmax_kernel[(rows,)](out, scores, values, columns, scores.stride(0), TILE=tile)


@triton.jit
def gather_kernel(
    out, cache, table, num_tokens, out_stride, block_stride, place_stride,
    BLOCK_SIZE: tl.constexpr, HEAD_SIZE: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Copy the tokens of one block to their rows of `out`: program 2 takes the block whose id is `table[2]`.

    A token is a row of HEAD_SIZE numbers. The last block holds the rest of the `num_tokens` tokens. BLOCK_N and
    BLOCK_D are BLOCK_SIZE and HEAD_SIZE, rounded up to powers of two.

    Example, blocks of 4, table `[7, 2]`, 6 tokens: rows 0 to 3 are block 7, rows 4 and 5 the first two of block 2.
    """
    todo("lab-10-ladder", "gather_kernel", "where is a token in the cache, and in which row of out?")


def gather(out: Tensor, cache: Tensor, table: Tensor) -> None:
    """Start a program per block: `out` `[num_tokens, head_size]`, `cache` `[num_blocks, block_size, head_size]`. Given.

    `table` holds ids of blocks, int32, and may be longer than the tokens need.
    """
    (num_tokens, head_size), size = out.shape, cache.shape[1]
    gather_kernel[(triton.cdiv(num_tokens, size),)](
        out, cache, table, num_tokens, out.stride(0), cache.stride(0), cache.stride(1), BLOCK_SIZE=size,
        HEAD_SIZE=head_size, BLOCK_N=triton.next_power_of_2(size), BLOCK_D=triton.next_power_of_2(head_size),
    )  # fmt: skip


@triton.jit
def shared_load_kernel(
    out, query, keys, num_tokens, out_stride, query_stride, keys_stride,
    HEAD_SIZE: tl.constexpr, BLOCK_D: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Write the scores of two query heads with this program's TILE of keys, and read each key once.

    A score is the sum of the products of a query's and a key's HEAD_SIZE numbers. Strides lead from row to row.

    Example: queries `[1, 0]` and `[0, 1]`, keys `[3, 4]` and `[5, 6]`: `out` is `[[3, 5], [4, 6]]`.
    """
    todo("lab-10-ladder", "shared_load_kernel", "which lanes are masked, and which heads need the tile of keys?")


def shared_load(out: Tensor, query: Tensor, keys: Tensor, tile: int) -> None:
    """Start a program per tile of keys: `query` `[2, head_size]`, `keys` `[num_tokens, head_size]`. Given.

    `out` is `[2, num_tokens]`.
    """
    num_tokens, head_size = keys.shape
    shared_load_kernel[(triton.cdiv(num_tokens, tile),)](
        out, query, keys, num_tokens, out.stride(0), query.stride(0), keys.stride(0),
        HEAD_SIZE=head_size, BLOCK_D=triton.next_power_of_2(head_size), TILE=tile,
    )  # fmt: skip

"""An alternative: tiles lie on their side, and the sums begin with the first tile instead of before it."""
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def masked_copy_kernel(target, source, num_elements, TILE: tl.constexpr):
    """Copy one tile, held as two rows."""
    rows, columns = tl.arange(0, 2)[:, None], tl.arange(0, TILE // 2)[None, :]
    lanes = tl.program_id(0) * TILE + rows * (TILE // 2) + columns
    tl.store(target + lanes, tl.load(source + lanes, mask=lanes < num_elements), mask=lanes < num_elements)


def masked_copy(target: Tensor, source: Tensor, tile: int) -> None:
    """Start the kernel."""
    masked_copy_kernel[(triton.cdiv(len(source), tile),)](target, source, len(source), TILE=tile)


@triton.jit
def row_softmax_kernel(out, scores, num_columns, out_stride, scores_stride, BLOCK_C: tl.constexpr):
    """Write one row: the exponential of what is left when the logarithm of the sum is taken off."""
    columns = tl.arange(0, BLOCK_C)
    is_column = columns < num_columns
    s = tl.load(scores + tl.program_id(0) * scores_stride + columns, mask=is_column, other=-3e38)
    s -= tl.max(s, 0)
    answer = tl.exp(s) * (1.0 / tl.sum(tl.where(is_column, tl.exp(s), 0.0), 0))
    tl.store(out + tl.program_id(0) * out_stride + columns, answer, mask=is_column)


def row_softmax(out: Tensor, scores: Tensor) -> None:
    """Start the kernel."""
    rows, columns = scores.shape
    block = triton.next_power_of_2(columns)
    row_softmax_kernel[(rows,)](out, scores, columns, out.stride(0), scores.stride(0), BLOCK_C=block)


@triton.jit
def online_softmax_kernel(out, scores, values, num_columns, stride, TILE: tl.constexpr):
    """Walk through one row; what is remembered is the mean so far."""
    row, lanes = tl.program_id(0), tl.arange(0, TILE)
    largest, total, mean = float("-inf"), 0.0, 0.0
    for tile in range(tl.cdiv(num_columns, TILE)):
        at = row * stride + tile * TILE + lanes
        is_column = tile * TILE + lanes < num_columns
        s = tl.load(scores + at, mask=is_column, other=float("-inf"))
        v = tl.load(values + at, mask=is_column, other=0.0)
        new_largest = tl.maximum(largest, tl.max(s, 0))
        before = total * tl.exp(largest - new_largest)
        weights = tl.exp(s - new_largest)
        total = before + tl.sum(weights, 0)
        mean = mean * (before / total) + tl.sum(weights * v, 0) / total
        largest = new_largest
    tl.store(out + row, mean)


def online_softmax(out: Tensor, scores: Tensor, values: Tensor, tile: int) -> None:
    """Start the kernel."""
    rows, columns = scores.shape
    online_softmax_kernel[(rows,)](out, scores, values, columns, scores.stride(0), TILE=tile)


@triton.jit
def gather_kernel(
    out, cache, table, num_tokens, out_stride, block_stride, place_stride,
    BLOCK_SIZE: tl.constexpr, HEAD_SIZE: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Copy one block, elements before places."""
    index = tl.program_id(0)
    elements, places = tl.arange(0, BLOCK_D)[:, None], tl.arange(0, BLOCK_N)[None, :]
    num_here = tl.minimum(num_tokens - index * BLOCK_SIZE, BLOCK_SIZE)
    is_there = (places < num_here) & (elements < HEAD_SIZE)
    source = cache + tl.load(table + index).to(tl.int64) * block_stride
    target = out + index * BLOCK_SIZE * out_stride
    numbers = tl.load(source + places * place_stride + elements, mask=is_there)
    tl.store(target + places * out_stride + elements, numbers, mask=is_there)


def gather(out: Tensor, cache: Tensor, table: Tensor) -> None:
    """Start the kernel."""
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
    """Load a tile of keys on its side."""
    elements, tokens = tl.arange(0, BLOCK_D), tl.program_id(0) * TILE + tl.arange(0, TILE)
    is_element, is_token = elements < HEAD_SIZE, tokens < num_tokens
    lanes = elements[:, None] + tokens[None, :] * keys_stride
    k = tl.load(keys + lanes, mask=is_element[:, None] & is_token[None, :], other=0.0)
    first = tl.load(query + elements, mask=is_element, other=0.0)
    second = tl.load(query + query_stride + elements, mask=is_element, other=0.0)
    tl.store(out + tokens, tl.sum(first[:, None] * k, 0), mask=is_token)
    tl.store(out + out_stride + tokens, tl.sum(second[:, None] * k, 0), mask=is_token)


def shared_load(out: Tensor, query: Tensor, keys: Tensor, tile: int) -> None:
    """Start the kernel."""
    num_tokens, head_size = keys.shape
    shared_load_kernel[(triton.cdiv(num_tokens, tile),)](
        out, query, keys, num_tokens, out.stride(0), query.stride(0), keys.stride(0),
        HEAD_SIZE=head_size, BLOCK_D=triton.next_power_of_2(head_size), TILE=tile,
    )  # fmt: skip

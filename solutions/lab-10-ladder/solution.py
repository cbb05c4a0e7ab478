"""lab-10, the ladder: the reference solution."""
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def masked_copy_kernel(target, source, num_elements, TILE: tl.constexpr):
    """Copy one tile."""
    lanes = tl.program_id(0) * TILE + tl.arange(0, TILE)
    is_there = lanes < num_elements
    numbers = tl.load(source + lanes, mask=is_there)
    tl.store(target + lanes, numbers, mask=is_there)


def masked_copy(target: Tensor, source: Tensor, tile: int) -> None:
    """Start the kernel."""
    masked_copy_kernel[(triton.cdiv(len(source), tile),)](target, source, len(source), TILE=tile)


@triton.jit
def row_softmax_kernel(out, scores, num_columns, out_stride, scores_stride, BLOCK_C: tl.constexpr):
    """Write one row."""
    row, columns = tl.program_id(0), tl.arange(0, BLOCK_C)
    is_column = columns < num_columns
    s = tl.load(scores + row * scores_stride + columns, mask=is_column, other=float("-inf"))
    weights = tl.exp(s - tl.max(s, 0))
    tl.store(out + row * out_stride + columns, weights / tl.sum(weights, 0), mask=is_column)


def row_softmax(out: Tensor, scores: Tensor) -> None:
    """Start the kernel."""
    rows, columns = scores.shape
    block = triton.next_power_of_2(columns)
    row_softmax_kernel[(rows,)](out, scores, columns, out.stride(0), scores.stride(0), BLOCK_C=block)


@triton.jit
def online_softmax_kernel(out, scores, values, num_columns, stride, TILE: tl.constexpr):
    """Walk through one row."""
    row = tl.program_id(0)
    largest, total, acc = float("-inf"), 0.0, 0.0
    for start in range(0, num_columns, TILE):
        columns = start + tl.arange(0, TILE)
        is_column = columns < num_columns
        s = tl.load(scores + row * stride + columns, mask=is_column, other=float("-inf"))
        v = tl.load(values + row * stride + columns, mask=is_column, other=0.0)
        new_largest = tl.maximum(largest, tl.max(s, 0))
        shrink = tl.exp(largest - new_largest)
        weights = tl.exp(s - new_largest)
        total = total * shrink + tl.sum(weights, 0)
        acc = acc * shrink + tl.sum(weights * v, 0)
        largest = new_largest
    tl.store(out + row, acc / total)


def online_softmax(out: Tensor, scores: Tensor, values: Tensor, tile: int) -> None:
    """Start the kernel."""
    rows, columns = scores.shape
    online_softmax_kernel[(rows,)](out, scores, values, columns, scores.stride(0), TILE=tile)


@triton.jit
def gather_kernel(
    out, cache, table, num_tokens, out_stride, block_stride, place_stride,
    BLOCK_SIZE: tl.constexpr, HEAD_SIZE: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Copy one block."""
    index = tl.program_id(0)
    block = tl.load(table + index).to(tl.int64)
    places, elements = tl.arange(0, BLOCK_N)[:, None], tl.arange(0, BLOCK_D)[None, :]
    positions = index * BLOCK_SIZE + places
    is_there = (places < BLOCK_SIZE) & (positions < num_tokens) & (elements < HEAD_SIZE)
    rows = tl.load(cache + block * block_stride + places * place_stride + elements, mask=is_there)
    tl.store(out + positions * out_stride + elements, rows, mask=is_there)


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
    """Load a tile of keys, and use it twice."""
    tokens = tl.program_id(0) * TILE + tl.arange(0, TILE)
    elements = tl.arange(0, BLOCK_D)
    is_token, is_element = tokens < num_tokens, elements < HEAD_SIZE
    is_key = is_token[:, None] & is_element[None, :]
    k = tl.load(keys + tokens[:, None] * keys_stride + elements[None, :], mask=is_key, other=0.0)
    for head in range(2):
        q = tl.load(query + head * query_stride + elements, mask=is_element, other=0.0)
        tl.store(out + head * out_stride + tokens, tl.sum(k * q[None, :], 1), mask=is_token)


def shared_load(out: Tensor, query: Tensor, keys: Tensor, tile: int) -> None:
    """Start the kernel."""
    num_tokens, head_size = keys.shape
    shared_load_kernel[(triton.cdiv(num_tokens, tile),)](
        out, query, keys, num_tokens, out.stride(0), query.stride(0), keys.stride(0),
        HEAD_SIZE=head_size, BLOCK_D=triton.next_power_of_2(head_size), TILE=tile,
    )  # fmt: skip

"""An alternative: every lane keeps running numbers of its own, and they meet at the end.

Loads and stores are cut up otherwise: columns before rows, a position looked up lane by lane.
"""
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def masked_copy_kernel(target, source, num_elements, TILE: tl.constexpr):
    """Copy one tile."""
    start = tl.program_id(0) * TILE
    lanes = tl.arange(0, TILE)
    is_there = lanes < num_elements - start
    tl.store(target + start + lanes, tl.load(source + start + lanes, mask=is_there, other=0), mask=is_there)


def masked_copy(target: Tensor, source: Tensor, tile: int) -> None:
    """Start the kernel."""
    masked_copy_kernel[(triton.cdiv(len(source), tile),)](target, source, len(source), TILE=tile)


@triton.jit
def row_softmax_kernel(out, scores, num_columns, out_stride, scores_stride, BLOCK_C: tl.constexpr):
    """Write one row, with powers of two."""
    row, columns = tl.program_id(0), tl.arange(0, BLOCK_C)
    is_column = columns < num_columns
    s = tl.load(scores + row * scores_stride + columns, mask=is_column, other=0.0)
    s = tl.where(is_column, (s - tl.max(tl.where(is_column, s, float("-inf")), 0)) * 1.4426950408889634, float("-inf"))
    weights = tl.exp2(s)
    tl.store(out + row * out_stride + columns, weights / tl.sum(weights, 0), mask=is_column)


def row_softmax(out: Tensor, scores: Tensor) -> None:
    """Start the kernel."""
    rows, columns = scores.shape
    block = triton.next_power_of_2(columns)
    row_softmax_kernel[(rows,)](out, scores, columns, out.stride(0), scores.stride(0), BLOCK_C=block)


@triton.jit
def online_softmax_kernel(out, scores, values, num_columns, stride, TILE: tl.constexpr):
    """Walk through one row, with a maximum and two sums for each lane."""
    row, lanes = tl.program_id(0), tl.arange(0, TILE)
    largest = tl.full([TILE], -1e38, tl.float32)
    total, acc = tl.zeros([TILE], dtype=tl.float32), tl.zeros([TILE], dtype=tl.float32)
    for start in range(0, num_columns, TILE):
        is_column = start + lanes < num_columns
        s = tl.load(scores + row * stride + start + lanes, mask=is_column, other=float("-inf"))
        v = tl.load(values + row * stride + start + lanes, mask=is_column, other=0.0)
        new_largest = tl.maximum(largest, s)
        shrink, weights = tl.exp(largest - new_largest), tl.exp(s - new_largest)
        total = total * shrink + weights
        acc = acc * shrink + weights * v
        largest = new_largest
    factors = tl.exp(largest - tl.max(largest, 0))
    tl.store(out + row, tl.sum(acc * factors, 0) / tl.sum(total * factors, 0))


def online_softmax(out: Tensor, scores: Tensor, values: Tensor, tile: int) -> None:
    """Start the kernel."""
    rows, columns = scores.shape
    online_softmax_kernel[(rows,)](out, scores, values, columns, scores.stride(0), TILE=tile)


@triton.jit
def gather_kernel(
    out, cache, table, num_tokens, out_stride, block_stride, place_stride,
    BLOCK_SIZE: tl.constexpr, HEAD_SIZE: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Copy one block, each place with a look at the table of its own."""
    places = tl.arange(0, BLOCK_N)
    positions = tl.program_id(0) * BLOCK_SIZE + places
    is_token = (places < BLOCK_SIZE) & (positions < num_tokens)
    blocks = tl.load(table + positions // BLOCK_SIZE, mask=is_token, other=0).to(tl.int64)
    sources = blocks * block_stride + positions % BLOCK_SIZE * place_stride
    elements = tl.arange(0, BLOCK_D)
    is_there = is_token[:, None] & (elements < HEAD_SIZE)[None, :]
    rows = tl.load(cache + sources[:, None] + elements[None, :], mask=is_there)
    tl.store(out + positions[:, None] * out_stride + elements[None, :], rows, mask=is_there)


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
    """Load keys and both queries, and multiply in a tile of three dimensions."""
    heads, elements = tl.arange(0, 2), tl.arange(0, BLOCK_D)
    tokens = tl.program_id(0) * TILE + tl.arange(0, TILE)
    is_element = (elements < HEAD_SIZE)[None, :]
    is_token = tokens < num_tokens
    k_lanes = tokens[:, None] * keys_stride + elements[None, :]
    k = tl.load(keys + k_lanes, mask=is_token[:, None] & is_element, other=0.0)
    q = tl.load(query + heads[:, None] * query_stride + elements[None, :], mask=is_element, other=0.0)
    found = tl.sum(q[:, None, :] * k[None, :, :], 2)
    tl.store(out + heads[:, None] * out_stride + tokens[None, :], found, mask=is_token[None, :])


def shared_load(out: Tensor, query: Tensor, keys: Tensor, tile: int) -> None:
    """Start the kernel."""
    num_tokens, head_size = keys.shape
    shared_load_kernel[(triton.cdiv(num_tokens, tile),)](
        out, query, keys, num_tokens, out.stride(0), query.stride(0), keys.stride(0),
        HEAD_SIZE=head_size, BLOCK_D=triton.next_power_of_2(head_size), TILE=tile,
    )  # fmt: skip

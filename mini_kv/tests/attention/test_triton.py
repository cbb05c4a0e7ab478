"""The kernels' own matters: splits, tiles, the write of new keys and values, and what they refuse.

On a CPU they run under triton's interpreter; what they compute is compared with dense attention in test_against_dense.
"""

import inspect
import sys

import pytest

pytest.importorskip("triton", reason="the kernels need triton: make test, or pip install triton")

import torch

from mini_kv.attention import triton_backend, triton_kernels
from mini_kv.attention.backends import paged_attention, write_kv
from mini_kv.attention.kv_cache import PagedKVCache, allocate_kv_cache
from mini_kv.attention.options import AttentionOptions
from mini_kv.attention.quantized import write_kv_torch
from mini_kv.attention.triton_plan import Plan, Tiles, pick_splits
from mini_kv.core.errors import ConfigError
from mini_kv.tests.attention.problem import dense, make_problem, relative_error

WINDOWED = AttentionOptions(sliding_window=20)
SINKS = AttentionOptions(sinks=torch.tensor([0.5, -3.0, 2.0, 0.0]))


@pytest.mark.slow
@pytest.mark.parametrize("tile", [16, 32])
@pytest.mark.parametrize("options", [AttentionOptions(), WINDOWED, AttentionOptions(chunk_size=24), SINKS])
@pytest.mark.parametrize("num_splits", [2, 5])
def test_splits_of_a_decode_are_put_together(num_splits, options, tile):
    """With 5 splits the last ones of the shorter requests have nothing to do; a request may have no new token."""
    problem = make_problem([1, 0, 1, 1], [70, 9, 33, 1], block_size=8, options=options)
    plan = Plan(Tiles(16, tile, 4, 1), num_splits, -(-70 // (num_splits * tile)) * tile)
    out = torch.full_like(problem.query, torch.nan)
    lse = triton_backend.attend(problem.query, problem.kv_cache, problem.metadata, options, out, plan)
    expected, expected_lse = dense(problem)
    assert relative_error(out, expected) <= 1e-5
    assert relative_error(lse, expected_lse) <= 1e-6


@pytest.mark.slow
def test_splits_of_several_queries_each():
    """Some rows of a split see nothing in it, though others do."""
    problem = make_problem([6, 3], [40, 19], block_size=8, options=SINKS)
    out = torch.empty_like(problem.query)
    plan = Plan(Tiles(16, 16, 4, 1), 3, 16)
    triton_backend.attend(problem.query, problem.kv_cache, problem.metadata, problem.options, out, plan)
    assert relative_error(out, dense(problem)[0]) <= 1e-5


def test_rows_of_no_request_are_left_alone_when_splits_are_put_together():
    problem = make_problem([1, 1], [40, 19])
    padded = torch.cat([problem.query, problem.query])
    out = torch.full_like(padded, 7.0)
    plan = Plan(Tiles(16, 16, 4, 1), 2, 32)
    triton_backend.attend(padded, problem.kv_cache, problem.metadata, problem.options, out, plan)
    assert relative_error(out[:2], dense(problem)[0]) <= 1e-5
    assert out[2:].unique().tolist() == [7.0]


@pytest.mark.slow
@pytest.mark.parametrize("block_m", [16, 32])
def test_prompts_of_several_tiles_of_queries(block_m):
    """Each request's queries are spread over programs, which find their request by halving."""
    problem = make_problem([11, 0, 1, 17], [30, 4, 9, 17], num_heads=6, num_kv_heads=2)
    out = torch.empty_like(problem.query)
    plan = Plan(Tiles(block_m, 16, 4, 1), 1, 0)
    triton_backend.attend(problem.query, problem.kv_cache, problem.metadata, problem.options, out, plan)
    assert relative_error(out, dense(problem)[0]) <= 1e-5


@pytest.mark.parametrize(
    ("num_programs", "length", "expected"),
    [
        (8, 4096, (16, 256)),  # cannot fill the GPU: as many splits as make sense
        (256, 4096, (3, 1408)),  # 768 programs: 1.94 waves of 396
        (2048, 4096, (2, 2048)),  # 4096 programs: 10.3 waves; unsplit they would be 5.2
        (4096, 1024, (1, 1024)),  # 10.3 waves, but shorter splits would not be worth it
        (8, 1, (1, 64)),
    ],
)
def test_splits_fill_the_gpu_to_the_end(num_programs, length, expected):
    assert pick_splits(num_programs, length, slots=396, tile=64) == expected


@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8, torch.float8_e4m3fn])
def test_the_kernel_writes_what_torch_writes(dtype, layout):
    """Bit for bit, scales included, and nothing else; keys and values are slices of a wider row, as in a model."""
    generator = torch.Generator().manual_seed(0)
    wide = (5 * torch.randn(11, 9, 24, generator=generator)).to(dtype if dtype.itemsize > 1 else torch.float32)
    key, value = wide[:, 3:6], wide[:, 6:9]
    key[4] = 0.0
    slots = torch.tensor([28, -1, 30, 31, 12, 13, -1, 0, 1, 2, 39])
    scales = (0.5, 2.0) if dtype == torch.float8_e4m3fn else (1.0, 1.0)
    ours, expected = (
        allocate_kv_cache(10, 4, 3, 24, dtype=dtype, layout=layout, tensor_scales=scales) for _ in range(2)
    )
    write_kv(key, value, ours, slots, backend="triton")
    write_kv_torch(key, value, expected, slots)
    assert ours.data.float().equal(expected.data.float())
    assert ours.data.float().count_nonzero() > 0
    if dtype == torch.int8:
        assert ours.scales is not None and expected.scales is not None
        assert ours.scales.equal(expected.scales)


def test_writing_nothing_is_no_launch():
    kv_cache = allocate_kv_cache(2, 4, 1, 16)
    nothing = torch.zeros(0, 1, 16)
    write_kv(nothing, nothing, kv_cache, torch.zeros(0, dtype=torch.int64), backend="triton")
    assert kv_cache.data.count_nonzero() == 0


def refused(problem, monkeypatch=None):
    with pytest.raises(ConfigError) as error:
        paged_attention(problem.query, problem.kv_cache, problem.metadata, problem.options, backend="triton")
    return str(error.value).removeprefix("backend 'triton' cannot do this: ")


def test_what_the_kernels_cannot_do_is_refused_before_launch(monkeypatch):
    assert refused(make_problem([1], [3], dtype=torch.float64)).startswith("the kernels compute in float32")
    assert refused(make_problem([1], [3], head_size=257)).startswith("head size 257: a tile of more than 256")
    assert refused(make_problem([1], [3], num_heads=130, num_kv_heads=1)) == "more than 128 heads share a head of keys"
    problem = make_problem([1], [3])
    data = problem.kv_cache.data.transpose(3, 4).contiguous().transpose(3, 4)
    problem.kv_cache = PagedKVCache(data)
    assert refused(problem) == "the elements of a head must be contiguous"
    monkeypatch.setattr(triton_backend, "IS_INTERPRETED", False)
    assert refused(make_problem([1], [3])).startswith("the tensors are on cpu; without a GPU set TRITON_INTERPRET=1")


@pytest.mark.parametrize(
    ("dtype", "cache_dtype", "head_size", "num_heads", "capability", "why"),
    [
        (torch.float16, torch.float16, 128, 4, (7, 5), "made for compute capability 8.0 and later; this GPU has 7.5"),
        (torch.bfloat16, torch.float8_e4m3fn, 128, 4, (8, 6), "fp8 needs compute capability 8.9; this GPU has 8.6"),
        (torch.float32, torch.int8, 256, 4, (9, 0), "float32 over int8, head size 256: registers hold none of them"),
        (torch.float32, torch.float32, 128, 33, (9, 0), "33 heads share a head of keys; float32 over float32"),
        (torch.bfloat16, torch.int8, 128, 65, (8, 0), "head size 128: registers hold 64 of them"),
    ],
)
def test_what_a_gpu_cannot_do_is_refused_before_launch(dtype, cache_dtype, head_size, num_heads, capability, why):
    kv_cache = allocate_kv_cache(2, 4, 1, head_size, dtype=cache_dtype)
    query = torch.zeros(1, num_heads, head_size, dtype=dtype)
    found = triton_backend.obstacle_of_gpu(query, kv_cache, capability)
    assert found is not None and why in found
    assert triton_backend.obstacle_of_gpu(query[:, :4].half(), allocate_kv_cache(2, 4, 1, 64), (8, 0)) is None


def test_kernels_are_not_compiled_again_for_what_changes_while_a_server_runs():
    """Every integer that is no stride of a tensor whose shape stays is named; triton then makes one version for all."""
    for kernel in (triton_kernels.attend_kernel, triton_kernels.merge_kernel, triton_kernels.write_kv_kernel):
        integers = {name for name in inspect.signature(kernel.fn).parameters if name.startswith("num_")}
        integers |= {"table_stride", "lse_stride_split"} & set(inspect.signature(kernel.fn).parameters)
        assert integers <= set(triton_kernels.CHANGING)


def test_addresses_beyond_32_bits_are_computed_right():
    """The last block begins 2**32 elements in; the memory between is never touched, so it costs nothing."""
    if sys.platform != "linux":
        pytest.skip("needs an operating system that gives memory only when it is touched")
    problem = make_problem([1], [7], num_heads=2, num_kv_heads=1)
    small = problem.kv_cache
    stride = 2**31 + 64
    huge = torch.empty(2 * stride + 2 * 4 * 16, dtype=torch.float32)
    data = huge.as_strided((3, 2, 4, 1, 16), (stride, 64, 16, 16, 1))
    for new, old in enumerate(problem.metadata.block_tables[0, :2].tolist(), start=1):
        data[new] = small.data[old]
    problem.metadata.block_tables[0, :2] = torch.tensor([1, 2])
    problem.kv_cache = PagedKVCache(data)
    out, _ = paged_attention(problem.query, problem.kv_cache, problem.metadata, backend="triton")
    assert relative_error(out, dense(problem)[0]) <= 1e-5

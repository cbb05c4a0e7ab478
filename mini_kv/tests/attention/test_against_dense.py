"""Every backend against dense attention in float64: shapes, layouts, masks, dtypes; poison where no kernel may read."""

import importlib.util
import sys

import pytest
import torch

from mini_kv.attention.backends import paged_attention
from mini_kv.attention.options import AttentionOptions
from mini_kv.tests.attention.problem import dense, make_problem, relative_error

TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 2e-3}
ON_CPU = ["reference", "plain", "torch"] + ["triton"] * (sys.platform == "linux")  # there is no triton elsewhere
HEADS = {"MHA": (4, 4), "GQA": (6, 2), "MQA": (4, 1)}
MIXED = ([7, 1, 0, 1, 3], [7, 13, 5, 1, 20])  # a prefill, a decode, nothing to do, a first token, a later chunk


@pytest.fixture(params=ON_CPU)
def backend(request):
    if request.param == "triton" and importlib.util.find_spec("triton") is None:
        pytest.skip("the kernels need triton: make test, or pip install triton")
    return request.param


def check(problem, backend, tolerance=None):
    """Compare result and log-sum-exp with dense attention."""
    out, lse = paged_attention(problem.query, problem.kv_cache, problem.metadata, problem.options, backend=backend)
    expected, expected_lse = dense(problem)
    tolerance = tolerance or TOLERANCE[problem.query.dtype]
    assert (out.dtype, out.shape, lse.dtype) == (problem.query.dtype, problem.query.shape, torch.float32)
    assert relative_error(out, expected) <= tolerance
    assert relative_error(lse, expected_lse) <= max(tolerance, 1e-6)


@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize("block_size", [1, 8, 16, 32])
def test_a_mixed_batch_equals_dense_attention(backend, block_size, heads, layout):
    num_heads, num_kv_heads = HEADS[heads]
    problem = make_problem(
        *MIXED, num_heads=num_heads, num_kv_heads=num_kv_heads, block_size=block_size, layout=layout, seed=block_size
    )
    check(problem, backend)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("block_size", [8, 16])
def test_every_dtype_keeps_its_precision(backend, block_size, dtype):
    if backend == "triton" and dtype == torch.float64:
        return  # refused before launch: see test_backends.py
    check(make_problem(*MIXED, dtype=dtype, block_size=block_size), backend)


KINDS = {
    "window of one": AttentionOptions(sliding_window=1),
    "window shorter than a block": AttentionOptions(sliding_window=3),
    "window of several blocks": AttentionOptions(sliding_window=9),
    "window longer than all": AttentionOptions(sliding_window=100),
    "chunk": AttentionOptions(chunk_size=6),
    "window and chunk": AttentionOptions(sliding_window=4, chunk_size=6),
    "soft cap": AttentionOptions(logits_soft_cap=2.0),
    "scale": AttentionOptions(scale=0.7),
    "sinks": AttentionOptions(sinks=torch.tensor([0.5, -3.0, 2.0, 0.0])),
    "all": AttentionOptions(0.3, 7, 8, 1.5, torch.tensor([0.5, -3.0, 2.0, 0.0])),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_kind_of_mask_and_score(backend, dtype, kind):
    check(make_problem([7, 1, 3, 1], [7, 13, 20, 1], dtype=dtype, options=KINDS[kind]), backend)


@pytest.mark.slow
@pytest.mark.parametrize("cache_dtype", [torch.int8, torch.float8_e4m3fn])
@pytest.mark.parametrize("kind", ["scale", "window of several blocks", "all"])
@pytest.mark.parametrize("layout", ["NHD", "HND"])
def test_a_cache_in_8_bits_is_attended_to_as_the_numbers_that_it_stands_for(backend, layout, kind, cache_dtype):
    scales = (0.5, 2.0) if cache_dtype == torch.float8_e4m3fn else (1.0, 1.0)
    problem = make_problem(*MIXED, cache_dtype=cache_dtype, layout=layout, options=KINDS[kind], tensor_scales=scales)
    check(problem, backend)


@pytest.mark.parametrize("cache_dtype", [None, torch.int8, torch.float8_e4m3fn])
@pytest.mark.parametrize("layout", ["NHD", "HND"])
def test_one_vector_that_is_key_and_value_is_kept_once_and_read_twice(backend, layout, cache_dtype):
    """As multi-head latent attention has it: all heads of a query read one vector of odd length."""
    problem = make_problem(
        *MIXED, num_kv_heads=1, head_size=20, layout=layout, cache_dtype=cache_dtype, block_size=8, num_planes=1
    )
    assert problem.kv_cache.data.shape[1:] == (1, 8, 1, 20)
    assert problem.kv_cache.data.stride()[0] == 8 * 20
    assert all(torch.equal(keys, values) for keys, values in zip(problem.keys, problem.values, strict=True))
    check(problem, backend)


@pytest.mark.parametrize("head_size", [8, 24, 80])
def test_head_sizes_that_are_no_power_of_two(backend, head_size):
    check(make_problem([3, 1], [9, 6], head_size=head_size), backend)


def test_seven_heads_share_one(backend):
    check(make_problem([5, 1], [9, 6], num_heads=14, num_kv_heads=2), backend)


def test_scores_of_eighty_do_not_overflow(backend):
    problem = make_problem([3, 1], [9, 6], options=AttentionOptions(scale=20.0))
    assert dense(problem)[1].max() > 80
    check(problem, backend)


def test_garbage_in_the_block_table_behind_a_requests_last_block_is_never_looked_at(backend):
    problem = make_problem(*MIXED)
    problem.metadata.block_tables[:, -1] = 2**31 - 1
    check(problem, backend)


def test_an_empty_batch(backend):
    out, lse = paged_attention(*arguments(make_problem([], [])), backend=backend)
    assert (out.shape, lse.shape) == ((0, 4, 16), (0, 4))


def test_a_batch_in_which_no_request_has_a_new_token(backend):
    out, lse = paged_attention(*arguments(make_problem([0, 0], [5, 3])), backend=backend)
    assert (out.shape, lse.shape) == ((0, 4, 16), (0, 4))


def test_out_is_written_in_place_and_rows_of_no_request_are_left_alone(backend):
    """As when a batch is padded to a size for which a graph was captured."""
    problem = make_problem([2, 1], [5, 6])
    padded = torch.cat([problem.query, torch.full((2, 4, 16), torch.nan)])
    out = torch.full((5, 4, 16), 7.0)
    found, _ = paged_attention(padded, *arguments(problem)[1:], backend=backend, out=out)
    assert found is out
    assert relative_error(out[:3], dense(problem)[0]) <= 1e-5
    assert out[3:].unique().tolist() == [7.0]


def test_a_query_that_is_a_slice_of_a_wider_tensor(backend):
    """A model computes queries, keys and values as one row, and hands on the first part of it."""
    problem = make_problem(*MIXED)
    num_tokens = len(problem.query)
    wide = torch.full((num_tokens, 8, 16), torch.nan)
    wide[:, :4] = problem.query
    out = torch.full((num_tokens, 8, 16), 7.0)
    paged_attention(wide[:, :4], *arguments(problem)[1:], backend=backend, out=out[:, :4])
    assert relative_error(out[:, :4], dense(problem)[0]) <= 1e-5
    assert out[:, 4:].unique().tolist() == [7.0]


def test_two_requests_share_blocks(backend):
    """What prefix caching is for: the second request's table begins with the first one's blocks."""
    problem = make_problem([1, 1], [8, 11])
    tables = problem.metadata.block_tables
    tables[1, :2] = tables[0, :2]
    problem.keys[1][:8], problem.values[1][:8] = problem.keys[0], problem.values[0]
    check(problem, backend)


def test_what_comes_later_changes_nothing(backend):
    """Causality: a new key and value change the tokens from there on, and none before."""
    problem = make_problem([9], [9])
    before, _ = paged_attention(*arguments(problem), backend=backend)
    block, offset = int(problem.metadata.block_tables[0, 1]), 1  # position 5
    problem.kv_cache.data[block, :, offset] = 3.0
    after, _ = paged_attention(*arguments(problem), backend=backend)
    changed = (before != after).flatten(1).any(dim=1)
    assert changed.tolist() == [False] * 5 + [True] * 4


def test_each_head_of_the_queries_reads_its_own_head_of_the_keys(backend):
    """A value that names its head comes out unmixed: the average of equal values is the value."""
    problem = make_problem([4], [10], num_heads=6, num_kv_heads=3)
    for head in range(3):
        problem.kv_cache.v_cache[:, :, head] = float(head)
    out, _ = paged_attention(*arguments(problem), backend=backend)
    by_head = torch.tensor([0.0, 0.0, 1.0, 1.0, 2.0, 2.0]).view(1, 6, 1).expand_as(out)
    torch.testing.assert_close(out, by_head, atol=1e-6, rtol=0)


def test_a_key_far_larger_than_the_others_brings_out_its_own_value(backend):
    """Attention over positions, not over heads or elements: the token that the query points at is what comes out."""
    problem = make_problem([1], [13], num_heads=2, num_kv_heads=1, options=AttentionOptions(scale=1.0))
    for position in (0, 6, 12):
        keys = problem.kv_cache.k_cache
        block, offset = int(problem.metadata.block_tables[0, position // 4]), position % 4
        original = keys[block, offset].clone()
        keys[block, offset, 0] = 40 * problem.query[0, 0]
        out, _ = paged_attention(*arguments(problem), backend=backend)
        torch.testing.assert_close(out[0, 0], problem.values[0][position, 0].float(), atol=1e-4, rtol=0)
        keys[block, offset] = original


def arguments(problem):
    return problem.query, problem.kv_cache, problem.metadata, problem.options

"""Keys and values in 8 bits: how far off each number may be, and what the scales do."""

import io
from contextlib import redirect_stdout
from dataclasses import replace

import pytest
import torch

from mini_kv.attention.backends import paged_attention, write_kv
from mini_kv.attention.kv_cache import allocate_kv_cache, copy_blocks
from mini_kv.attention.quantized import (
    FP8_MAX,
    dequantize,
    dequantize_rows,
    quantize_per_channel,
    quantize_per_tensor,
    quantize_per_token_head,
    to_fp8,
)
from mini_kv.course.lessons.quantization_error import errors, main
from mini_kv.tests.attention.problem import make_problem


def numbers(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def test_every_number_comes_back_within_half_a_scale():
    """Rounding is all that is lost: the bound holds for each element, not on average."""
    x = numbers(50, 4, 64) * torch.logspace(-6, 6, 50).view(-1, 1, 1)
    quantized, scales = quantize_per_token_head(x)
    assert (quantized.dtype, scales.dtype, scales.shape) == (torch.int8, torch.float32, (50, 4))
    error = (dequantize(quantized, scales) - x).abs()
    assert bool((error <= 0.5 * scales.unsqueeze(-1) * (1 + 1e-5)).all())
    assert scales.equal(x.abs().amax(dim=-1) / 127)


def test_the_largest_number_of_a_row_becomes_127_and_comes_back_itself():
    quantized, scales = quantize_per_token_head(torch.tensor([[0.5, -2.54, 0.0], [1.0, 2.0, 4.0]]))
    assert quantized.tolist() == [[25, -127, 0], [32, 64, 127]]
    assert dequantize(quantized, scales)[:, 1:].flatten().tolist() == pytest.approx([-2.54, 0.0, 2.0, 4.0], abs=0.02)


def test_minus_128_is_never_used():
    quantized, _ = quantize_per_token_head(numbers(200, 2, 16))
    assert (int(quantized.min()), int(quantized.max())) == (-127, 127)


@pytest.mark.parametrize("quantize", [quantize_per_token_head, quantize_per_tensor, quantize_per_channel])
def test_zeros_come_back_as_zeros(quantize):
    """The seed divides by the largest number, which is zero here, and stores what becomes of NaN."""
    quantized, scales = quantize(torch.zeros(3, 2, 8))
    assert quantized.count_nonzero() == 0
    assert scales.count_nonzero() == 0


def test_a_zero_row_beside_others_stays_zero():
    x = numbers(3, 1, 8)
    x[1] = 0.0
    quantized, scales = quantize_per_token_head(x)
    assert dequantize(quantized, scales)[1].count_nonzero() == 0
    assert scales[:, 0].count_nonzero() == 2


def test_an_outlier_costs_digits_of_its_own_token_and_head_alone():
    x = numbers(20, 2, 64)
    clean = dequantize(*quantize_per_token_head(x))
    x[5, 1, 7] = 500.0
    found = dequantize(*quantize_per_token_head(x))
    changed = (found != clean).flatten(2).any(dim=-1)
    assert changed.nonzero().tolist() == [[5, 1]]
    assert float((found[5, 1] - x[5, 1]).abs().max()) > 1.0  # half of 500/127


def test_with_one_scale_for_all_an_outlier_costs_digits_of_every_token():
    x = numbers(20, 2, 64)
    x[5, 1, 7] = 500.0
    per_tensor = dequantize(*quantize_per_tensor(x))
    assert float((per_tensor[0] - x[0]).norm() / x[0].norm()) > 0.5


def test_a_channel_that_is_large_in_every_token_keeps_to_itself_if_channels_have_scales():
    x = numbers(100, 2, 64)
    x[:, :, 7] *= 60
    quantized, scales = quantize_per_channel(x)
    assert scales.shape == (2, 64)
    error = (quantized.float() * scales - x).abs()
    assert bool((error <= 0.5 * scales * (1 + 1e-5)).all())
    assert float(scales[:, 7].min()) > 30 * float(scales[:, :7].max())


def test_fp8_keeps_three_bits_of_every_number_whatever_its_size():
    """Half of the last of 3 bits is 2**-4 of the number; below 2**-6 the steps are even."""
    x = numbers(1000) * torch.logspace(-2, 2, 1000)
    x = x.clamp(-FP8_MAX, FP8_MAX)
    error = (to_fp8(x, 1.0).float() - x).abs()
    assert bool((error <= torch.maximum(x.abs() * 2**-4, torch.tensor(2.0**-10))).all())


def test_what_is_too_large_for_fp8_becomes_its_largest_number():
    assert to_fp8(torch.tensor([1e6, -1e6, 448.0]), 1.0).float().tolist() == [448.0, -448.0, 448.0]
    assert to_fp8(torch.tensor([1e6]), 1e4).float().tolist() == [96.0]  # the next to 100: 13 eighths of 64 are 104


@pytest.mark.parametrize("layout", ["NHD", "HND"])
def test_what_is_written_is_read_with_its_own_scale(layout):
    kv_cache = allocate_kv_cache(10, 4, 2, 16, dtype=torch.int8, layout=layout)
    key, value = numbers(6, 2, 16), 100 * numbers(6, 2, 16, seed=1)
    slots = torch.tensor([28, 29, 30, 31, 12, 13])
    write_kv(key, value, kv_cache, slots)
    keys, values = dequantize_rows(kv_cache, slots // 4, slots % 4)
    assert bool(((keys - key).abs() <= key.abs().amax(-1, keepdim=True) / 253).all())
    assert bool(((values - value).abs() <= value.abs().amax(-1, keepdim=True) / 253).all())


def test_a_slot_that_is_written_again_gets_a_new_scale():
    """A block that comes back from the free queue holds its last owner's scales."""
    kv_cache = allocate_kv_cache(2, 4, 1, 16, dtype=torch.int8)
    slots = torch.tensor([5])
    write_kv(1000 * numbers(1, 1, 16), 1000 * numbers(1, 1, 16), kv_cache, slots)
    small = 0.001 * numbers(1, 1, 16, seed=1)
    write_kv(small, small, kv_cache, slots)
    keys, values = dequantize_rows(kv_cache, slots // 4, slots % 4)
    assert float((keys - small).abs().max()) <= float(small.abs().max()) / 253
    assert keys.equal(values)


@pytest.mark.parametrize("backend", ["reference", "plain", "torch"])
def test_attention_over_a_copied_block_is_attention_over_the_block(backend):
    """Only if its scales were copied, too."""
    problem = make_problem([1], [7], cache_dtype=torch.int8)
    before, _ = paged_attention(problem.query, problem.kv_cache, problem.metadata, backend=backend)
    tables = problem.metadata.block_tables
    free = next(i for i in range(1, problem.kv_cache.num_blocks) if i not in tables[0, :2].tolist())
    copy_blocks([problem.kv_cache.data, problem.kv_cache.scales], [(int(tables[0, 0]), free)])
    problem.kv_cache.scales[int(tables[0, 0])] = torch.nan
    tables[0, 0] = free
    metadata = replace(problem.metadata, plans={})  # the next step's: a plan is of the tables that it was made for
    after, _ = paged_attention(problem.query, problem.kv_cache, metadata, backend=backend)
    assert after.equal(before)


def test_the_comparison_of_the_chapter():
    """One channel of the keys is 60 times as large: who shares a scale with it loses, who does not does not notice."""
    plain, skewed = errors(outlier=1.0), errors(outlier=60.0)
    assert skewed["tensor"]["others"] > 0.3
    assert 0.1 < skewed["token"]["others"] < 0.2
    assert skewed["channel"] == pytest.approx(plain["channel"], rel=0.05)
    for scheme in ("tensor", "token"):
        assert plain[scheme]["others"] < 0.011
        assert skewed[scheme]["output"] > 10 * plain[scheme]["output"]
    assert plain["token"]["values"] < plain["tensor"]["values"] < plain["fp8"]["values"]


def test_the_comparison_prints_its_table():
    out = io.StringIO()
    with redirect_stdout(out):
        main()
    lines = out.getvalue().splitlines()
    assert [line.split()[0] for line in lines] == ["one", "a", "tensor", "token", "channel", "fp8"] * 2

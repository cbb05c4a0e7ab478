"""The plain version says in 60 lines what the fast one computes. `test_against_dense` compares both with no blocks."""

import random

import pytest
import torch

from mini_kv.attention.backends import paged_attention
from mini_kv.tests.attention.problem import make_problem, relative_error
from mini_kv.tests.attention.test_against_dense import HEADS, KINDS, MIXED, TOLERANCE


def check(problem):
    """Compare the fast version with the plain one."""
    arguments = problem.query, problem.kv_cache, problem.metadata, problem.options
    (out, lse), (expected, expected_lse) = (paged_attention(*arguments, backend=name) for name in ("torch", "plain"))
    tolerance = TOLERANCE[problem.query.dtype]
    assert relative_error(out, expected.double()) <= tolerance
    assert relative_error(lse, expected_lse.double()) <= max(tolerance, 1e-6)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("heads", HEADS)
def test_the_fast_version_computes_what_the_plain_one_says(heads, dtype):
    num_heads, num_kv_heads = HEADS[heads]
    check(make_problem(*MIXED, num_heads=num_heads, num_kv_heads=num_kv_heads, dtype=dtype))


@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", KINDS)
def test_also_under_every_kind_of_mask_and_score(kind, dtype, layout):
    check(make_problem(*MIXED, dtype=dtype, layout=layout, options=KINDS[kind]))


@pytest.mark.parametrize("cache_dtype", [torch.int8, torch.float8_e4m3fn])
@pytest.mark.parametrize("kind", KINDS)
def test_also_over_a_cache_in_8_bits(kind, cache_dtype):
    check(make_problem(*MIXED, cache_dtype=cache_dtype, options=KINDS[kind]))


@pytest.mark.parametrize("seed", range(20))
def test_also_for_batches_of_any_lengths(seed):
    choice = random.Random(seed)
    seq_lens = [choice.randint(0, 70) for _ in range(choice.randint(1, 6))]
    query_lens = [choice.choice([min(1, n), choice.randint(0, n), n]) for n in seq_lens]
    num_heads, num_kv_heads = HEADS[choice.choice(sorted(HEADS))]
    sizes = {"num_heads": num_heads, "num_kv_heads": num_kv_heads, "block_size": choice.choice([1, 4, 16])}
    check(make_problem(query_lens, seq_lens, seed=seed, **sizes))

"""Two parts of one attention, put together: anywhere, in any order, also when a part is empty."""

import pytest
import torch

from mini_kv.attention.merge import merge_attn_states

NUM_KEYS = 9


def attention(scores, values):
    """Return softmax attention of `[tokens, heads, keys]` over `[keys, heads, size]`, and its log-sum-exp."""
    lse = torch.logsumexp(scores, dim=-1)
    weights = torch.exp(scores - lse.nan_to_num(neginf=0.0).unsqueeze(-1))
    return torch.einsum("thk,khd->thd", weights, values), lse


@pytest.fixture
def whole():
    generator = torch.Generator().manual_seed(0)
    scores = 10 * torch.randn(4, 3, NUM_KEYS, generator=generator, dtype=torch.float64)
    return scores, torch.randn(NUM_KEYS, 3, 5, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("cut", range(NUM_KEYS + 1))
def test_the_two_sides_of_any_cut_make_the_whole(whole, cut):
    """At 0 and 9 one side is empty."""
    scores, values = whole
    left = attention(scores[:, :, :cut], values[:cut])
    right = attention(scores[:, :, cut:], values[cut:])
    torch.testing.assert_close(merge_attn_states(*left, *right), attention(scores, values))
    torch.testing.assert_close(merge_attn_states(*right, *left), attention(scores, values))


def test_three_parts_in_any_order(whole):
    scores, values = whole
    a, b, c = (attention(scores[:, :, i : i + 3], values[i : i + 3]) for i in (0, 3, 6))
    torch.testing.assert_close(merge_attn_states(*merge_attn_states(*a, *b), *c), attention(scores, values))
    torch.testing.assert_close(merge_attn_states(*merge_attn_states(*c, *a), *b), attention(scores, values))


def test_an_empty_side_adds_nothing_whatever_its_result_holds(whole):
    scores, values = whole
    out, lse = attention(scores, values)
    nothing = torch.full_like(out, torch.nan), torch.full_like(lse, -torch.inf)
    torch.testing.assert_close(merge_attn_states(out, lse, *nothing), (out, lse))


def test_two_empty_sides_make_zeros():
    """Minus infinity minus minus infinity is NaN, which is what a formula without care gives."""
    out, lse = torch.full((2, 1, 4), torch.nan), torch.full((2, 1), -torch.inf)
    merged, merged_lse = merge_attn_states(out, lse, out, lse)
    assert merged.tolist() == torch.zeros(2, 1, 4).tolist()
    assert merged_lse.tolist() == [[-torch.inf]] * 2


def test_some_rows_may_be_empty_and_others_not(whole):
    scores, values = whole
    scores[1, :, :4] = -torch.inf
    scores[2, :, 4:] = -torch.inf
    left, right = attention(scores[:, :, :4], values[:4]), attention(scores[:, :, 4:], values[4:])
    torch.testing.assert_close(merge_attn_states(*left, *right), attention(scores, values))


@pytest.mark.parametrize("shift", [-700.0, 700.0])
def test_large_scores_do_not_overflow(whole, shift):
    scores, values = whole
    scores += shift
    left, right = attention(scores[:, :, :4], values[:4]), attention(scores[:, :, 4:], values[4:])
    torch.testing.assert_close(merge_attn_states(*left, *right), attention(scores, values))


def test_the_result_keeps_the_dtype_of_its_parts():
    out, lse = torch.ones(2, 1, 4, dtype=torch.bfloat16), torch.zeros(2, 1)
    merged, merged_lse = merge_attn_states(out, lse, out, lse)
    assert (merged.dtype, merged_lse.dtype) == (torch.bfloat16, torch.float32)
    assert merged.unique().tolist() == [1.0]

"""The fast way on a CPU cuts long requests to pieces and copies short ones together; the result must not show where."""

from dataclasses import replace

import pytest
import torch

from mini_kv.attention import torch_backend, torch_plan
from mini_kv.attention.backends import paged_attention
from mini_kv.attention.options import AttentionOptions
from mini_kv.attention.torch_reader import Workspace
from mini_kv.tests.attention.problem import dense, make_problem, relative_error

BLOCK_BYTES = 2 * 4 * 2 * 16 * 4
"""Keys and values of 4 tokens, 2 heads of 16 numbers in float32."""
RAGGED = [1, 37, 4, 5, 16, 12, 13, 8]
KINDS = {
    "full": AttentionOptions(),
    "window": AttentionOptions(sliding_window=6),
    "sinks": AttentionOptions(sinks=torch.tensor([0.5, -3.0, 2.0, 0.0])),
}


def found(problem, backend="torch"):
    return paged_attention(problem.query, problem.kv_cache, problem.metadata, problem.options, backend=backend)


def check(problem):
    """Compare with dense attention, and with the plain version of the same over the same blocks."""
    out, lse = found(problem)
    for expected, expected_lse in (dense(problem), found(problem, "plain")):
        assert relative_error(out, expected) <= 1e-5
        assert relative_error(lse, expected_lse) <= 1e-5


def poison_all_that_decodes_do_not_see(problem):
    """Not a number in each slot before a window and behind the last token."""
    metadata, block_size = problem.metadata, problem.kv_cache.block_size
    for row, seq_len in enumerate(metadata.seq_lens.tolist()):
        for position in range(-(-seq_len // block_size) * block_size):
            if not problem.options.first_visible(seq_len - 1) <= position < seq_len:
                block_id = int(metadata.block_tables[row, position // block_size])
                slot = (block_id, slice(None), position % block_size)
                if problem.kv_cache.scales is not None:
                    problem.kv_cache.scales[slot] = torch.nan
                else:
                    problem.kv_cache.data[slot] = torch.nan


@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("blocks_at_once", [1, 2, 3, 5, 100])
def test_wherever_the_pieces_end_the_result_is_that_of_dense_attention(monkeypatch, blocks_at_once, kind, layout):
    monkeypatch.setattr(torch_plan, "PIECE_BYTES", blocks_at_once * BLOCK_BYTES)
    problem = make_problem([1] * len(RAGGED), RAGGED, block_size=4, options=KINDS[kind], layout=layout)
    poison_all_that_decodes_do_not_see(problem)
    check(problem)


@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize("cache_dtype", [torch.int8, torch.float8_e4m3fn])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("blocks_at_once", [1, 3, 100])
def test_wherever_pieces_of_8_bits_end_each_token_has_its_own_scale(
    monkeypatch, blocks_at_once, kind, cache_dtype, layout
):
    monkeypatch.setattr(torch_plan, "PIECE_BYTES", blocks_at_once * BLOCK_BYTES // 4)
    problem = make_problem(
        [1] * len(RAGGED), RAGGED, block_size=4, cache_dtype=cache_dtype, options=KINDS[kind], layout=layout
    )
    poison_all_that_decodes_do_not_see(problem)
    out, lse = found(problem)
    expected, expected_lse = found(problem, "plain")
    assert relative_error(out, expected) <= 1e-5
    assert relative_error(lse, expected_lse) <= 1e-5


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_8_bits_serve_queries_of_any_dtype(dtype):
    problem = make_problem([1] * len(RAGGED), RAGGED, block_size=4, dtype=dtype, cache_dtype=torch.int8)
    out, _ = found(problem)
    expected, _ = found(problem, "plain")
    assert out.dtype == dtype
    assert relative_error(out, expected) <= max(1e-5, torch.finfo(dtype).eps)


def test_blocks_with_padding_behind_them_give_the_same():
    """As where groups with blocks of different size share a tensor: the smaller page does not fill its row."""
    problem = make_problem([1, 5, 1, 3], [9, 18, 21, 7], block_size=4)
    data = problem.kv_cache.data
    with_padding = torch.full((len(data), data[0].numel() + 24), torch.nan)
    view = with_padding[:, : data[0].numel()].unflatten(1, data.shape[1:])
    view.copy_(data)
    problem.kv_cache = replace(problem.kv_cache, data=view)
    check(problem)


@pytest.mark.parametrize("blocks_at_once", [1, 2, 100])
def test_a_prompt_is_copied_in_pieces_too(monkeypatch, blocks_at_once):
    monkeypatch.setattr(torch_plan, "PIECE_BYTES", blocks_at_once * BLOCK_BYTES)
    check(make_problem([5, 1, 21, 0, 3], [33, 18, 21, 7, 4], block_size=4))


@pytest.mark.parametrize(
    ("blocks_at_once", "expected"),
    [
        (2, [[1, 3], [5], [8], [8], [8]]),
        (4, [[1, 3], [5, 8], [16]]),
        (100, [[1, 3, 8, 21]]),
    ],
)
def test_short_requests_are_copied_together(monkeypatch, blocks_at_once, expected):
    """Padded to the longest of them, they are never more than a single piece may be. The long one is cut."""
    monkeypatch.setattr(torch_plan, "PIECE_BYTES", blocks_at_once * BLOCK_BYTES)
    problem = make_problem([1, 1, 1, 1], [1, 8, 3, 21], block_size=4)
    pieces = torch_plan._pieces([1, 8, 3, 21], problem.kv_cache, problem.options)
    lengths = [piece.end - piece.begin for piece in pieces]
    batches = torch_plan._batches(pieces, problem.kv_cache)
    assert [lengths[begin:end] for begin, end in batches] == expected


@pytest.mark.parametrize("gone", ["_fused", "_FUSED_SHARES_HEADS"])
def test_without_what_torch_keeps_to_itself_the_result_is_the_same(monkeypatch, gone):
    monkeypatch.setattr(torch_backend, gone, None)
    check(make_problem([5, 1, 21, 0, 3], [33, 18, 21, 7, 4]))


def test_layers_of_one_kind_share_a_plan_and_others_do_not():
    problem = make_problem([1, 1], [9, 30], block_size=4)
    found(problem)
    found(problem)
    assert len(problem.metadata.plans) == 1
    window = AttentionOptions(sliding_window=6)
    windowed = replace(problem, options=window)
    check(windowed)
    check(problem)
    assert len(problem.metadata.plans) == 2


def test_memory_that_inference_took_serves_training_too():
    workspace, like = Workspace(), torch.zeros(1)
    with torch.inference_mode():
        workspace.take("x", (2, 3), like)
    weight = torch.ones(2, 3, requires_grad=True)
    workspace.take("x", (2, 3), like).copy_(weight.detach())
    assert not workspace.take("x", (2, 3), like).is_inference()

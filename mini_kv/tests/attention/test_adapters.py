"""The adapters to FlashInfer and flash-attn hand over what these packages document, and hand back what we promise.

No GPU and neither package is needed: a stand-in takes the arguments apart as the documentation says, and computes with
the oracle. That the documentation is right shows on a GPU alone (`python -m mini_kv.dev.attention`).
"""

import math
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from mini_kv.attention import flash_attn_backend, flashinfer_backend, reference
from mini_kv.attention.kv_cache import PagedKVCache
from mini_kv.attention.metadata import AttentionMetadata
from mini_kv.attention.options import AttentionOptions
from mini_kv.tests.attention.problem import dense, make_problem, relative_error

OPTIONS = AttentionOptions(scale=0.3, sliding_window=9, logits_soft_cap=3.0)


def compute(query, data, starts, tables, seq_lens, options):
    """Return result and log-sum-exp of the oracle."""
    metadata = AttentionMetadata(
        torch.empty(0, dtype=torch.int64), tables, seq_lens, starts, int(starts.diff().max()), int(seq_lens.max())
    )
    out = torch.zeros_like(query)
    return out, reference.attend(query, PagedKVCache(data), metadata, options, out)


class Wrapper:
    """FlashInfer's wrapper, as documented."""

    def __init__(self, workspace, layout):
        self.layout = layout

    def plan(self, starts, indptr, indices, last, heads, kv_heads, head_size, page_size, **settings):
        self.starts, self.settings = starts, settings
        counts = indptr.diff().tolist()
        self.seq_lens = ((indptr.diff() - 1) * page_size + last).to(torch.int32)
        self.tables = torch.zeros(len(counts), max(counts), dtype=torch.int32)
        for row, part in enumerate(indices.split(counts)):
            self.tables[row, : len(part)] = part

    def run(self, query, data, return_lse):
        settings = self.settings
        assert settings["causal"] and return_lse
        data = data if self.layout == "NHD" else data.transpose(2, 3)
        window = settings["window_left"] + 1 or None
        options = AttentionOptions(settings["sm_scale"], window, None, settings["logits_soft_cap"])
        out, lse = compute(query, data, self.starts, self.tables, self.seq_lens, options)
        return out, lse / math.log(2)


def varlen(query, keys, values, starts, key_starts, max_query_len, max_seq_len, **settings):
    """flash-attn's function, as documented."""
    assert settings["causal"] and settings["return_attn_probs"]
    data = torch.stack([keys, values], dim=1)
    seq_lens = key_starts.diff().to(torch.int32)
    assert (max_query_len, max_seq_len) == (int(starts.diff().max()), int(seq_lens.max()))
    window = settings["window_size"][0] + 1 or None
    options = AttentionOptions(settings["softmax_scale"], window, None, settings["softcap"] or None)
    out, lse = compute(query, data, starts, settings["block_table"], seq_lens, options)
    return out, lse.T, None


@pytest.mark.parametrize("options", [AttentionOptions(), OPTIONS])
@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize("package", ["flashinfer", "flash_attn"])
def test_the_adapter_hands_over_the_batch_and_hands_back_the_result(monkeypatch, package, layout, options):
    stand_in = SimpleNamespace(BatchPrefillWithPagedKVCacheWrapper=Wrapper, flash_attn_varlen_func=varlen)
    monkeypatch.setitem(sys.modules, package, stand_in)
    adapter = flashinfer_backend if package == "flashinfer" else flash_attn_backend
    problem = make_problem([7, 1, 3], [7, 13, 20], layout=layout, options=options)
    padded = torch.cat([problem.query, problem.query[:2]])
    out = torch.full_like(padded, 7.0)
    lse = adapter.attend(padded, problem.kv_cache, problem.metadata, options, out)
    expected, expected_lse = dense(problem)
    assert relative_error(out[:11], expected) <= 1e-5
    assert relative_error(lse[:11], expected_lse) <= 1e-5
    assert out[11:].unique().tolist() == [7.0]


class OnGpu:
    """A tensor as far as an obstacle looks at it."""

    device = torch.device("cuda")

    def __init__(self, dtype=torch.bfloat16):
        self.dtype = dtype


@pytest.mark.parametrize(
    ("adapter", "query", "cache", "options", "words"),
    [
        (flashinfer_backend, torch.zeros(1), {}, {}, "the tensors are on cpu"),
        (flashinfer_backend, OnGpu(torch.float32), {}, {}, "float16 and bfloat16 only"),
        (flashinfer_backend, OnGpu(), {"cache_dtype": torch.int8}, {}, "float16 and bfloat16 only"),
        (flashinfer_backend, OnGpu(), {}, {"chunk_size": 4}, "no chunked-local attention"),
        (flashinfer_backend, OnGpu(), {}, {"sinks": torch.zeros(4)}, "no sinks"),
        (flash_attn_backend, torch.zeros(1), {}, {}, "the tensors are on cpu"),
        (flash_attn_backend, OnGpu(), {"block_size": 16}, {}, "multiples of 256 tokens, ours have 16"),
        (flash_attn_backend, OnGpu(torch.float32), {"block_size": 256}, {}, "float16 and bfloat16 only"),
        (flash_attn_backend, OnGpu(), {"block_size": 256}, {"chunk_size": 4}, "no chunked-local attention"),
    ],
)
def test_what_the_packages_cannot_do_is_said_before(adapter, query, cache, options, words):
    kv_cache = make_problem([1], [5], **cache).kv_cache
    assert words in adapter.obstacle(query, kv_cache, AttentionOptions(**options))


def test_what_they_can_do_meets_no_obstacle():
    gpu: Any = OnGpu()
    kv_cache = make_problem([1], [5], block_size=256, dtype=torch.bfloat16).kv_cache
    assert flashinfer_backend.obstacle(gpu, kv_cache, OPTIONS) is None
    assert flash_attn_backend.obstacle(gpu, kv_cache, OPTIONS) is None

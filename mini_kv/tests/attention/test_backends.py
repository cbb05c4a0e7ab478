"""Which backend does a call, and what is refused before anything runs."""

import dataclasses
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from mini_kv.attention import backends
from mini_kv.attention.backends import Choice, choose_backend, paged_attention, write_kv
from mini_kv.attention.kv_cache import PagedKVCache, allocate_kv_cache
from mini_kv.attention.options import AttentionOptions
from mini_kv.core.errors import ConfigError
from mini_kv.installer import install_extra
from mini_kv.tests.attention.problem import make_problem

ROOT = Path(__file__).parents[3]


def test_auto_says_what_it_takes_and_why():
    problem = make_problem([1], [5])
    choice = choose_backend(problem.query, problem.kv_cache, problem.options)
    assert choice == Choice("torch", "the tensors are on cpu, where torch is the fastest")
    auto, _ = paged_attention(problem.query, problem.kv_cache, problem.metadata)
    named, _ = paged_attention(problem.query, problem.kv_cache, problem.metadata, backend="torch")
    assert auto.equal(named)


def test_on_cuda_auto_takes_triton_unless_something_speaks_against_it(monkeypatch):
    class OnCuda:
        device = torch.device("cuda")

    query: Any = OnCuda()
    nothing: Any = None
    monkeypatch.setattr(backends, "obstacle", lambda *_: None)
    assert choose_backend(query, nothing, nothing).name == "triton"
    monkeypatch.setattr(backends, "obstacle", lambda *_: "it has no tail")
    assert choose_backend(query, nothing, nothing) == Choice("torch", "triton cannot do this: it has no tail")


def test_a_backend_whose_package_is_missing_says_so(monkeypatch):
    problem = make_problem([1], [5])
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    for name in ("triton", "flashinfer", "flash_attn"):
        with pytest.raises(ConfigError, match=f"backend '{name}' cannot do this: the package {name} is not installed"):
            paged_attention(problem.query, problem.kv_cache, problem.metadata, backend=name)


def test_an_unknown_backend_is_told_the_known_ones():
    problem = make_problem([1], [5])
    message = "there is no such backend; there are reference, plain, torch, triton, flashinfer, flash_attn"
    with pytest.raises(ConfigError, match=message):
        paged_attention(problem.query, problem.kv_cache, problem.metadata, backend="cuda")


def refused(problem, **changes):
    """Return the message with which a call is refused that was changed so."""
    arguments = {"query": problem.query, "kv_cache": problem.kv_cache, "metadata": problem.metadata}
    options, out = changes.pop("options", None), changes.pop("out", None)
    with pytest.raises(ConfigError) as error:
        paged_attention(**{**arguments, **changes}, options=options, out=out, backend="torch")
    return str(error.value)


def test_what_does_not_belong_together_is_refused_before_anything_runs():
    problem = make_problem([2], [5])
    query, kv_cache, metadata = problem.query, problem.kv_cache, problem.metadata
    replace = dataclasses.replace
    assert refused(problem, query=query[0]) == "query is [4, 16]; it must be [num_tokens, num_heads, head_size]"
    assert refused(problem, query=query[:, :, :8]) == "query has head size 8, the cache 16"
    assert refused(problem, query=query[:, :3]) == "3 heads cannot share 2 heads of keys evenly"
    assert refused(problem, query=query.to(torch.int32)).startswith("query is torch.int32; it must be one of")
    assert refused(problem, query=query.half()) == "query is torch.float16, the cache torch.float32"
    no_scales = PagedKVCache(kv_cache.data.nan_to_num().to(torch.int8))
    assert refused(problem, kv_cache=no_scales).startswith("an int8 cache needs its scales")
    sinks = AttentionOptions(sinks=torch.zeros(3))
    assert refused(problem, options=sinks) == "sinks is [3]; it must be [num_heads], here [4]"
    assert refused(problem, out=torch.zeros(1, 4, 16)).startswith("out is [1, 4, 16], torch.float32, cpu")
    longer = replace(metadata, max_seq_len=13)
    assert refused(problem, metadata=longer).startswith(
        "max_seq_len is 13; a row of block_tables has room for 3 blocks"
    )
    wide = replace(metadata, block_tables=metadata.block_tables.long())
    assert refused(problem, metadata=wide) == "block_tables is torch.int64; it must be int32"
    fewer = replace(metadata, seq_lens=metadata.seq_lens[:0])
    assert refused(problem, metadata=fewer).startswith("for 0 seq_lens there must be as many rows")
    elsewhere = replace(metadata, seq_lens=metadata.seq_lens.to("meta"))
    assert refused(problem, metadata=elsewhere) == "query is on cpu, seq_lens on meta"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sliding_window": 0}, "sliding_window is 0, it must be at least 1"),
        ({"chunk_size": -1}, "chunk_size is -1, it must be at least 1"),
        ({"logits_soft_cap": 0.0}, "logits_soft_cap is 0.0, it must be positive"),
    ],
)
def test_options_that_mean_nothing_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        AttentionOptions(**options)


@pytest.mark.parametrize(
    ("sizes", "settings"),
    [
        ((0, 4, 2, 8), {}),
        ((3, 0, 2, 8), {}),
        ((3, 4, 2, 8), {"dtype": torch.int32}),
        ((3, 4, 2, 8), {"layout": "DNH"}),
        ((3, 4, 2, 8), {"tensor_scales": (2.0, 1.0)}),
        ((3, 4, 2, 8), {"tensor_scales": (0.0, 1.0), "dtype": torch.float8_e4m3fn}),
    ],
)
def test_a_cache_that_cannot_work_is_refused(sizes, settings):
    with pytest.raises(ConfigError):
        allocate_kv_cache(*sizes, **settings)


def test_a_write_that_does_not_fit_is_refused_and_nothing_written():
    kv_cache = allocate_kv_cache(3, 4, 2, 8)
    key, slots = torch.ones(5, 2, 8), torch.arange(5)
    for arguments in (
        (key, key[:4], slots),
        (key[:, :1], key[:, :1], slots),
        (key, key, slots[:4]),
        (key, key, slots.int()),
        (key.to("meta"), key.to("meta"), slots),
    ):
        with pytest.raises(ConfigError):
            write_kv(*arguments[:2], kv_cache, arguments[2])
    assert kv_cache.data.count_nonzero() == 0


def test_without_torch_the_import_says_what_to_install_and_the_rest_of_mini_kv_works():
    script = (
        "import sys; sys.modules['torch'] = None\n"  # which makes `import torch` fail as if it were not installed
        "import mini_kv.core.kv_cache_manager, mini_kv.story.story_text, mini_kv.story.text\n"
        "try:\n    import mini_kv.attention.backends\n"
        "except ModuleNotFoundError as error:\n    print(error.name, error, sep='|')"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    found = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    name, message = found.stdout.strip().split("|")
    assert name == "torch"
    assert message.startswith(f"mini_kv.attention needs torch: {install_extra('attention')}")

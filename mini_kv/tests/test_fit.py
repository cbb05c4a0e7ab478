"""`mini-kv plan --gpu`: weights, cache and rest of a card, and the bound on tokens per second, checked by hand."""

import json
from pathlib import Path
from typing import Any

import pytest

from mini_kv.cli import main
from mini_kv.core.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    KVCacheSpec,
    MambaSpec,
    MLAAttentionSpec,
    SlidingWindowSpec,
)
from mini_kv.planning.cost import Card
from mini_kv.planning.fit import bytes_read, make_fit, memory_of, on_card
from mini_kv.planning.flags import Flags
from mini_kv.planning.models import Model

CARD = Card("round", flops=1000, bandwidth=100_000, memory=100_000)
LAYER = FullAttentionSpec(block_size=10, num_kv_heads=1, head_size=5, dtype_bytes=2)  # 20 bytes per token


def model_of(weight_bytes: float | None, active_share: float | None = 1.0) -> Model:
    """Two layers, each with 20 bytes per token."""
    specs: dict[str, KVCacheSpec] = {"full.0": LAYER, "full.1": LAYER}
    return Model("small", "here", 100, specs, {}, weight_bytes=weight_bytes, active_share=active_share)


def test_a_card_holds_weights_and_cache_and_leaves_a_share():
    """90 % of 100,000 bytes, less 50,000 of weights: 40,000 for the cache."""
    memory = memory_of(CARD, model_of(50_000), 1, 0.9)
    assert (memory.weights, memory.kv, memory.rest) == (50_000, 40_000, 10_000)


def test_weights_are_divided_by_the_cards():
    memory = memory_of(CARD, model_of(160_000), 4, 0.9)
    assert (memory.weights, memory.kv) == (40_000, 50_000)


def test_the_caller_s_weights_replace_the_model_s():
    assert memory_of(CARD, model_of(None), 1, 0.9, weights=30_000).kv == 60_000


def test_a_cache_of_known_size_leaves_what_is_left():
    """vLLM's log says the cache. Weights that are not known are not counted."""
    assert on_card(70_000, CARD, model_of(20_000), 1).rest == 10_000
    assert on_card(70_000, CARD, model_of(None), 1).rest == 30_000


def test_the_requests_that_fit_are_whole_blocks():
    """40,000 bytes are 100 blocks of 400, and a request of 100 tokens needs 10. One is the null block."""
    model = model_of(50_000)
    fit = make_fit(model, Flags(10), model.kv_cache_spec, memory_of(CARD, model, 1, 0.9), max_len=100)
    assert (fit.bytes_per_block, fit.config.num_blocks, fit.blocks_per_request) == (400, 100, 10)
    assert fit.concurrency == 9.9


def test_a_step_reads_the_weights_once_and_each_request_s_cache():
    """50,000 bytes of weights, 4,000 per request, 100,000 bytes per second."""
    model = model_of(50_000)
    fit = make_fit(model, Flags(10), model.kv_cache_spec, memory_of(CARD, model, 1, 0.9), max_len=100)
    assert fit.tokens_per_second(1) == pytest.approx(100_000 / 54_000)
    assert fit.tokens_per_second(9) == pytest.approx(9 * 100_000 / 86_000)
    assert fit.tokens_per_second(0) is None


def test_a_mixture_of_experts_reads_what_a_token_uses():
    model = model_of(50_000, 0.1)
    fit = make_fit(model, Flags(10), model.kv_cache_spec, memory_of(CARD, model, 1, 0.9), max_len=100)
    assert fit.tokens_per_second(1) == pytest.approx(100_000 / 9_000)


def test_no_speed_is_said_where_nobody_knows_the_active_share():
    model = model_of(50_000, None)
    fit = make_fit(model, Flags(10), model.kv_cache_spec, memory_of(CARD, model, 1, 0.9), max_len=100)
    assert fit.tokens_per_second(1) is None


def test_layers_that_share_kv_read_it_too():
    model = Model("small", "here", 100, {"full.0": LAYER}, {"full.1": "full.0"}, weight_bytes=50_000, active_share=1.0)
    fit = make_fit(model, Flags(10), model.kv_cache_spec, memory_of(CARD, model, 1, 0.9), max_len=100)
    assert fit.tokens_per_second(1) == pytest.approx(100_000 / 54_000)


def test_each_kind_of_layer_reads_what_a_new_token_attends_to():
    """100 tokens of 20 bytes; a window of 30; the 10 last of chunks of 45; 10 bytes per token of a latent vector."""
    shape = (10, 1, 5, 2)
    state = MambaSpec(10, shapes=((3, 5), (7, 5)), dtypes_bytes=(2, 4))
    assert [
        bytes_read(spec, 100)
        for spec in (
            LAYER,
            SlidingWindowSpec(*shape, sliding_window=30),
            ChunkedLocalAttentionSpec(*shape, attention_chunk_size=45),
            MLAAttentionSpec(*shape),
            state,
        )
    ] == [2000, 600, 200, 1000, 170]


def test_the_answer_the_bar_and_the_bound_are_printed(capsys):
    assert main(["plan", "llama-3-8b", "--gpu", "h100"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:5] == [
        "Room for 53 requests of 8,192 tokens on one H100.",
        "",
        "|############===========================================.....|  80 GB",
        " # weights 16.1 GB   = KV cache 57.5 GB   . not used 6.4 GB",
        "",
    ]
    (speed,) = [line for line in lines if line.startswith("speed")]
    assert speed.startswith("speed        at most 2,433 tokens/s from 53 requests at their full length, 196 from one: ")


def test_all_figures_come_as_json(capsys):
    assert main(["plan", "llama-3-8b", "--gpu", "h100", "--max-len", "4096", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["gpu"], told["weight_bytes"], told["kv_cache_bytes"]) == ("H100", 16.06e9, 57_540_000_000)
    assert (told["num_blocks"], told["blocks_per_request"], int(told["concurrency"])) == (27_437, 256, 107)
    assert [(group["keeps"], group["block_size"]) for group in told["groups"]] == [("full attention", 16)]


def test_windows_reserve_blocks_for_two_steps_of_the_gpu_s_budget(capsys):
    """vLLM's server takes 8,192 tokens per step on an H100 and 2,048 on an A100, and schedules one step ahead."""
    told = {}
    for name, flags in {
        "h100": ["--gpu", "h100"],
        "a100": ["--gpu", "a100"],
        "given": ["--gpu", "a100", "--max-num-batched-tokens", "8192"],
        "in flight": ["--step", "16384"],
        "neither": [],
    }.items():
        assert main(["plan", "gemma-3-27b", "--max-len", "32768", *flags, "--json"]) == 0
        plan = json.loads(capsys.readouterr().out)
        told[name] = (plan["tokens_in_flight"], plan["blocks_per_request"])
    assert told == {
        "h100": (16_384, 2048 + 6 * 1089),
        "a100": (4_096, 2048 + 6 * 321),
        "given": (16_384, 2048 + 6 * 1089),
        "in flight": (16_384, 2048 + 6 * 1089),
        "neither": (8_192, 2048 + 6 * 577),
    }


def test_concurrency_is_rounded_down(capsys):
    """The null block is missing: 8,191 blocks for requests of 512."""
    assert main(["plan", "llama-3-8b"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "Room for 15 requests of 8,192 tokens in 16 GiB."
    assert "concurrency  15.99 such requests at once, 131,056 tokens" in lines


def test_a_request_longer_than_the_model_allows_is_remarked(capsys):
    remark = "limit        the model has 8,192 tokens at most: vLLM refuses a longer --max-model-len"
    for length, is_said in (("8192", False), ("8193", True)):
        assert main(["plan", "llama-3-8b", "--max-model-len", length]) == 0
        assert (remark in capsys.readouterr().out.splitlines()) is is_said


def test_of_drafts_and_sparse_layers_no_speed_is_said(capsys):
    said = "speed        no bound is known: sparse layers read some of the tokens, and drafts give several per step"
    for arguments in (
        ["llama-3-8b", "--gpu", "H100", "--num-speculative-tokens", "3"],
        ["deepseek-v3.2", "--gpu", "h200", "--tensor-parallel-size", "8"],
    ):
        assert main(["plan", *arguments]) == 0
        assert said in capsys.readouterr().out.splitlines()


def test_the_gpu_decides_the_prefill_kernel_unless_it_is_given(capsys):
    """FlashInfer's exports states at every 64th token. vLLM takes it on Hopper and Blackwell only."""
    sizes = {}
    for gpu in ("h100", "b200", "a100", "l4"):
        assert main(["why", "qwen-3.5-4b", "--gpu", gpu, "--json"]) == 0
        sizes[gpu] = json.loads(capsys.readouterr().out)["hit_alignment_tokens"]
    assert sizes == {"h100": 576, "b200": 576, "a100": 528, "l4": 528}
    assert main(["why", "qwen-3.5-4b", "--gpu", "h100", "--gdn-prefill-backend", "triton", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["hit_alignment_tokens"] == 528


CONFIG = {"model_type": "llama", "num_hidden_layers": 2, "max_position_embeddings": 64}


def test_the_index_beside_a_config_says_the_weights(tmp_path, capsys):
    path = written(tmp_path, CONFIG, {"metadata": {"total_size": 4_000_000_000}})
    assert main(["plan", str(path), "--gpu", "h100", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["weight_bytes"] == 4e9
    assert told["tokens_per_second_of_one"] is not None


def test_of_experts_in_a_config_the_active_share_is_not_known(tmp_path, capsys):
    path = written(
        tmp_path, {**CONFIG, "model_type": "mixtral", "num_local_experts": 8}, {"metadata": {"total_size": 9}}
    )
    assert main(["plan", str(path), "--gpu", "h100", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["tokens_per_second_of_one"] is None


@pytest.mark.parametrize(
    ("index", "flags", "said"),
    [
        (None, ["--gpu", "h100"], " beside its config.json"),
        ({"metadata": {"total_size": "4"}}, [], "metadata.total_size is '4', it must be a number of bytes"),
        ({"metadata": 4}, [], "metadata.total_size is None, it must be a number of bytes"),
        (
            {"metadata": {"total_size": 100e9}},
            [],
            "metadata.total_size is 100000000000.0, it must be a number of bytes",
        ),
        (
            None,
            ["--gpu", "h100", "--weights", "nan"],
            "--weights is nan, it must be above 0 and at most 1,000,000,000 GB",
        ),
        (
            None,
            ["--gpu", "h100", "--weights", "140"],
            "the weights have 140.0 GB, and 73.6 GB of one H100 may be used:"
            " it takes --tensor-parallel-size 2 at least",
        ),
        (None, ["--weights", "140"], "--weights needs --gpu, whose memory they are taken from"),
        (None, ["--gpu-memory-utilization", "1.5"], "--gpu-memory-utilization is 1.5, it must be above 0, at most 1"),
    ],
)
def test_a_card_that_cannot_be_planned(index, flags, said, tmp_path, capsys):
    """One line on stderr, and status 2."""
    path = written(tmp_path, CONFIG, index)
    assert main(["plan", str(path), *flags]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.endswith(f"{said}\n")
    assert captured.err.count("\n") == 1


def written(folder: Path, config: dict[str, Any], index: dict[str, Any] | None) -> Path:
    """Write a config.json and the index beside it; return the first's path."""
    if index is not None:
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    path = folder / "config.json"
    path.write_text(json.dumps(config))
    return path

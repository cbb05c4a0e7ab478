"""`mini-kv plan --gpu`: weights, cache and rest of a card, and the bound on tokens per second, checked by hand."""

import json
from pathlib import Path
from typing import Any

import pytest
from inline_snapshot import snapshot

from mini_kv.cli import main
from mini_kv.core.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    KVCacheSpec,
    MambaSpec,
    MLAAttentionSpec,
    SlidingWindowSpec,
)
from mini_kv.core.kv_cache_planning import blocks_per_request
from mini_kv.tests.test_config_json import written as write_config
from mini_kv.tools.planning.cost import Card
from mini_kv.tools.planning.fit import Fit, Memory, bytes_read, make_fit, memory_of, on_card
from mini_kv.tools.planning.flags import Flags
from mini_kv.tools.planning.models import Model, load_model
from mini_kv.tools.planning.plan_command import HOW_TO_SAY_WEIGHTS

CARD = Card("round", flops=1000, bandwidth=100_000, memory=100_000)
LAYER = FullAttentionSpec(block_size=10, num_kv_heads=1, head_size=5, dtype_bytes=2)  # 20 bytes per token


def model_of(weight_bytes: float | None, active_share: float | None = 1.0) -> Model:
    """Two layers, each with 20 bytes per token."""
    specs: dict[str, KVCacheSpec] = {"full.0": LAYER, "full.1": LAYER}
    return Model("small", "here", 100, specs, {}, weight_bytes=weight_bytes, active_share=active_share)


def fit_of(model: Model) -> Fit:
    """Return how requests of 100 tokens fit on the card, in blocks of 10."""
    return make_fit(
        model, Flags(10), model.kv_cache_spec, memory_of(CARD, model, 1, 0.9), max_len=100, max_num_batched_tokens=8192
    )


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
    fit = fit_of(model_of(50_000))
    assert fit.config is not None
    assert (fit.bytes_per_block, fit.config.num_blocks, fit.blocks_per_request) == (400, 100, 10)
    assert fit.concurrency == 9.9


def test_a_step_reads_the_weights_once_and_each_request_s_cache():
    """50,000 bytes of weights, 4,000 per request, 100,000 bytes per second."""
    fit = fit_of(model_of(50_000))
    assert fit.tokens_per_second(1) == pytest.approx(100_000 / 54_000)
    assert fit.tokens_per_second(9) == pytest.approx(9 * 100_000 / 86_000)
    assert fit.tokens_per_second(0) is None


def test_a_mixture_of_experts_reads_what_a_token_uses():
    assert fit_of(model_of(50_000, 0.1)).tokens_per_second(1) == pytest.approx(100_000 / 9_000)


def test_no_speed_is_said_where_nobody_knows_the_active_share():
    assert fit_of(model_of(50_000, None)).tokens_per_second(1) is None


def test_layers_that_share_kv_read_it_too():
    model = Model("small", "here", 100, {"full.0": LAYER}, {"full.1": "full.0"}, weight_bytes=50_000, active_share=1.0)
    assert fit_of(model).tokens_per_second(1) == pytest.approx(100_000 / 54_000)


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
        "one step": ["--max-num-batched-tokens", "16384", "--no-async-scheduling"],
        "neither": [],
    }.items():
        assert main(["plan", "gemma-3-27b", "--max-len", "32768", *flags, "--json"]) == 0
        plan = json.loads(capsys.readouterr().out)
        told[name] = (plan["tokens_in_flight"], plan["blocks_per_request"])
    assert told == {
        "h100": (16_384, 2048 + 6 * 1089),
        "a100": (4_096, 2048 + 6 * 321),
        "given": (16_384, 2048 + 6 * 1089),
        "one step": (16_384, 2048 + 6 * 1089),
        "neither": (16_384, 2048 + 6 * 1089),
    }


def test_the_longest_request_that_fits_is_the_last_of_all_lengths_that_do() -> None:
    """Found by halving, compared with each length in turn, in pools of 2 to 80 blocks."""
    shape = (4, 1, 5, 2)
    specs: dict[str, KVCacheSpec] = {
        "full.0": FullAttentionSpec(*shape),
        "window.0": SlidingWindowSpec(*shape, sliding_window=12),
        "chunks.0": ChunkedLocalAttentionSpec(*shape, attention_chunk_size=8),
    }
    model = Model("small", "here", 100, specs, {})
    for num_blocks in range(2, 80, 3):
        memory = Memory(80 * num_blocks)
        fit = make_fit(model, Flags(4), specs, memory, max_len=100, max_num_batched_tokens=8, disable_hybrid=False)
        needed = {length: blocks_per_request(fit.groups, length, 16) for length in range(1, 101)}
        assert fit.longest == max([length for length, blocks in needed.items() if blocks < num_blocks], default=0)


def test_a_request_that_does_not_fit_is_status_1_and_told_the_longest_that_does(capsys):
    """The null block is never a request's: 256 blocks hold 255 of a request."""
    assert main(["plan", "llama-3-8b", "--memory", "0.5", "--max-len", "4080"]) == 0
    assert capsys.readouterr().out.startswith("Room for 1 request of 4,080 tokens in 0.5 GiB.\n")
    assert main(["plan", "llama-3-8b", "--memory", "0.5", "--max-len", "4096"]) == 1
    told = "A request of 4,096 tokens does not fit in 0.5 GiB: the longest that fits has 4,080.\n"
    assert capsys.readouterr().out.startswith(told)
    assert main(["plan", "llama-3-8b", "--memory", "0.004", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["longest"] == 16


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


def test_of_experts_that_cannot_be_counted_the_active_share_is_not_known(tmp_path, capsys):
    path = written(
        tmp_path, {**CONFIG, "model_type": "mixtral", "num_local_experts": 8}, {"metadata": {"total_size": 9}}
    )
    assert main(["plan", str(path), "--gpu", "h100", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["tokens_per_second_of_one"] is None


SMALL = CONFIG | {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 10, "hidden_size": 30}
SMALL |= {"intermediate_size": 70, "vocab_size": 100, "tie_word_embeddings": False}
"""2 layers. Attention has 30 * (4 + 2 + 2 + 4) * 10 = 3,600 parameters, feed-forward 3 * 30 * 70 = 6,300."""
EXPERTS = SMALL | {"moe_intermediate_size": 20, "num_experts_per_tok": 2}
"""An expert has 3 * 30 * 20 = 1,800 parameters, and 30 of the router."""
LATENT = EXPERTS | {"kv_lora_rank": 11, "qk_rope_head_dim": 3, "qk_nope_head_dim": 5, "v_head_dim": 7}
"""Queries 4 * 8, keys and values 4 * (5 + 7) from 11 numbers, which come from 30 with 3 more, output 4 * 7."""
GATED = SMALL | {"model_type": "qwen3_5_text", "layer_types": ["linear_attention", "full_attention"]}
GATED |= {"linear_num_key_heads": 2, "linear_num_value_heads": 3, "linear_key_head_dim": 4, "linear_value_head_dim": 5}


@pytest.mark.parametrize(
    ("fields", "total", "active"),
    [
        (SMALL, 2 * 3000 + 2 * (3600 + 6300), None),
        (SMALL | {"tie_word_embeddings": True}, 3000 + 2 * (3600 + 6300), None),
        (SMALL | {"model_type": "phi"}, 2 * 3000 + 2 * (3600 + 4200), None),
        (
            EXPERTS | {"model_type": "qwen3_moe", "num_experts": 8},
            6000 + 2 * (3600 + 8 * 1830),
            6000 + 2 * (3600 + 8 * 30 + 2 * 1800),
        ),
        (  # the first layer is listed as one without experts
            EXPERTS | {"model_type": "qwen3_moe", "num_experts": 8, "mlp_only_layers": [0]},
            6000 + 3600 + 6300 + 3600 + 8 * 1830,
            6000 + 3600 + 6300 + 3600 + 8 * 30 + 2 * 1800,
        ),
        (  # experts in layer 1, not in layer 0; a shared one of 10
            EXPERTS
            | {"model_type": "qwen2_moe", "num_experts": 8}
            | {"decoder_sparse_step": 2, "shared_expert_intermediate_size": 10},
            6000 + 3600 + 6300 + 3600 + 8 * 1830 + 900,
            6000 + 3600 + 6300 + 3600 + 8 * 30 + 2 * 1800 + 900,
        ),
        (  # 30 * 32 + 30 * 14 + 11 * 48 + 28 * 30 = 2,748; a dense layer, then one with experts
            LATENT
            | {"model_type": "deepseek_v3", "n_routed_experts": 8, "n_shared_experts": 1, "first_k_dense_replace": 1},
            6000 + 2 * 2748 + 6300 + 8 * 1830 + 1800,
            6000 + 2 * 2748 + 6300 + 8 * 30 + 2 * 1800 + 1800,
        ),
        (  # queries by 6 numbers: 6 * (30 + 32) in the place of 30 * 32
            LATENT | {"model_type": "deepseek_v3", "n_routed_experts": 8, "q_lora_rank": 6},
            6000 + 2 * (2748 - 960 + 372 + 8 * 1830),
            6000 + 2 * (2748 - 960 + 372 + 8 * 30 + 2 * 1800),
        ),
        (  # the list says which layers have experts, whatever the number beside it is
            LATENT
            | {"model_type": "glm4_moe_lite", "n_routed_experts": 8, "first_k_dense_replace": 2}
            | {"mlp_layer_types": ["dense", "sparse"]},
            6000 + 2 * 2748 + 6300 + 8 * 1830,
            6000 + 2 * 2748 + 6300 + 8 * 30 + 2 * 1800,
        ),
        # attention has a gate of 40 more; a state 30 * (2 * 8 + 3 * 15 + 2 * 3) and a convolution of 4 * (16 + 15)
        (GATED, 6000 + 3600 + 30 * 40 + 30 * 67 + 4 * 31 + 2 * 6300, None),
    ],
    ids=str,
)
def test_parameters_are_counted_from_the_config(fields, total, active, tmp_path):
    model = load_model(str(written(tmp_path, fields, None)))
    assert model.weight_bytes == 2 * total
    assert model.active_share == (active or total) / total
    assert model.weights_from == "counted from the config at 2 bytes per parameter"


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"vocab_size": None}, "vocab_size is None, it must be a whole number from 1 to 1,000,000,000"),
        ({"model_type": "jamba"}, "plan does not count the weights of model_type 'jamba'"),
        ({"model_type": "qwen3_5_text", "attn_output_gate": False}, "attn_output_gate is false, and plan counts "),
        ({"quantization_config": {"quant_method": "awq", "bits": 4}}, "its weights are quantized (awq)"),
        ({"num_local_experts": 8}, "it has num_local_experts, and plan counts no experts for model_type 'llama'"),
        ({"intermediate_size": [70, 80]}, "intermediate_size is [70, 80], it must be a whole number from 1 to "),
        ({"model_type": "qwen2_vl", "tie_word_embeddings": None}, "it does not say clearly whether tie_word_embed"),
        ({"model_type": "qwen3_moe", "num_experts": 1}, "it does not say moe_intermediate_size"),
        ({"model_type": "qwen3_moe", "num_experts": 1, "num_local_experts": 2}, "it does not say clearly how many exp"),
        ({"model_type": "qwen3_moe"}, "it does not say clearly how many experts a layer has"),
        (
            LATENT | {"model_type": "glm4_moe_lite", "n_routed_experts": 8, "mlp_layer_types": ["dense"]},
            "mlp_layer_types is ['dense'], it must be 2 times dense or sparse",
        ),
        ({"model_type": "qwen3_5_text", "layer_types": ["mlp", "full_attention"]}, "plan does not count the weights o"),
        (
            EXPERTS | {"model_type": "qwen3_moe", "num_experts": 1},
            "num_experts_per_tok is 2, it must be a whole number from 1 to 1",
        ),
        (
            EXPERTS | {"model_type": "qwen3_moe", "num_experts": 2, "mlp_only_layers": 1},
            "it does not say clearly which",
        ),
        (LATENT | {"model_type": "deepseek_v2", "moe_layer_freq": 2}, "it has moe_layer_freq, and plan does not know"),
        (
            LATENT | {"model_type": "deepseek_v3", "v_head_dim": 0},
            "v_head_dim is 0, it must be a whole number from 1 to",
        ),
        ({"text_config": SMALL | {"tie_word_embeddings": True}}, "it does not say clearly whether tie_word_embeddings"),
    ],
    ids=str,
)
def test_what_cannot_be_counted_is_said_and_the_rest_is_planned(fields, why, tmp_path, capsys):
    """Groups, blocks and a request's bytes need no weights. The room does."""
    states = {"layer_types": ["linear_attention"] * 2} if fields.get("model_type") == "qwen3_5_text" else {}
    path = written(tmp_path, SMALL | states | fields, None)
    assert main(["plan", str(path), "--gpu", "h100"]) == 0
    lines = capsys.readouterr().out.splitlines()
    unknown = f"The room on one H100 is not known, because the weights cannot be counted: {path}: "
    assert lines[0].startswith(unknown + why)
    assert lines[1] == HOW_TO_SAY_WEIGHTS
    assert [line.split()[0] for line in lines if line.startswith(("block", "pool", "request", "conc", "speed"))] == [
        "block",
        "request",
    ]
    assert main(["plan", str(path), "--gpu", "h100", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    names = ("weight_bytes", "kv_cache_bytes", "num_blocks", "concurrency", "kv_cache_tokens")
    assert [told[name] for name in names] == [None] * 5
    assert main(["plan", str(path), "--gpu", "h100", "--weights", "16"]) == 0
    assert capsys.readouterr().out.startswith("Room for ")


def test_the_plan_says_how_the_weights_are_known(tmp_path, capsys):
    """Counted, without other parts of the model, from the index, or given."""
    index = {"metadata": {"total_size": 4_000_000_000}}
    vision = {"text_config": SMALL, "vision_config": {"hidden_size": 9}}
    said = []
    for config, beside, flags in [
        (SMALL | {"hidden_size": 300_000}, None, []),
        (vision, None, []),
        (SMALL, index, ["--tensor-parallel-size", "2"]),
        (SMALL, index, ["--weights", "8"]),
    ]:
        assert main(["plan", str(written(tmp_path, config, beside)), "--gpu", "h100", *flags]) == 0
        said += [line for line in capsys.readouterr().out.splitlines() if line.startswith("weights ")]
    assert said == snapshot(
        [
            "weights      0.5 GB, counted from the config at 2 bytes per parameter: --weights takes another size",
            "weights      0.0 GB, counted from the config at 2 bytes per parameter, without those of vision_config:"
            " --weights takes another size",
            "weights      4.0 GB, from model.safetensors.index.json: --weights takes another size",
            "weights      8.0 GB, as given: --weights takes another size",
        ]
    )


@pytest.mark.parametrize(
    ("index", "flags", "said"),
    [
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
    return write_config(folder, config)

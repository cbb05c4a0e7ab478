"""`mini-kv plan config.json`: models as they are published are planned right, or refused by the name of a field."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from mini_kv.cli import main
from mini_kv.core.errors import ConfigError
from mini_kv.core.kv_cache_interface import (
    AttentionSpec,
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    KVCacheSpec,
    MambaSpec,
    SlidingWindowSpec,
)
from mini_kv.tools.planning.flags import Flags
from mini_kv.tools.planning.models import load_model

PUBLIC = json.loads((Path(__file__).parents[1] / "dev/recorders/public_configs.json").read_text(encoding="utf-8"))
"""Published shapes, each with the layers that the model's own card or code has."""
KDA = {"num_heads": 8, "head_dim": 16, "short_conv_kernel_size": 4, "kda_layers": [1, 2, 4], "full_attn_layers": [3]}
"""Kimi's fields about layers, but for the latent vectors."""
NOT_YET = "which plan does not model yet"
PLAIN: dict[str, Any] = {
    "model_type": "llama",
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "hidden_size": 512,
    "max_position_embeddings": 4096,
}


def written(tmp_path: Path, values: object) -> Path:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(values), encoding="utf-8")
    return path


def refusal(tmp_path: Path, values: object) -> str:
    """Return what is said of a config.json that is refused, without its path, which stands in front."""
    path = written(tmp_path, values)
    with pytest.raises(ConfigError) as raised:
        load_model(str(path))
    said, _, problem = str(raised.value).partition(": ")
    assert said == str(path)
    return problem


def of(model_type: str, **fields: Any) -> dict[str, Any]:
    return {"model_type": model_type, **fields}


def blocks(*groups: int | None, **fields: Any) -> dict[str, Any]:
    """Return what a Nemotron NAS file says of layers with so many query heads per KV head, or with no attention."""
    attentions = [{"n_heads_in_group": group, "no_op": group is None, **fields} for group in groups]
    return {"model_type": "nemotron-nas", "block_configs": [{"attention": attention} for attention in attentions]}


def layers(path: Path) -> str:
    """Return the layers by kind, such as `22 window 1x256 of 512, 4 full 1x256+128`: heads x elements, and the reach.

    The elements of a key, and after a plus those of a value if they differ.
    """
    model = load_model(str(path))
    counts = Counter(f"{name.partition('.')[0]} {shape(spec)}" for name, spec in model.kv_cache_spec.items())
    shared = [f"{len(model.kv_sharing)} shared"] if model.kv_sharing else []
    return ", ".join([f"{number} {kind}" for kind, number in counts.items()] + shared)


def shape(spec: KVCacheSpec) -> str:
    if isinstance(spec, MambaSpec):
        return " and ".join("x".join(map(str, tensor)) for tensor in spec.shapes)
    assert isinstance(spec, AttentionSpec)
    values = f"+{spec.head_size_v}" if spec.head_size_v not in (None, spec.head_size) else ""
    return f"{spec.num_kv_heads}x{spec.head_size}{values}{reach(spec)}"


def reach(spec: AttentionSpec) -> str:
    match spec:
        case SlidingWindowSpec():
            return f" of {spec.sliding_window}"
        case ChunkedLocalAttentionSpec():
            return f" of {spec.attention_chunk_size}"
        case _:
            return ""


@pytest.mark.parametrize("row", PUBLIC["everyday"], ids=lambda row: row["name"])
def test_an_everyday_model_is_answered(row: dict[str, Any], tmp_path: Path) -> None:
    assert layers(written(tmp_path, row["config"])) == row["expect"]


QUANTIZED = {"quant_method": "modelopt", "kv_cache_scheme": {"num_bits": 8, "type": "float", "dynamic": False}}


def test_the_cache_dtype_of_a_quantized_file_is_taken_unless_a_flag_differs(tmp_path: Path) -> None:
    path = str(written(tmp_path, PLAIN | {"quantization_config": QUANTIZED}))
    for flags in (Flags(), Flags(kv_cache_dtype="fp8")):
        assert {spec.page_size_bytes for spec in flags.load(path)[1].values()} == {16 * 2 * 2 * 64}
    with pytest.raises(ConfigError) as raised:
        Flags(kv_cache_dtype="int8_per_token_head").load(path)
    assert str(raised.value) == f"{path} asks for a cache in fp8: leave --kv-cache-dtype out"


def test_modelopt_s_own_file_is_read_where_the_config_says_nothing(tmp_path: Path) -> None:
    said = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}}
    (tmp_path / "hf_quant_config.json").write_text(json.dumps(said), encoding="utf-8")
    assert load_model(str(written(tmp_path, PLAIN))).kv_cache_dtype == "fp8"
    unquantized = PLAIN | {"quantization_config": {"quant_method": "modelopt", "quant_algo": "FP8"}}
    assert load_model(str(written(tmp_path, unquantized))).kv_cache_dtype == "auto"


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        *[({"full_attn_mod": value}, f"it has full_attn_mod, {NOT_YET}") for value in (2, True, 1.0)],
        ({"cla_share_factor": 2}, f"it has cla_share_factor, {NOT_YET}"),
        ({"cla_share_factor": 2, "use_cla": True}, f"it has cla_share_factor, use_cla, {NOT_YET}"),
        ({"cla_share_factor": 2, "use_cla": 0}, f"it has cla_share_factor, use_cla, {NOT_YET}"),
        ({"use_cla": True}, f"it has use_cla, {NOT_YET}"),
        ({"use_mla": True, "kv_lora_rank": 512}, f"it has use_mla, kv_lora_rank, {NOT_YET}"),
        ({"num_heads": 4}, f"it has num_heads, {NOT_YET}"),
        (
            {"model_type": "lfm2", "conv_dim": 512, "conv_dim_out": 256, "full_attn_idxs": [3]},
            f"it has conv_dim_out, {NOT_YET}",
        ),
        ({"text_config": {"text_config": {}}}, "it does not say num_hidden_layers"),
        ({"thinker_config": {"text_config": {"model_type": "t5"}}}, "model_type 't5' is not one that plan knows"),
        (
            {"thinker_config": {"is_encoder_decoder": True, "text_config": {"model_type": "llama"}}},
            "it is an encoder's, and plan supports decoders only",
        ),
        (
            {"text_config": PLAIN | {"layer_types": ["full_attention", "sliding_attention"]}},
            "layer_types has 2 entries for 4 layers",
        ),
        ({"model_type": "glm4v_moe_text", "layer_types": ["linear_attention"] * 4}, "layer_types names 'linear_att"),
        *[
            ({"quantization_config": {"quant_method": method, name: value}}, f"quantization_config has {name} ")
            for method, name, value in (
                ("modelopt", "kv_cache_scheme", {"num_bits": 4, "type": "float"}),
                ("modelopt", "kv_cache_scheme", {"num_bits": 8, "type": "int"}),
                ("modelopt", "kv_cache_scheme", {"num_bits": 8, "type": "float"}),
                ("modelopt", "kv_cache_scheme", {"num_bits": 8, "type": "float", "dynamic": True}),
                ("compressed-tensors", "kv_cache_scheme", {"num_bits": 8, "type": "float", "strategy": "channel"}),
                ("compressed-tensors", "kv_cache_scheme", {"num_bits": 8}),
                ("modelopt", "kv_cache_quant_algo", "NVFP4"),
                ("modelopt", "kv_cache_quant_algo", "INT8"),
                ("quark", "kv_cache_scheme", "fp8"),
            )
        ],
        ({"quantization_config": "fp8"}, "quantization_config is 'fp8', it must be one object"),
        (
            {"quantization_config": QUANTIZED, "text_config": PLAIN | {"quantization_config": {"quant_method": "x"}}},
            "quantization_config is {'quant_method': 'modelopt', 'kv_cach..., it must be one object",
        ),
    ],
    ids=str,
)
def test_a_harmful_value_of_a_harmless_field_is_refused(fields: dict[str, Any], problem: str, tmp_path: Path) -> None:
    assert refusal(tmp_path, PLAIN | fields).startswith(problem)


@pytest.mark.parametrize("row", PUBLIC["unusual"], ids=lambda row: row["name"])
def test_an_unusual_model_is_right_or_refused_by_name(row: dict[str, Any], tmp_path: Path) -> None:
    if row["expect"].startswith("refused: "):
        assert row["expect"].removeprefix("refused: ") in refusal(tmp_path, row["config"])
    else:
        assert layers(written(tmp_path, row["config"])) == row["expect"]


@pytest.mark.parametrize(
    ("fields", "expect"),
    [
        ({"sliding_window": 32}, "4 window 2x64 of 32"),
        ({"sliding_window": 32, "layer_types": ["full_attention"] * 4}, "4 full 2x64"),
        ({"sliding_window": 0}, "4 full 2x64"),
        ({"head_dim": None}, "4 full 2x64"),
        ({"head_dim": 0}, "4 full 2x64"),
        ({"num_key_value_heads": None}, "4 full 8x64"),
        (of("qwen2", sliding_window=32, use_sliding_window=False), "4 full 2x64"),
        ({"model_type": None, "sliding_window": 32, "sliding_window_pattern": 2}, "2 window 2x64 of 32, 2 full 2x64"),
        ({"model_type": None, "kv_lora_rank": 512, "qk_rope_head_dim": 64}, "4 latent 1x576"),
        (of("gemma3_text", sliding_window=32, sliding_window_pattern=2), "2 window 2x64 of 32, 2 full 2x64"),
        (of("exaone4", sliding_window=32, sliding_window_pattern="LG"), "2 window 2x64 of 32, 2 full 2x64"),
        (
            of("mimo_v2_flash", hybrid_layer_pattern=[0, 0, 1, 1], swa_head_dim=32)
            | {"sliding_window_size": 16, "sliding_window": 8},
            "2 full 2x64+128, 2 window 8x32 of 16",
        ),
        (of("kimi_linear", linear_attn_config=KDA), "3 state 3x384 and 8x16x16, 1 latent 1x576"),
        (blocks(4, None, 8, 4), "2 full 2x64, 1 full 1x64"),
        (
            of("deepseek_v4", sliding_window=32, compress_ratios=[0, 4, 128, 0, 0]),
            "4 window 1x584 of 32, 1 indexer-4 1x132, 1 index-pending-4 1x512 of 8, 1 latent-4 1x584,"
            " 1 pending-4 1x256 of 8, 1 latent-128 1x584, 1 pending-128 1x128 of 128",
        ),
        (of("deepseek_v32"), "4 latent 1x576, 4 indexer 1x132"),
        (of("deepseek_v32", index_head_dim=64), "4 latent 1x576, 4 indexer 1x64"),
        (of("deepseek_v32", index_topk_freq=2), "4 latent 1x576, 3 indexer 1x132"),
        (of("glm_moe_dsa", index_topk_freq=4, index_skip_topk_offset=1), "4 latent 1x576, 1 indexer 1x132"),
        (of("glm_moe_dsa", index_topk_pattern="FSSS"), "4 latent 1x576, 1 indexer 1x132"),
        (of("glm_moe_dsa", layer_types=["indexed_attention"] * 4), "4 latent 1x576, 4 indexer 1x132"),
        (
            of("glm_moe_dsa", index_topk_freq=2, indexer_types=["full", "full", "shared", "full"]),
            "4 latent 1x576, 3 indexer 1x132",
        ),
        (of("llama4_text", no_rope_layers=[0, 1, 1, 1]), "1 full 2x64, 3 chunks 2x64 of 8192"),
        (of("gemma4_text"), "3 window 2x64 of 512, 1 full 2x512"),
        (of("gemma4_text", num_global_key_value_heads=1), "3 window 2x64 of 512, 1 full 2x512"),
        (of("gemma4_text", num_global_key_value_heads=1, attention_k_eq_v=True), "3 window 2x64 of 512, 1 full 1x512"),
    ],
    ids=str,
)
def test_what_a_field_does(fields: dict[str, Any], expect: str, tmp_path: Path) -> None:
    assert layers(written(tmp_path, PLAIN | fields)) == expect


WHOLE = "it must be a whole number from 1 to"
ABSENT = "is 0, it must be at least 1: leave it out if the model has none"
NO_KIND = "a kind of layer that plan does not model yet"
MAMBA, WINDOWS, INDEXED = (["mamba"] * 4, ["sliding_attention"] * 4, ["indexed_attention"] * 4)


def kda(**changes: Any) -> dict[str, Any]:
    return of("kimi_linear", linear_attn_config=KDA | changes)


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        *[
            ({name: value}, f"{name} is {value!r}, {WHOLE} {most}")
            for name, most, values in (
                ("num_hidden_layers", "1,000", ("four", 10_000_000, None, True, 4.0)),
                ("head_dim", "1,000,000,000", ("16", -16, 10**10)),
                ("num_key_value_heads", "1,000,000,000", (0, False, [2, 2])),
                ("max_position_embeddings", "1,000,000,000", ("4k",)),
                ("sliding_window", "1,000,000,000", (True, [512, None])),
            )
            for value in values
        ],
        (of("gemma2", full_every=3), f"it has full_every, {NOT_YET}"),
        (of("deepseek_v3", sliding_window=8), "it has kv_lora_rank and windows, and plan models one or the other"),
        ({"num_key_value_heads": 3}, "num_key_value_heads is 3, it must divide num_attention_heads, 8"),
        ({"head_dim": None, "hidden_size": 4}, "hidden_size leaves nothing for each of 8 heads"),
        ({"layer_types": ["full_attention"]}, "layer_types has 1 entries for 4 layers"),
        ({"layer_types": "full_attention"}, "layer_types is 'full_attention', it must be a list of names"),
        ({"layer_types": [1, 2, 3, 4]}, "layer_types is [1, 2, 3, 4], it must be a list of names"),
        ({"layer_types": MAMBA}, f"layer_types names 'mamba', {NO_KIND}"),
        (
            {"layer_types": WINDOWS, "sliding_window": None},
            "layer_types names sliding_attention, but sliding_window has no size",
        ),
        (
            {"layer_types": ["chunked_attention"] * 4},
            "layer_types names chunked_attention, but attention_chunk_size has no size",
        ),
        (
            of("qwen2", layer_types=WINDOWS, sliding_window=8, use_sliding_window=False),
            "layer_types names sliding_attention, but use_sliding_window is false",
        ),
        (
            of("mixtral", layer_types=["full_attention", *WINDOWS[1:]], sliding_window=8),
            "layer_types names several kinds, and mixtral has one",
        ),
        (of("gemma3_text", sliding_window_pattern="six"), f"sliding_window_pattern is 'six', {WHOLE} 1,000"),
        (of("gemma3_text", sliding_window_pattern=-1), f"sliding_window_pattern is -1, {WHOLE} 1,000"),
        (of("gemma3_text", sliding_window_pattern=0), f"sliding_window_pattern {ABSENT}"),
        (of("gemma3_text", _sliding_window_pattern=0), f"sliding_window_pattern {ABSENT}"),
        ({"sliding_window": 8, "sliding_window_pattern": 0}, f"sliding_window_pattern {ABSENT}"),
        (of("llama4_text", attention_chunk_size=0), f"attention_chunk_size {ABSENT}"),
        (of("gemma4_text", global_head_dim=0), f"global_head_dim {ABSENT}"),
        (of("jamba", attn_layer_period=0), f"attn_layer_period {ABSENT}"),
        (of("jamba", attn_layer_offset=-1), "attn_layer_offset is -1, it must be from 0 to 7"),
        (of("jamba", attn_layer_offset=8), "attn_layer_offset is 8, it must be from 0 to 7"),
        (of("llama4_text", no_rope_layers=[1, 0]), "no_rope_layers is [1, 0], it must be 4 times 0 or 1"),
        (of("gemma3n_text", num_kv_shared_layers=4), f"num_kv_shared_layers is 4, {WHOLE} 3"),
        (
            of("gemma3n_text", num_kv_shared_layers=1, layer_types=[*WINDOWS[1:], "full_attention"]),
            "num_kv_shared_layers is 1: a layer has no earlier layer of its kind to share with",
        ),
        (of("deepseek_v3", kv_lora_rank=None), f"kv_lora_rank is None, {WHOLE} 1,000,000,000"),
        (of("deepseek_v3", layer_types=INDEXED), f"layer_types names 'indexed_attention', {NO_KIND}"),
        (kda(kda_layers=[1, 2]), "linear_attn_config names other layers than 1 to 4"),
        (kda(kda_layers="all"), "linear_attn_config.kda_layers is 'all', it must be a list of layers from 1 on"),
        (kda(num_value_heads=4), f"it has linear_attn_config.num_value_heads, {NOT_YET}"),
        (blocks(4, 4), "block_configs is [{'attention': {'n_heads_in_group': 4..., it must be a list of 4 layers"),
        (blocks(4, 4, 3, 4), "block_configs[2] has n_heads_in_group 3 for 8 heads"),
        (blocks(4, 4, 4, 4, window_length=64), f"block_configs[0] has window_length, {NOT_YET}"),
        (of("nemotron-nas", block_configs=[4] * 4), "block_configs[0] is 4, it must have attention"),
        (of("deepseek_v4", compress_ratios=[4, 4, 4]), "compress_ratios is [4, 4, 4], it must be a list of 4 numbers"),
        (of("deepseek_v4", compress_ratios=[4, 4, 2, 4]), "compress_ratios has other numbers than 0, 4, 128"),
        (
            of("deepseek_v4", compress_ratios=[0, 128, 128, 128, 4]),
            "compress_ratios has no 4: plan does not model yet how vLLM then groups the layers",
        ),
        (of("mimo_v2_flash"), "it does not say which layers keep a window: hybrid_layer_pattern is missing"),
        (
            of("mimo_v2_flash", hybrid_layer_pattern=[0, 2, 1, 1]),
            "hybrid_layer_pattern is [0, 2, 1, 1], it must be 4 times 0 or 1",
        ),
        (
            of("mimo_v2_flash", hybrid_layer_pattern=[0, 1, 1, 1], sliding_window_size=128),
            "it does not say swa_head_dim",
        ),
        (of("glm_moe_dsa", index_topk_pattern="FSF"), "index_topk_pattern is 'FSF', it must be 4 times F or S"),
        (
            of("glm_moe_dsa", indexer_types=["full", "shared", "shared", "full"]),
            "indexer_types differs from what index_topk_freq or index_topk_pattern says, which vLLM reads",
        ),
        ({"model_type": ["llama"]}, "model_type is ['llama'], it must be a name"),
        ({"n_layer": 5}, "num_hidden_layers has two values, 4 and 5"),
        (
            {"attention_windows": [1], "heads_by_layer": {"0": 1}},
            f"it has attention_windows, heads_by_layer, {NOT_YET}",
        ),
        ({"use_bidirectional_attention": True}, f"it has use_bidirectional_attention, {NOT_YET}"),
        (of("gemma2", sliding_window=512, sliding_window_size=256), f"it has sliding_window_size, {NOT_YET}"),
    ],
    ids=str,
)
def test_a_wrong_value_is_named(fields: dict[str, Any], problem: str, tmp_path: Path) -> None:
    assert refusal(tmp_path, PLAIN | fields) == problem


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[1, 2]", "is not an object with settings, but list"),
        (
            "{",
            "is not JSON: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)",
        ),
        ('{"a": NaN}', "is not JSON that can be read: NaN is not a number of JSON"),
        ('{"head_dim": 1, "head_dim": 2}', "is not JSON that can be read: an object has the key 'head_dim' twice"),
    ],
)
def test_a_file_that_is_no_configuration(text: str, problem: str, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError) as raised:
        load_model(str(path))
    assert str(raised.value) == f"{path}: {problem}"


def test_bytes_that_are_no_text_and_a_file_that_is_not_there(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    with pytest.raises(ConfigError, match="there is no such file, and the model's sizes are read from it"):
        load_model(str(path))
    path.write_bytes(b"\xff\xfe{}")
    with pytest.raises(ConfigError, match="is not UTF-8: byte 0 is 0xff"):
        load_model(str(path))


def test_the_longest_request_is_model_max_length_if_the_file_has_one(tmp_path: Path) -> None:
    fields = {name: value for name, value in PLAIN.items() if name != "max_position_embeddings"}
    kimi = fields | {"model_type": "kimi_linear", "linear_attn_config": KDA, "model_max_length": 9}
    assert load_model(str(written(tmp_path, kimi))).max_model_len == 9
    assert load_model(str(written(tmp_path, kimi | {"max_position_embeddings": 7}))).max_model_len == 9


def test_a_file_without_a_length_is_planned_for_vllms_2048_tokens_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path, {k: v for k, v in PLAIN.items() if k not in ("max_position_embeddings", "model_type")})
    assert main(["plan", str(path)]) == 0
    out = capsys.readouterr().out
    assert "request      of 2,048 tokens: " in out
    assert "limit        the file says no length: vLLM takes 2,048 tokens, or what --max-model-len says" in out
    assert main(["plan", str(path), "--max-len", "9000"]) == 0
    assert "limit        " not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "published"),
    [
        ("llama-3.1-8b", "Llama 3.1 8B"),
        ("llama-3.1-70b", "Llama 3.1 70B"),
        ("qwen-2.5-7b", "Qwen2.5 7B"),
        ("qwen-3-8b", "Qwen3 8B"),
        ("qwen-3-30b-a3b", "Qwen3 30B A3B"),
        ("mixtral-8x7b", "Mixtral 8x7B"),
        ("mistral-7b-v0.3", "Mistral 7B v0.3"),
        ("mistral-nemo-12b", "Mistral Nemo 12B"),
    ],
)
def test_a_built_in_model_has_the_layers_of_its_published_file(name: str, published: str, tmp_path: Path) -> None:
    (config,) = [one["config"] for one in PUBLIC["everyday"] if one["name"] == published]
    built_in, own = load_model(name), load_model(str(written(tmp_path, config)))
    assert (built_in.kv_cache_spec, built_in.max_model_len) == (own.kv_cache_spec, own.max_model_len)
    assert built_in.num_heads == own.num_heads


LING = {
    "model_type": "bailing_moe",
    "num_hidden_layers": 20,
    "num_nextn_predict_layers": 0,
    "hidden_size": 2048,
    "moe_shared_expert_intermediate_size": 512,
    "num_shared_experts": 1,
    "num_experts": 256,
    "n_group": 8,
    "topk_group": 4,
    "first_k_dense_replace": 1,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "max_position_embeddings": 32768,
}
"""Of Ling mini 2.0: everything but `layer_types`."""


def test_ling_2_keeps_all_tokens_in_every_layer_and_says_each_number_itself(tmp_path: Path) -> None:
    specs = load_model(str(written(tmp_path, LING))).kv_cache_spec
    assert list(specs.values()) == [FullAttentionSpec(16, 4, 128, 2)] * 20
    for name in ("num_hidden_layers", "num_attention_heads", "max_position_embeddings"):
        less = written(tmp_path, {field: value for field, value in LING.items() if field != name})
        if name == "max_position_embeddings":
            assert load_model(str(less)).max_model_len == 2048
        else:
            with pytest.raises(ConfigError, match=f"it does not say {name}"):
                load_model(str(less))
    with pytest.raises(ConfigError, match="it has layer_group_size, which plan does not model yet"):
        load_model(str(written(tmp_path, LING | {"layer_group_size": 5})))  # Ring linear's layers with a state


def test_of_a_wrong_name_the_nearest_ones_are_named() -> None:
    with pytest.raises(ConfigError, match=r"unknown model 'meta-llama/Llama-3.1-8B-FP8'; did you mean llama-3.1-8b "):
        load_model("meta-llama/Llama-3.1-8B-FP8")
    with pytest.raises(ConfigError, match=r"unknown model 'zzz'; choose from llama-3-8b, .* path of a config.json$"):
        load_model("zzz")

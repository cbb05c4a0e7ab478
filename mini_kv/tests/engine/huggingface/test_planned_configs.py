"""`mini-kv plan config.json` reads what transformers reads: every default in its table, every model that it answers."""

import json
import logging
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, PretrainedConfig

from mini_kv.core.errors import ConfigError
from mini_kv.core.kv_cache_interface import (
    AttentionSpec,
    ChunkedLocalAttentionSpec,
    MLAAttentionSpec,
    SlidingWindowSpec,
)
from mini_kv.dev.recorders.planning import planning_rows
from mini_kv.tests.test_config_json import PUBLIC, written
from mini_kv.tools.planning.config_file import FIELDS
from mini_kv.tools.planning.config_json import read_config
from mini_kv.tools.planning.models import load_model

RULES = tomllib.loads(FIELDS.read_text(encoding="utf-8"))
KNOWN, STATES = RULES["model_types"], RULES["states"]
PLANNED = [row for row in planning_rows() if not row["flags"]]
KEEPS_NO_KV = ("linear_attention", "mamba", "conv", "mlp", "moe")
ELSEWHERE = {"kimi_k2": "deepseek_v3", "qwen2_vl": "qwen2_vl_text", "qwen2_5_vl": "qwen2_5_vl_text"}
"""Types that transformers reads with another type's class, or keeps in a part of the file."""
SAME_WEIGHTS = {
    "glm4v_text": "glm4",
    "glm4v_moe_text": "glm4_moe",
    "qwen2_vl_text": "qwen2",
    "qwen2_5_vl_text": "qwen2",
    "qwen3_vl_text": "qwen3",
    "qwen3_vl_moe_text": "qwen3_moe",
    "qwen3_omni_moe_text": "qwen3_moe",
}
"""Types of a part of a model, and the type of the same decoder alone."""
NOT_READ = {"mimo_v2_flash", "deepseek_v4", "kimi_linear", "nemotron-nas"}
"""Types whose published files have fields that vLLM reads and transformers does not, or reads otherwise."""
NOT_KNOWN = {"bailing_moe", "bailing_moe_v2", "mimo"}
"""Types whose class comes with the weights, as code: transformers has no defaults for them, and the planner none."""
NO_DEFAULT_LAYERS = {"lfm2_moe", *NOT_READ, *NOT_KNOWN}
NO_LENGTH = 2048
"""vLLM's longest request for a model without a length."""


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Hold back what transformers says about token ids that are outside of a small vocabulary."""
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


def planned(path: Path) -> list[tuple[str, int, int, int]]:
    """Return the kind, heads, elements and reach of each layer as `mini-kv plan` reads the file."""
    model = load_model(str(path))
    owners = [model.kv_cache_spec[name] for name in model.kv_cache_spec]
    shared = [model.kv_cache_spec[owner] for owner in model.kv_sharing.values()]
    return [shape(spec) for spec in owners + shared if isinstance(spec, AttentionSpec)]


def shape(spec: AttentionSpec) -> tuple[str, int, int, int]:
    match spec:
        case SlidingWindowSpec():
            return ("window", spec.num_kv_heads, spec.head_size, spec.sliding_window)
        case ChunkedLocalAttentionSpec():
            return ("chunks", spec.num_kv_heads, spec.head_size, spec.attention_chunk_size)
        case MLAAttentionSpec(cache_role="indexer"):
            return ("indexer", spec.num_kv_heads, spec.head_size, 0)
        case MLAAttentionSpec():
            return ("latent", spec.num_kv_heads, spec.head_size, 0)
        case _:
            return ("full", spec.num_kv_heads, spec.head_size, 0)


def said_by_transformers(config: Any) -> list[tuple[str, int, int, int]]:
    """Return the same from transformers' own configuration; the window of all layers where it lists no kinds."""
    if getattr(config, "kv_lora_rank", None):
        latent = ("latent", 1, config.kv_lora_rank + config.qk_rope_head_dim, 0)
        if not hasattr(config, "index_head_dim"):
            return [latent] * config.num_hidden_layers
        indexer = ("indexer", 1, config.index_head_dim + 4, 0)  # of 128 numbers, which have one scale
        has_one = getattr(config, "indexer_types", None) or ["full"] * config.num_hidden_layers
        return [shape for kind in has_one for shape in [latent, *[indexer] * (kind == "full")]]
    if STATES.get(config.model_type, {}).get("layout") == "no attention":
        return []
    kinds = getattr(config, "layer_types", None)
    if kinds is None:
        has_window = getattr(config, "sliding_window", None)
        kinds = ["sliding_attention" if has_window else "full_attention"] * config.num_hidden_layers
    return [one_layer(config, index, kind) for index, kind in enumerate(kinds) if kind not in KEEPS_NO_KV]


def one_layer(config: Any, index: int, kind: str) -> tuple[str, int, int, int]:
    if getattr(config, "is_heterogeneous", False):
        config = config.per_layer_config[index]
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    if kind == "sliding_attention":  # Cohere's reaches one token further, says vLLM
        return ("window", heads, size, config.sliding_window + (config.model_type == "cohere2"))
    if kind == "chunked_attention":
        return ("chunks", heads, size, config.attention_chunk_size)
    return ("full" if kind in ("full_attention", "attention", "hybrid") else kind, heads, size, 0)


def text_part(config: PretrainedConfig) -> Any:
    config = getattr(config, "thinker_config", None) or config
    return getattr(config, "text_config", None) or config


@pytest.mark.parametrize("model_type", [name for name in KNOWN if name not in NO_DEFAULT_LAYERS])
@pytest.mark.parametrize("names", [[], ["num_attention_heads", "hidden_size"], ["num_key_value_heads"]], ids=str)
def test_what_a_file_leaves_out_is_what_transformers_takes(model_type: str, names: list[str], tmp_path: Path) -> None:
    """With nothing but the type in the file, with twice the query heads, with half the KV heads."""
    defaults = text_part(CONFIG_MAPPING[ELSEWHERE.get(model_type, model_type)]())
    sizes = names if hasattr(defaults, "num_attention_heads") else []
    changes = {name: getattr(defaults, name) * 2 for name in sizes if name != "num_key_value_heads"}
    if "num_key_value_heads" in names:
        changes = {"num_key_value_heads": max(1, (KNOWN[model_type].get("num_key_value_heads") or 2) // 2)}
    reference = type(defaults)(**changes)
    listed = model_type in STATES and getattr(defaults, "layer_types", None)
    layers = {"layer_types": list(defaults.layer_types)} if listed else {}  # which of them keep a state is no default
    path = written(tmp_path, {"model_type": model_type, **layers, **changes})
    assert planned(path) == said_by_transformers(reference)
    assert load_model(str(path)).max_model_len == getattr(reference, "max_position_embeddings", NO_LENGTH)


@pytest.mark.parametrize("model_type", [name for name in STATES if name not in NOT_READ])
def test_the_sizes_of_states_are_those_that_transformers_takes(model_type: str) -> None:
    defaults = CONFIG_MAPPING[model_type]()
    fields = {field for fields in STATES[model_type]["sizes"].values() for field in fields.split(" * ")}
    ours = {field: KNOWN[model_type].get(field) for field in fields}
    assert ours == {field: getattr(defaults, field, None) for field in fields}


@pytest.mark.parametrize("row", PUBLIC["everyday"] + PUBLIC["unusual"], ids=lambda row: row["name"])
def test_a_published_model_is_planned_as_transformers_reads_it(row: dict[str, Any], tmp_path: Path) -> None:
    """Where it is planned at all, and where transformers knows the type."""
    values = row["config"]
    if row["expect"].startswith("refused") or values.get("model_type", "quokka") in {"quokka", *NOT_READ}:
        return
    reference = text_part(CONFIG_MAPPING[ELSEWHERE.get(values["model_type"], values["model_type"])].from_dict(values))
    assert planned(written(tmp_path, values)) == said_by_transformers(reference)


@pytest.mark.parametrize(
    "row", [row for row in PLANNED if row["config"].get("model_type") not in ELSEWHERE], ids=lambda row: row["name"]
)
def test_counted_parameters_are_those_of_transformers_model(row: dict[str, Any], tmp_path: Path) -> None:
    """But for biases and norms, at most 0.04 %: weights without numbers, made from the same file."""
    values = read_config(written(tmp_path, row["config"]))
    if "weights_unknown" in values:
        return
    part = row["config"].get("thinker_config", row["config"])
    text = part.get("text_config", part)
    tied = {name: part[name] for name in ("tie_word_embeddings",) if name in part}
    config = CONFIG_MAPPING[SAME_WEIGHTS.get(text["model_type"], text["model_type"])].from_dict(tied | text)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    model.tie_weights()
    whole = sum(parameter.numel() for parameter in model.parameters())
    assert values["weight_bytes"] / 2 == pytest.approx(whole, rel=0.0004)


@pytest.mark.parametrize("model_type", sorted(RULES["weights"].keys() - ELSEWHERE.keys()))
def test_counted_parameters_are_those_of_transformers_default_model(model_type: str, tmp_path: Path) -> None:
    values = json.loads(CONFIG_MAPPING[model_type]().to_json_string(use_diff=False))
    others = {"tie_word_embeddings": False, "num_key_value_heads": values["num_attention_heads"]}
    if "kv_lora_rank" not in values:
        others["head_dim"] = values["hidden_size"] // values["num_attention_heads"] // 2 * 2
    if "num_experts_per_tok" in values:
        others["num_experts_per_tok"] = 1
    said = others | {name: value for name, value in values.items() if value is not None}
    counted = read_config(written(tmp_path, said))
    alone = SAME_WEIGHTS.get(model_type, model_type)
    config = CONFIG_MAPPING[alone].from_dict(said | {"model_type": alone})
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    model.tie_weights()
    whole = sum(parameter.numel() for parameter in model.parameters())
    assert counted["weight_bytes"] / 2 == pytest.approx(whole, rel=0.0005)


@pytest.mark.slow
def test_no_file_that_transformers_can_write_is_planned_wrong(tmp_path: Path) -> None:
    """All its models, with all their fields: planned as transformers has it, or refused."""
    answered, refused = {}, {}
    for model_type in sorted(CONFIG_MAPPING):
        try:
            config = CONFIG_MAPPING[model_type]()
            values = json.loads(config.to_json_string(use_diff=False))
        except Exception:  # a few cannot be made without arguments, or hold numbers that JSON has not
            continue
        try:
            answered[model_type] = planned(written(tmp_path, values))
        except ConfigError as error:
            refused[model_type] = str(error)
            continue
        assert answered[model_type] == said_by_transformers(text_part(config)), model_type
    assert len(answered) > 120
    assert [(name, error.partition(": ")[2]) for name, error in refused.items() if name in KNOWN] == [
        ("deepseek_v4", "it has compress_rates, which plan does not model yet"),
        ("gemma4_text", "it has per_layer_config, which plan does not model yet"),
        (
            "kimi_linear",
            "it has linear_conv_kernel_dim, linear_head_dim, linear_num_heads, which plan does not model yet",
        ),
        ("lfm2_moe", "it does not say which layers keep a state: layer_types is missing"),
        ("mimo_v2_flash", "it does not say which layers keep a window: hybrid_layer_pattern is missing"),
    ]

"""The longest request of a config.json. Each expected length is the one that vLLM 0.33 gave for the same file.

vllm.config.model._get_and_verify_max_len, called without `max_model_len`
"""

import json
from pathlib import Path
from typing import Any

import pytest

from mini_kv.cli import main
from mini_kv.core.errors import ConfigError
from mini_kv.tools.planning.models import load_model

QWEN = {"model_type": "qwen2", "hidden_size": 3584, "num_hidden_layers": 2, "num_attention_heads": 32}
LLAMA = {"model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 2, "num_attention_heads": 32}
PHI = {"model_type": "phi3", "hidden_size": 3072, "num_hidden_layers": 2, "num_attention_heads": 32}
GEMMA = {"model_type": "gemma3_text", "num_hidden_layers": 6, "max_position_embeddings": 131072}
LONG = {"short_factor": [1.0], "long_factor": [2.0]}


def length_of(tmp_path: Path, values: dict[str, Any]) -> tuple[int, int | None]:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(values), encoding="utf-8")
    model = load_model(str(path))
    return model.max_model_len, model.max_model_len_limit


@pytest.mark.parametrize(
    ("values", "length"),
    [
        (QWEN | {"max_position_embeddings": 32768}, 32768),
        (QWEN | {"max_position_embeddings": 32768, "rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, 32768),
        (QWEN | {"max_position_embeddings": 131072, "rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, 131072),
        (QWEN | {"max_position_embeddings": 32768, "rope_scaling": {"type": "linear", "factor": 4.0}}, 131072),
        (QWEN | {"max_position_embeddings": 32768, "rope_parameters": {"rope_type": "linear", "factor": 4}}, 131072),
        (QWEN | {"max_position_embeddings": 4096, "rope_scaling": {"rope_type": "dynamic", "factor": 2.5}}, 10240),
        (QWEN | {"max_position_embeddings": 32768, "rope_scaling": {"type": "mrope", "mrope_section": [16]}}, 32768),
        (LLAMA | {"max_position_embeddings": 131072, "rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, 131072),
        (LLAMA | {"max_position_embeddings": 4096, "rope_scaling": {"type": "linear", "factor": None}}, 4096),
        (LLAMA | {"max_position_embeddings": 8192, "seq_length": 4096}, 4096),
        (LLAMA | {"max_position_embeddings": 8192, "model_max_length": 131072}, 131072),
        (GEMMA | {"rope_scaling": {"rope_type": "linear", "factor": 8.0}}, 131072),
        (GEMMA | {"rope_parameters": {"full_attention": {"rope_type": "linear", "factor": 8.0}}}, 131072),
        (
            {"model_type": "olmo3", "num_hidden_layers": 4, "max_position_embeddings": 8192}
            | {
                "rope_parameters": {
                    "full_attention": {"rope_type": "linear", "factor": 8.0},
                    "sliding_attention": {"rope_type": "default"},
                }
            },
            65536,
        ),
        ({"model_type": "gpt2", "n_positions": 1024, "n_embd": 768, "n_layer": 2, "n_head": 12}, 1024),
    ],
)
def test_the_length_is_vllms(values: dict[str, Any], length: int, tmp_path: Path) -> None:
    assert length_of(tmp_path, values) == (length, length)


def test_infinity_in_a_file_is_read_and_not_taken_for_a_length(tmp_path: Path) -> None:
    """Published files of Nemotron have `"time_step_limit": [0.0, Infinity]`, which Python writes and JSON lacks."""
    values = LLAMA | {"max_position_embeddings": 4096}
    assert length_of(tmp_path, values | {"time_step_limit": [0.0, float("inf")]}) == (4096, 4096)
    with pytest.raises(ConfigError, match="max_position_embeddings is inf, it must be a whole number"):
        length_of(tmp_path, LLAMA | {"max_position_embeddings": float("inf")})
    with pytest.raises(ConfigError, match="NaN is not a number of JSON"):
        length_of(tmp_path, values | {"time_step_limit": float("nan")})


def test_with_longrope_the_default_is_the_length_before_scaling_and_more_may_be_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    values = PHI | {"max_position_embeddings": 131072, "original_max_position_embeddings": 4096}
    assert length_of(tmp_path, values | {"rope_scaling": {"type": "longrope", **LONG}}) == (4096, 131072)
    remark = "limit        the model has 131,072 tokens at most: vLLM refuses a longer --max-model-len"
    for asked, is_said in (("131072", False), ("131073", True)):
        assert main(["plan", str(tmp_path / "config.json"), "--memory", "400", "--max-len", asked]) == 0
        assert (remark in capsys.readouterr().out.splitlines()) is is_said


@pytest.mark.parametrize("factor", ["4", True, 0, -2, [4]])
def test_a_factor_that_is_no_number_is_an_error_of_the_file(factor: Any, tmp_path: Path) -> None:
    scaling = {"rope_scaling": {"rope_type": "linear", "factor": factor}}
    with pytest.raises(ConfigError, match=r"config\.json: .*factor"):
        length_of(tmp_path, QWEN | {"max_position_embeddings": 32768} | scaling)

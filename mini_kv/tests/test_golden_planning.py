"""The planner equals vLLM 0.33 on published models, from config.json to blocks and concurrency, or is listed here."""

import json
from pathlib import Path
from typing import Any

import pytest

from mini_kv.core.kv_cache_planning import get_kv_cache_groups, with_cache_dtype
from mini_kv.dev.recorders.planning import PLANNING, our_plan, planning_rows
from mini_kv.tools.planning.models import load_model

RECORDED = json.loads(PLANNING.read_text(encoding="utf-8"))
ROWS = {row["name"]: row for row in planning_rows() if row["name"] in RECORDED}
WHOLE_WINDOWS = {"Gemma 2 9B", "Phi-3 mini 4k", "Command R7B", "c4ai-command-r7b-12-2024"}
"""Models whose longest request is about as long as their window. vLLM counts one block more for the window than the
request has; here a window never holds more blocks than the request."""


def written(tmp_path: Path, config: dict[str, Any]) -> Path:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config), encoding="utf-8")
    return path


@pytest.mark.parametrize("name", ROWS)
def test_groups_blocks_and_concurrency_are_those_of_vllm(name: str, tmp_path: Path) -> None:
    recorded, row = RECORDED[name], ROWS[name]
    ours = our_plan(written(tmp_path, row["config"]), row["flags"], recorded)
    want = {key: recorded[key] for key in ours}
    if name in WHOLE_WINDOWS:
        assert 1 < ours.pop("max_concurrency") / want.pop("max_concurrency") < 1.01
    assert ours == want


def test_at_least_thirty_rows_have_states_or_windows() -> None:
    kinds = {name: {group[0] for group in recorded["groups"]} for name, recorded in RECORDED.items()}
    assert len(kinds) >= 80
    assert sum("MambaSpec" in found for found in kinds.values()) >= 30


@pytest.mark.parametrize(
    ("name", "options", "block_size", "report"),
    [
        ("Qwen3.5-4B", {"gdn_prefill_backend": "triton"}, 528, "vllm#40696"),
        ("Qwen3.5-27B", {"gdn_prefill_backend": "triton"}, 784, "vllm#54607, vllm#47430"),
        ("Qwen3.5-35B-A3B", {"gdn_prefill_backend": "triton"}, 1056, "a comment on vllm#53749"),
        ("Qwen3.5-397B-A17B", {"gdn_prefill_backend": "triton", "tensor_parallel_size": 2}, 2096, "vllm#35703"),
        ("NVIDIA-Nemotron-3.5-Lightning-30B-A3B-NVFP4", {}, 2096, "vllm#53749"),
        ("NVIDIA-Nemotron-3-Super-120B-A12B-FP8", {"kv_cache_dtype": "fp8"}, 8320, "vllm#48401"),
        ("Qwen3.5-27B", {"gdn_prefill_backend": "triton", "num_speculative_tokens": 3}, 800, "vllm#54076"),
        (
            "Qwen3.5-27B",  # as a later model of 27B is shaped, too
            {"gdn_prefill_backend": "triton", "num_speculative_tokens": 3, "kv_cache_dtype": "fp8"},
            1600,
            "a comment on vllm#45238",
        ),
    ],
)
def test_the_block_sizes_that_people_reported_come_out_of_their_files(
    name: str, options: dict[str, Any], block_size: int, report: str, tmp_path: Path
) -> None:
    load = {option: value for option, value in options.items() if option != "kv_cache_dtype"}
    model = load_model(str(written(tmp_path, ROWS[name]["config"])), **load)
    groups = get_kv_cache_groups(with_cache_dtype(model.kv_cache_spec, options.get("kv_cache_dtype", "auto")))
    assert {group.kv_cache_spec.block_size for group in groups} == {block_size}, report

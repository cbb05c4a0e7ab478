"""The configurations that vLLM 0.33 has planned, and what mini_kv's planner makes of the same ones.

`planning-configs.json` has models with states, windows and large heads, and variants of them with other flags; the
everyday ones are those of `public_configs.json`. `vllm-0.33-planning.json` has vLLM's plans: see record_planning.py.
"""

import json
from pathlib import Path
from typing import Any

from mini_kv.core.kv_cache_planning import (
    blocks_per_request,
    get_kv_cache_config,
    get_kv_cache_groups,
)
from mini_kv.tools.planning.flags import Flags

FOLDER = Path(__file__).parent
PLANNING = FOLDER / "vllm-0.33-planning.json"
MEMORY = 640 * 2**30
"""Bytes of the cache: enough for one request of each model's greatest length."""


def planning_rows() -> list[dict[str, Any]]:
    """Return each row with its name, its configuration, and the flags that vLLM was given."""
    public = json.loads((FOLDER / "public_configs.json").read_text(encoding="utf-8"))["everyday"]
    rows = public + json.loads((FOLDER / "planning-configs.json").read_text(encoding="utf-8"))
    configs = {row["name"]: row["config"] for row in rows if "config" in row}
    return [
        {"name": row["name"], "config": configs[row.get("config_of", row["name"])], "flags": row.get("flags", {})}
        for row in rows
    ]


def our_plan(path: Path, flags: dict[str, Any], recorded: dict[str, Any]) -> dict[str, Any]:
    """Return mini_kv's plan of the file, in the words of the recording, for the same longest request."""
    flags = dict(flags)
    drafts = flags.pop("speculative_config", {})
    if "model" in drafts:
        flags["drafter"] = str(path.with_name("drafter.json"))
        Path(flags["drafter"]).write_text(json.dumps(drafts["model"]), encoding="utf-8")
    model, specs = Flags(num_speculative_tokens=drafts.get("num_speculative_tokens", 0), **flags).load(str(path))
    groups = get_kv_cache_groups(specs, disable_hybrid_kv_cache_manager=False)
    config = get_kv_cache_config(groups, MEMORY)
    per_request = blocks_per_request(groups, recorded["max_model_len"], recorded["max_in_flight_tokens"])
    specs_of_groups = [group.kv_cache_spec for group in groups]
    return {
        "max_model_len": model.max_model_len,
        "groups": [
            [type(spec).__name__, spec.block_size, spec.page_size_bytes, len(group.layer_names)]
            for group, spec in zip(groups, specs_of_groups, strict=True)
        ],
        "num_blocks": config.num_blocks,
        "max_concurrency": config.num_blocks / per_request,  # vLLM counts the null block, too
    }

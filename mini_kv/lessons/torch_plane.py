"""The data plane with PyTorch, for the plans of `mini_kv.lessons.play`: it needs torch and safetensors.

The parts are those of the engine: the model, the memory of the blocks, slots, attention. `ModelRunner` keeps the tables
of its requests, because a `SchedulerOutput` has only what is new. Here each plan has whole tables, so nothing is kept
between two steps but keys and values.
"""

import json
from collections.abc import Mapping
from functools import cache
from typing import Any

import torch

from mini_kv.attention.metadata import AttentionMetadata, build_metadata
from mini_kv.core.kv_cache_interface import KVCacheConfig
from mini_kv.core.kv_cache_planning import get_kv_cache_groups
from mini_kv.engine.checkpoint import load_model, tiny_folder
from mini_kv.engine.interface import CausalLM
from mini_kv.engine.kv_memory import allocate_kv_cache_tensors
from mini_kv.engine.model_runner import PagedAttend
from mini_kv.lessons.planes import Plan, control_plane, run
from mini_kv.lessons.play import Levers


class TorchRunner:
    """Keeps the KV memory, and runs a model on each plan."""

    def __init__(self, model: CausalLM, levers: Levers) -> None:
        """Allocate the memory: the blocks of the pool, and the null block."""
        self.model = model
        self.block_size = levers.block_size
        groups = get_kv_cache_groups(model.get_kv_cache_spec(levers.block_size))
        self.tensors, self.layers = allocate_kv_cache_tensors(model, KVCacheConfig(levers.num_blocks + 1, groups))
        self.num_groups = len(groups)

    @torch.inference_mode()
    def execute(self, plan: Plan) -> dict[str, int]:
        """Compute one step, and return the most likely next token of each request that needs one."""
        token_ids = [token_id for row in plan for token_id in row["token_ids"]]
        positions = [row["begin"] + i for row in plan for i in range(len(row["token_ids"]))]
        ends = torch.tensor([len(row["token_ids"]) for row in plan]).cumsum(0)
        asked = torch.tensor([row["samples"] for row in plan])
        attend = PagedAttend(self.layers, [self._metadata(plan, group) for group in range(self.num_groups)], "auto")
        logits = self.model.forward(torch.tensor(token_ids), torch.tensor(positions), attend, ends[asked] - 1)
        names = [row["request_id"] for row in plan if row["samples"]]
        return dict(zip(names, logits.argmax(dim=1).tolist(), strict=True))

    def _metadata(self, plan: Plan, group: int) -> AttentionMetadata:
        """Return slots and tables of the step for the layers of one group. Short tables are filled with block 0."""
        query_lens = [len(row["token_ids"]) for row in plan]
        seq_lens = [row["begin"] + len(row["token_ids"]) for row in plan]
        tables = [row["tables"][group] for row in plan]
        longest = max(map(len, tables))
        padded = torch.tensor([table + [0] * (longest - len(table)) for table in tables], dtype=torch.int32)
        return build_metadata(query_lens, seq_lens, padded, self.block_size)


def torch_runner(levers: Levers, model: str = "tiny") -> TorchRunner:
    """Return a runner of the small model, or of the one with windows, `tiny_windows`. Its memory is empty."""
    return TorchRunner(_weights(model), levers)


@cache
def _weights(model: str) -> CausalLM:
    return load_model(tiny_folder(windows=model == "tiny_windows"))[0]


def recorded(texts: Mapping[str, str], model: str, levers: Levers) -> dict[str, Any]:
    """Return the steps of these texts with PyTorch as JSON can hold them: plans, tokens, their text, milliseconds.

    The steps are executed twice, and the second time counts: the first one also pays for what PyTorch prepares once.
    """
    run(control_plane(texts, model, levers), torch_runner(levers, model))
    play = control_plane(texts, model, levers)
    steps = run(play, torch_runner(levers, model))
    record = {
        "model": model,
        "num_blocks": levers.num_blocks + 1,
        "block_size": levers.block_size,
        "groups": play.groups,
        "words": {token: play.tokenizer.decode([token]) for step in steps for token in step.tokens.values()},
        "steps": [{"plan": s.plan, "tokens": s.tokens, "ms": round(1e3 * s.seconds, 2)} for s in steps],
    }
    return json.loads(json.dumps(record))  # type: ignore[no-any-return]

"""The data plane with PyTorch, for the plans of `mini_kv.course.lessons.play`: it needs torch and safetensors.

The parts are those of the engine: the model, the memory of the blocks, slots, attention. `ModelRunner` keeps the tables
of its requests, because a `SchedulerOutput` has only what is new. Here each plan has whole tables, so nothing is kept
between two steps but keys and values.
"""

import html
import json
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch

from mini_kv.attention.metadata import AttentionMetadata, build_metadata
from mini_kv.core.kv_cache_interface import KVCacheConfig
from mini_kv.core.kv_cache_planning import get_kv_cache_groups
from mini_kv.course.lessons.challenge import Challenge
from mini_kv.course.lessons.lever import Lever
from mini_kv.course.lessons.planes import DataPlane, OneWrongBlock, Plan, answers, control_plane, run
from mini_kv.course.lessons.play import Levers
from mini_kv.engine.checkpoint import load_model, tiny_folder
from mini_kv.engine.interface import CausalLM
from mini_kv.engine.kv_memory import allocate_kv_cache_tensors
from mini_kv.engine.model_runner import PagedAttend
from mini_kv.engine.threads import is_small, one_thread


class TorchRunner:
    """Keeps the KV memory, and runs a model on each plan."""

    def __init__(self, model: CausalLM, levers: Levers) -> None:
        """Allocate the memory: the blocks of the pool, and the null block."""
        self.model = model
        self.is_small = is_small(model)
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
        with one_thread(self.is_small):
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

    The steps are executed three times. The time of a step is the shortest of the three, because other programs run too.
    """
    runs = []
    for _ in range(3):
        play = control_plane(texts, model, levers)
        runs.append(run(play, torch_runner(levers, model)))
    steps = runs[0]
    times = [1e3 * min(step.seconds for step in same) for same in zip(*runs, strict=True)]
    record = {
        "model": model,
        "num_blocks": levers.num_blocks + 1,
        "block_size": levers.block_size,
        "groups": play.groups,
        "words": {token: play.tokenizer.decode([token]) for step in steps for token in step.tokens.values()},
        "steps": [
            {"plan": step.plan, "tokens": step.tokens, "ms": round(ms, 2)}
            for step, ms in zip(steps, times, strict=True)
        ],
    }
    return json.loads(json.dumps(record))  # type: ignore[no-any-return]


def played(texts: Mapping[str, str], model: str, levers: Levers) -> dict[str, Any]:
    """Return a run of these texts with PyTorch as the page "Play" shows it.

    `story` has all steps, `tokens` the sampled tokens of each. `told` has the rest of what the page shows, before the
    first step and after each one.
    """
    play, runner = control_plane(texts, model, levers), torch_runner(levers, model)
    tokens, told = [], [play.telling()]
    while (plan := play.plan()) is not None:
        tokens.append(runner.execute(plan))
        play.take(tokens[-1])
        told.append(play.telling())
    shown = [{name: each[name] for name in ("boxes", "counters", "pool", "log")} for each in told]
    story = told[-1]["story"] | {"title": f"{levers.num_blocks} blocks of {levers.block_size} tokens"}
    return {"story": story, "tokens": tokens, "told": shown}


# JavaScript, without a browser.

RUNNER_JS = Path(__file__).parents[3] / "book" / "mini_kv_book" / "assets" / "kv_runner.js"
"""The page's runner, in a clone of the repository."""
_IN_NODE = """
const { record, config, weights, runner } = JSON.parse(require("fs").readFileSync(0, "utf8"));
import(runner).then(async ({ readWeights, Runner }) => {
  const file = new Uint8Array(require("fs").readFileSync(weights)).buffer;
  const { num_blocks: numBlocks, block_size: blockSize, groups, steps } = record;
  const javascript = new Runner(config, readWeights(file), { numBlocks, blockSize, groups });
  const tokens = [];
  for (const { plan } of steps) tokens.push(await javascript.execute(plan));
  console.log(JSON.stringify(tokens));
});
"""


def in_node(record: Mapping[str, Any]) -> str:
    """Execute recorded plans in JavaScript, and return how many tokens are equal, or why it could not be done."""
    node = shutil.which("node")
    if node is None:
        return "Node.js is not installed. The chapter's page executes the same plans in your browser."
    if not RUNNER_JS.is_file():
        return "kv_runner.js is in a clone of the repository, not in the package."
    folder = tiny_folder(windows=record["model"] == "tiny_windows")
    given = {
        "record": record,
        "config": json.loads((folder / "config.json").read_text(encoding="utf-8")),
        "weights": str(folder / "model.safetensors"),
        "runner": RUNNER_JS.as_uri(),
    }
    done = subprocess.run(
        [node, "--eval", _IN_NODE],
        input=json.dumps(given),
        capture_output=True,
        encoding="utf-8",
        timeout=120,
        check=True,
    )
    pairs = [
        (token, tokens[name])
        for tokens, step in zip(json.loads(done.stdout), record["steps"], strict=True)
        for name, token in step["tokens"].items()
    ]
    return f"{sum(a == b for a, b in pairs)} of {len(pairs)} tokens of JavaScript are equal to those of PyTorch."


# One wrong number.

TWO = {
    "A": "The scheduler counts tokens and the cache counts",
    "B": "The scheduler counts tokens and the cache keeps",
}
ROOMY = Levers(num_blocks=12, max_tokens=16)


@dataclass(frozen=True, slots=True)
class Texts:
    """The texts of a run, and which of them are changed."""

    texts: Mapping[str, str]
    changed: tuple[str, ...]

    @property
    def sentence(self) -> str:
        """Which texts are changed."""
        return f"Changed: {' and '.join(self.changed) or 'nothing'}."

    def _repr_html_(self) -> str:
        lines = [f"{name}: {text!r}" for name, text in self.texts.items()]
        return f'<pre style="white-space:pre-wrap">{html.escape(chr(10).join([*lines, self.sentence]))}</pre>'


def with_wrong_block(block_id: int | None) -> Texts:
    """Return the texts of `TWO` if in step 6 the second block of B is this one, and the change. `None`: no fault."""
    play, right = control_plane(TWO, levers=ROOMY), control_plane(TWO, levers=ROOMY)
    runner: DataPlane = torch_runner(ROOMY)
    run(play, runner if block_id is None else OneWrongBlock(runner, 6, "B1", column=1, block_id=block_id))
    run(right, torch_runner(ROOMY))
    said, expected = answers(play), answers(right)
    return Texts(said, tuple(name for name in TWO if said[name] != expected[name]))


def wrong_block_lever() -> Lever:
    """Return a lever over the block id in B's table in step 6. The right one is 4. A has the blocks 1 and 3."""
    pictures = {str(block_id): with_wrong_block(block_id) for block_id in range(1, 6)}
    challenge = Challenge("Find a block with which A's text changes, too.", lambda at: "A" in pictures[at].changed)
    return Lever("B's second block in step 6", pictures, start=3, challenge=challenge)

"""A recorded run of vLLM, for those who have none: the steps of one workload, as JSON.

`python -m mini_kv.course.finale.inside_vllm --record FILE` writes it, in vLLM's Python.
"""

import json
from pathlib import Path
from typing import Any

from mini_kv.course.finale.model_workload import ModelWorkload
from mini_kv.course.finale.steps import Numbering, Run, Step
from mini_kv.story.frame import BlockView, Frame

FILE = Path(__file__).with_name("recorded.json")
BLOCK_SIZE = 32
"""The smallest block size that vLLM supports on every CPU."""
NUM_BLOCKS = 14


def requests_of(seed: int) -> ModelWorkload:
    """Return the workload that both engines can run."""
    return ModelWorkload(seed, block_size=BLOCK_SIZE, num_blocks=NUM_BLOCKS)


def write(run: Run, version: str, seed: int, file: Path) -> None:
    """Write the steps of a run, one line per step. Hashes are written as numbers, in the order of their first use."""
    hashes = Numbering()
    rows = [json.dumps(_row(step, hashes)) for step in run.steps]
    head = {"vllm": version, "seed": seed}
    file.write_text("\n".join([json.dumps(head), *rows, ""]), encoding="utf-8")


def read(file: Path = FILE) -> tuple[str, int, Run]:
    """Return vLLM's version, the seed, and the run."""
    head, *rows = map(json.loads, file.read_text(encoding="utf-8").splitlines())
    run = Run(requests_of(head["seed"]), steps=[_step(row) for row in rows])
    return head["vllm"], head["seed"], run


def _row(step: Step, hashes: Numbering) -> dict[str, Any]:
    return {
        "number": step.number,
        "found": step.found,
        "scheduled": step.scheduled,
        "waiting": step.waiting,
        "num_preemptions": step.num_preemptions,
        "token_ids": step.token_ids,
        "references": [block.ref_cnt for block in step.frame.blocks],
        "hashes": hashes.of(step),
        "tables": step.frame.tables,
        "free_order": step.frame.free_order,
    }


def _step(row: dict[str, Any]) -> Step:
    names = [None if number is None else str(number) for number in row["hashes"]]
    states = enumerate(zip(row["references"], names, strict=True))
    blocks = tuple(BlockView(block_id, ref_cnt, name) for block_id, (ref_cnt, name) in states)
    return Step(
        number=row["number"],
        found=row["found"],
        scheduled=[(name, num_tokens) for name, num_tokens in row["scheduled"]],
        waiting=row["waiting"],
        num_preemptions=row["num_preemptions"],
        frame=Frame(blocks, row["tables"], row["free_order"]),
        token_ids=row["token_ids"],
        counters=None,
        logits=None,
    )

"""A recorded run of vLLM, for those who have none: the steps of one workload, as JSON.

`python -m mini_kv.course.finale.inside_vllm --record FILE` writes it, in vLLM's Python.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mini_kv.course.finale.model_workload import ModelEngine, ModelWorkload
from mini_kv.course.finale.steps import Numbering, Run, Step
from mini_kv.course.labkit.learner_parts import OwnParts
from mini_kv.events.frame import BlockView, Frame

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
    run = Run(RecordedWorkload(requests_of(head["seed"])), steps=[_step(row) for row in rows])
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
    )


@dataclass(frozen=True, slots=True)
class RecordedWorkload:
    """The requests of the recorded run on mini_kv's engine. Its steps have what the recorded ones have."""

    requests: ModelWorkload

    def engine(self, own: OwnParts) -> "RecordedEngine":
        """Return an engine with these parts."""
        return RecordedEngine(self.requests.engine(own))


class RecordedEngine:
    """A run on mini_kv's engine without counters and logits, which the recorded run does not have."""

    def __init__(self, engine: ModelEngine) -> None:
        self._engine = engine

    def steps(self) -> Iterator[Step]:
        """Yield the steps until the last answer is complete. Raises whatever the engine raises."""
        for step in self._engine.steps():
            yield replace(step, counters={}, logits={})

    def story(self) -> dict[str, Any]:
        """Return the story of the pool."""
        return self._engine.story()

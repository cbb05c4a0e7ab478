"""The results of a run for machines: `--lab-json FILE`."""

import json
from collections.abc import Sequence
from pathlib import Path

from mini_kv.course.labkit.learner_state import write_whole
from mini_kv.course.labkit.progress import foreseen
from mini_kv.course.labkit.scoreboard import LabResult

NAMES = ("test", "function", "stage", "state", "score", "points", "message", "belief")
"""What is told of each test."""


def as_json(results: Sequence[LabResult]) -> str:
    """Return every test with its state, points and message, and the number of correct predictions per lab, as JSON."""
    labs = {result.lab.lab_id: result.lab for result in results}
    told = {lab_id: dict(zip(("right", "asked"), foreseen(lab), strict=True)) for lab_id, lab in labs.items()}
    tests = [{"lab": result.lab.lab_id} | {name: getattr(result, name) for name in NAMES} for result in results]
    return json.dumps({"version": 1, "foreseen": told, "tests": tests}, indent=2) + "\n"


def remove_old(path: str | None) -> None:
    """Remove an earlier file of results. After a crash it could be mistaken for the results of this run."""
    if path is not None and Path(path).is_file():
        Path(path).resolve().unlink()


def write_results(path: Path, results: Sequence[LabResult], *, over: bool = True) -> None:
    """Write the results to a file. A pipe is written only at the end."""
    if path.is_file() or not path.exists():
        write_whole(path, as_json(results))
    elif over:
        path.write_text(as_json(results), encoding="utf-8")

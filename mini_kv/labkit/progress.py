"""What a learner has done so far: small JSON files in `.mini_kv/`, which git ignores."""

import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mini_kv.labkit.implementation import Implementation
from mini_kv.labkit.lab import Lab
from mini_kv.labkit.scoreboard import LabResult, all_ran

FOLDER = ".mini_kv"


def state_folder(lab: Lab) -> Path:
    """Return the folder for the learner's state, made if it is missing."""
    folder = lab.root / FOLDER
    folder.mkdir(exist_ok=True)
    return folder


def read_state(folder: Path, name: str) -> dict[str, Any]:
    """Return what was written under that name, or nothing; a file that cannot be read is put aside, not lost."""
    file = folder / f"{name}.json"
    try:
        state = json.loads(file.read_text(encoding="utf-8"))
        if isinstance(state, dict):
            return state
    except FileNotFoundError:
        return {}
    except (OSError, ValueError):
        pass
    file.replace(file.with_suffix(f".unreadable-{int(time.time())}"))
    return {}


def write_state(folder: Path, name: str, state: dict[str, Any]) -> None:
    """Write the state; whoever reads meanwhile sees the old or the new one, never half of it."""
    file = folder / f"{name}.json"
    new = file.with_suffix(".new")
    new.write_text(json.dumps(state, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    os.replace(new, file)


def record_run(implementation: Implementation, results: Sequence[LabResult]) -> None:
    """Remember the last run of somebody's own code; the best score stays. A run of a few tests only is no record."""
    if implementation.is_reference or not all_ran(implementation.lab, results):
        return
    folder = state_folder(implementation.lab)
    progress = read_state(folder, "progress")
    lab_id = implementation.lab.lab_id
    score = sum(result.score for result in results)
    progress[lab_id] = {
        "score": score,
        "best": max(score, progress.get(lab_id, {}).get("best", 0)),
        "points": sum(result.points for result in results),
        "source": os.path.relpath(implementation.source, implementation.lab.root),
        "tests": {result.test: str(result.state) for result in results},
        "when": time.strftime("%Y-%m-%d %H:%M"),
    }
    write_state(folder, "progress", progress)

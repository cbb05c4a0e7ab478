"""What a learner has done so far: the best and the last run of each lab."""

import os
import time
from collections.abc import Sequence

from mini_kv.labkit.implementation import Implementation
from mini_kv.labkit.scoreboard import LabResult, all_ran
from mini_kv.labkit.state import State, Tell, on_stderr, update_state


def record_run(implementation: Implementation, results: Sequence[LabResult], tell: Tell = on_stderr) -> None:
    """Remember the last run of a learner's own code; the best score stays. A run of a few tests only is no record."""
    lab = implementation.lab
    if implementation.is_reference or not all_ran(lab, results):
        return
    score = sum(result.score for result in results)

    def change(progress: State) -> None:
        progress[lab.lab_id] = {
            "score": score,
            "best": max(score, progress.get(lab.lab_id, {}).get("best", 0)),
            "points": sum(result.points for result in results),
            "source": os.path.relpath(implementation.source, lab.root),
            "tests": {result.test: str(result.state) for result in results},
            "when": time.strftime("%Y-%m-%d %H:%M"),
        }

    update_state(lab.state, "progress", change, tell)

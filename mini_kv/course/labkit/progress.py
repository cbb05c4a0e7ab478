"""A learner's progress: the best and the last run of each lab, and the correct predictions."""

import time
from collections.abc import Sequence

from mini_kv.course.labkit.implementation import Implementation
from mini_kv.course.labkit.lab import Lab, relative
from mini_kv.course.labkit.learner_state import State as Entries
from mini_kv.course.labkit.learner_state import Tell, on_stderr, read_state, update_state
from mini_kv.course.labkit.scoreboard import LabResult, State, all_ran


def record_run(implementation: Implementation, results: Sequence[LabResult], tell: Tell = on_stderr) -> None:
    """Store the last run of a learner's own code, and keep the best score. A run of a few tests is not stored."""
    lab = implementation.lab
    if implementation.is_reference or not all_ran(lab, results):
        return
    score = sum(result.score for result in results)
    wrong = [result for state in (State.FAIL, State.TODO) for result in results if result.state is state]

    def change(progress: Entries) -> None:
        progress[lab.lab_id] = {
            "score": score,
            "best": max(score, progress.get(lab.lab_id, {}).get("best", 0)),
            "points": sum(result.points for result in results),
            "source": relative(implementation.source, lab.root),
            "tests": {result.test: str(result.state) for result in results},
            "function": wrong[0].function if wrong else "",
            "when": time.strftime("%Y-%m-%d %H:%M"),
        }

    update_state(lab.state, "progress", change, tell)


def foreseen(lab: Lab) -> tuple[int, int]:
    """Return the lab's numbers of correct predictions and of answers."""
    given = read_state(lab.state, "predictions")
    entries = [entry for key, entry in given.items() if key.startswith(f"{lab.lab_id} ") and entry["answer"]]
    return sum(entry["right"] for entry in entries), len(entries)

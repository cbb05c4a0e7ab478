"""Plays the finale in the reader's page, with the files that this browser keeps of the labs.

`kv_lab_worker.js` loads this file into Pyodide and calls `run`. The acts with a model need PyTorch, and are played in a
terminal.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

from mini_kv.course.finale.integration import Finale, random_checks
from mini_kv.course.labkit.lab import all_labs

NUM_HOURS = 24
"""Rush hours of an act: fewer than in a terminal, because Python in a page is slower."""
FOLDER = Path("/tmp/finale")  # in the page's own file system


def run(seed: str, files: str, say: Callable[[str, str], None]) -> str:
    """Play all acts without a model and return report and film as JSON.

    Args:
        seed: of the requests.
        files: as JSON, the learner's text of each lab, such as `{"lab-05": "..."}`.
        say: is told each run before it begins.
    """
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    for lab_id, text in json.loads(files).items():
        (FOLDER / f"{lab_id}.py").write_text(text, encoding="utf-8")
    labs = all_labs(Path.cwd())
    finale = Finale(str(FOLDER), labs, random_checks(int(seed), NUM_HOURS), lambda name: say(name, ""))
    acts: list[list[str]] = []
    for line in finale.lines():
        if line.startswith("Act "):
            acts.append([])
        acts[-1].append(line)
    return json.dumps({"acts": acts, "right": finale.is_right, "played": finale.num_played, "film": finale.story})

"""Plays the finale in the reader's page, with the files that this browser keeps of the labs.

`kv_lab_worker.js` loads this file into Pyodide and calls `run`. The build calls `example`: it plays parts that are
wrong on purpose. The acts with a model need PyTorch, and are played in a terminal.
"""

import inspect
import json
import shutil
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from mini_kv.course.finale.difference import Difference
from mini_kv.course.finale.divergence_demo import DivergenceDemo
from mini_kv.course.finale.integration import Finale, random_checks
from mini_kv.course.labkit.lab import all_labs

NUM_HOURS = 24
"""Rush hours of an act: fewer than in a terminal, because Python in a page is slower."""
FOLDER = Path("/tmp/finale")  # in the page's own file system
LATER = 6
"""Steps after the first that differs: in them the reader sees what follows from it."""


def run(seed: str, files: str, say: Callable[[str, str], None]) -> str:
    """Play all acts without a model and return what the page shows of them, as JSON.

    Args:
        seed: of the requests.
        files: as JSON, the learner's text of each lab, such as `{"lab-05": "..."}`.
        say: is told each run before it begins, and the verdict of each act.
    """
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    for lab_id, text in json.loads(files).items():
        (FOLDER / f"{lab_id}.py").write_text(text, encoding="utf-8")
    finale = Finale(str(FOLDER), all_labs(Path.cwd()), random_checks(int(seed), NUM_HOURS), lambda name: say(name, ""))
    acts = []
    for act in finale.play():
        both_sides = act.difference.both_sides if act.difference else []
        acts.append({"verdict": act.verdict, "lines": [_named(line) for line in (*act.lines, *both_sides)]})
    shown = None if finale.difference is None else _shown(finale.difference)
    numbers = finale.numbers() if finale.is_right else []
    parts = [_named(line) for line in finale.parts()]
    found = {"acts": acts, "parts": parts, "difference": shown, "numbers": numbers, "film": finale.story or None}
    return json.dumps(found)


def example(name: str, fault: str) -> dict[str, Any]:
    """Return what the page shows of a part that is wrong on purpose. `name`: a key of `CHANGED`."""
    demo = DivergenceDemo(name)
    assert demo.difference is not None
    difference = replace(demo.difference, own="the wrong one")
    [part] = difference.blame.names
    said = [difference.said[0], f"At fault is {part}. {fault} With mini_kv's in its place all steps are equal."]
    return {**_shown(difference), "said": said, "code": inspect.getsource(demo.parts[part].value).rstrip()}


def _shown(difference: Difference) -> dict[str, Any]:
    """Return the first difference: in words, the values around it, and both sides of its step as stories."""
    contrast = difference.divergence.contrast if difference.run.error is None else None
    place = difference.place
    return {
        "said": [_named(line) for line in difference.said],
        "values": contrast and asdict(contrast),
        "lab": Path(place[0]).stem if place else "",
        "line": place[1] if place else 0,
        "owners": [difference.host, difference.own],
        "sides": difference.sides(LATER),
    }


def _named(line: str) -> str:
    """Return a line with the files' names instead of their paths."""
    return line.replace(f"{FOLDER}/", "")

"""The pictures that notebooks are stored with: GitHub, and whatever else runs no code, shows them below their cells.

A cell that ends with a scenario's `Story` keeps the still of its key step. Every other output is made by who reads.
"""

import json
import re
from pathlib import Path
from typing import Any

from mini_kv.trace.scenario import load_scenario
from mini_kv.viz.figure import key_step, story_data
from mini_kv.viz.still import svg
from mini_kv_book.places import ROOT

STORY = re.compile(r'\bStory\("([\w-]+)"\)')


def notebooks() -> dict[Path, str]:
    """Return every notebook with the text that it should have."""
    return {
        path: with_stills(path.read_text(encoding="utf-8")) for path in sorted((ROOT / "notebooks").glob("*.ipynb"))
    }


def with_stills(text: str) -> str:
    """Return a notebook's file with a still below each cell that ends with a story, and no other output."""
    notebook = json.loads(text)
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            found = STORY.findall("".join(cell["source"]))
            cell["outputs"] = [still_of(found[-1])] if found else []
    return json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"


def still_of(name: str) -> dict[str, Any]:
    """Return the output that shows a scenario's key step, as a notebook stores it."""
    data = story_data(load_scenario(name))
    step = key_step(data)
    label = f"{data['title']}: step {step} of {len(data['steps'])}. Run the cell to step through it."
    return {
        "data": {"image/svg+xml": [svg(data, step)], "text/plain": [label]},
        "metadata": {},
        "output_type": "display_data",
    }

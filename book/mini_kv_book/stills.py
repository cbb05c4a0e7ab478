"""The pictures stored in notebooks. GitHub, and Jupyter before a cell has run, show them below their cells.

A cell that ends with a story keeps the still of its key step, and one that compares two prompts the still of their
blocks. The engine draws these anew whenever pages are generated. A notebook without either keeps its key chart, which
takes matplotlib, some also PyTorch:

    python -m mini_kv_book.stills        draws these charts anew

Every other output is made when the reader runs the notebook.
"""

import ast
import base64
import html
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from mini_kv.course.finale.divergence_demo import engines_story
from mini_kv.course.lessons.instrument import STYLE, Instrument
from mini_kv.course.lessons.tiers_in_letters import story
from mini_kv.story.figure import key_step, played_data, story_data
from mini_kv.story.scenario import Scenario, ScenarioPlayer, load_scenario, scenario_from
from mini_kv.story.still import svg
from mini_kv.story.story_json import Data
from mini_kv_book.places import ROOT
from mini_kv_book.runs import last_value, run_python

_STORY = re.compile(r'\bStory\("([\w-]+)"\)')
_SECOND_HOME = re.compile(r"\bStory\(story\((\[.+\]), memory_blocks=(\d+)\)\)")
_RUSH_HOUR = re.compile(r"\bStory\(engines_story\(\)\)")
_CHAIN = re.compile(r'^chain\("(.+)", "(.+)", block_size=(\d+)\)$', re.MULTILINE)
_PATH = re.compile(r' d="[^"]+"')
"""A line of a chart, whose places need one digit after the point."""
KEY_CHARTS = {
    "06-memory-over-time": "Where 399 blocks are",
    "07-hit-rate": "What a pool of 80 blocks finds, by overlap",
    "11-online-softmax": "What each block is worth, after each block",
    "12-quantisation-error": "Error of the attention's result",
    "14-what-a-cache-buys": "Six questions about one document",
    "15-why-batches-matter": "Llama 3 8B on an H200, at the most",
    "17-a-cache-from-outside": "mirror_lever()",
    "18-when-the-cache-misbehaves": "six_servers()",
}
"""Text of the cell with a notebook's key chart: the chart's title, or the call that returns its lever or instrument."""

Output = dict[str, Any]
_NOTEBOOKS = ROOT / "notebooks"


def notebooks() -> dict[Path, str]:
    """Return every notebook with the text that it should have."""
    return {path: _with_stills(path) for path in sorted(_NOTEBOOKS.glob("*.ipynb"))}


def _with_stills(path: Path) -> str:
    """Return a notebook's file with a still below each cell that plays a story, its key chart, and no other output."""
    notebook = json.loads(path.read_text(encoding="utf-8"))
    for cell in code_cells(notebook):
        source = "".join(cell["source"])
        if not _has_key_chart(path, source):
            cell["outputs"] = [_still_of(data) for data in _stories_of(source)[-1:]]
    return _as_file(notebook)


def code_cells(notebook: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the code cells."""
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def _has_key_chart(path: Path, source: str) -> bool:
    """Return whether this is the cell whose chart the notebook is stored with."""
    return path.stem in KEY_CHARTS and KEY_CHARTS[path.stem] in source


def _as_file(notebook: dict[str, Any]) -> str:
    """Return a notebook's text."""
    return json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"


def _stories_of(source: str) -> list[Data]:
    """Return the stories that a cell plays, in the order of their kinds."""
    named = [story_data(load_scenario(name)) for name in _STORY.findall(source)]
    tiered = [
        story(ast.literal_eval(prompts), memory_blocks=int(blocks)) for prompts, blocks in _SECOND_HOME.findall(source)
    ]
    chained = [_chain_data(first, second, int(size)) for first, second, size in _CHAIN.findall(source)]
    return named + tiered + chained + [engines_story() for _ in _RUSH_HOUR.findall(source)]


def _still_of(data: Data) -> Output:
    """Return the output with a story's key step, in a notebook's format."""
    step = key_step(data)
    label = f"{data['title']}: step {step} of {len(data['steps'])}. Run the cell to step through it."
    return output(svg(data, step), label)


def output(picture: str, label: str) -> Output:
    """Return a picture in a notebook's format. The HTML is for Jupyter, which draws no SVG that it does not trust."""
    encoded = base64.b64encode(picture.encode()).decode()
    image = f'<img alt="{html.escape(label)}" src="data:image/svg+xml;base64,{encoded}">'
    return {
        "data": {"image/svg+xml": [picture], "text/html": [image], "text/plain": [label]},
        "metadata": {},
        "output_type": "display_data",
    }


def _chain_data(first: str, second: str, block_size: int) -> Data:
    """Return the story of two prompts, a token per character. Each card shows the characters of its block."""
    numbers = {character: number for number, character in enumerate(dict.fromkeys(first + second))}
    steps = [
        {
            "call": "prefill",
            "request": name,
            "tokens": " ".join(str(numbers[character]) for character in text),
            "say": text,
        }
        for name, text in (("first", first), ("second", second))
    ]
    title = f"\u201c{first}\u201d and \u201c{second}\u201d, in blocks of {block_size} characters"
    num_blocks = 2 + len(first + second) // block_size
    values = {"title": title, "num_blocks": num_blocks + 1, "block_size": block_size, "step": steps}
    return played_data(scenario := scenario_from("chain", values, numbers), _in_whole_blocks(scenario))


def _in_whole_blocks(scenario: Scenario) -> Iterator[Any]:
    """Yield the scenario's steps with each block's characters as one word."""
    for played in ScenarioPlayer(scenario).play():
        words = {block_id: ["".join(characters)] for block_id, characters in (played.words or {}).items()}
        yield replace(played, words=words)


# ---- Key charts ------------------------------------------------------------------------------------------------------


def _with_key_chart(path: Path) -> str:
    """Return a notebook's file with its key chart drawn anew, by running its cells up to there."""
    notebook, names = json.loads(path.read_text(encoding="utf-8")), {"__name__": "__main__"}
    for cell in code_cells(notebook)[1:]:  # the first installs what is missing
        source = "".join(cell["source"])
        if _has_key_chart(path, source):
            cell["outputs"] = [_chart_output(last_value(source, names, "_repr_html_", "chart"))]
            break
        run_python(source, names)
    return _as_file(notebook)


def _chart_output(shown: Any) -> Output:
    """Return the output that shows a chart, or the picture at which a lever or instrument starts, in black on white."""
    if isinstance(shown, Instrument):
        return output(_drawing_of(shown), f"{shown.title}. {''.join(shown.views[shown.start].says)}")
    chart = [*shown.pictures.values()][shown.start] if hasattr(shown, "pictures") else shown
    paper = '<rect width="100%" height="100%" fill="#fff"/>'
    head, body = chart.svg.replace("<svg", '<svg color="#111"', 1).split(">", 1)
    short = _PATH.sub(lambda path: re.sub(r"(\.\d)\d+", r"\1", path[0]), body)
    return output(f"{head}>{paper}{short}", f"{chart.title}. {chart.sentence}")


def _drawing_of(instrument: Instrument) -> str:
    """Return the picture at which an instrument starts, as a file: with its style, without its other positions."""
    width, height = (size + 16 for size in instrument.size)
    drawing = instrument.fragment().partition("<svg")[2].partition(">")[2].partition("</svg>")[0]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="-8 -8 {width} {height}" width="{2 * width}" color="#111">'
        f'<style>{STYLE}</style><rect x="-8" y="-8" width="{width}" height="{height}" fill="#fff"/>'
        f"""<g class="kv-instrument">{re.sub(" data-vary='[^']*'", "", drawing)}</g></svg>"""
    )


def main() -> None:
    """Draw the key charts of all notebooks that have one."""
    for name in KEY_CHARTS:
        path = _NOTEBOOKS / f"{name}.ipynb"
        path.write_text(_with_key_chart(path), encoding="utf-8", newline="\n")


if __name__ == "__main__":
    main()

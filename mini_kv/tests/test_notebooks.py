"""The notebooks as files: stripped, in the form that each of them has. `tests/browser` runs them."""

import ast
import json
import re
from base64 import b64decode
from pathlib import Path

import pytest

from mini_kv.course.labkit.course_settings import load_course
from mini_kv.course.lessons.challenge import CHALLENGES
from mini_kv.course.lessons.predict import questions
from mini_kv.story.figure import key_step, story_data
from mini_kv.story.scenario import load_scenario
from mini_kv.story.still import svg

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
ADDRESS = load_course(ROOT).address
FIRST_CELL = '''\
try:
    import mini_kv
except ModuleNotFoundError:  # not in a clone of the repository: on Colab, for instance
    %pip install --quiet "mini_kv @ git+ADDRESS"'''.replace("ADDRESS", ADDRESS)
WITH_TORCH = """
try:
    import torch
except ModuleNotFoundError:  # Colab has it; elsewhere the build for a CPU is enough
    %pip install --quiet torch --index-url https://download.pytorch.org/whl/cpu"""
WITH_SAFETENSORS = """
try:
    import safetensors
except ModuleNotFoundError:  # the format of a model's weights
    %pip install --quiet safetensors"""
WITH_MSGSPEC = """
try:
    import msgspec
except ModuleNotFoundError:  # the format of vLLM's messages
    %pip install --quiet msgspec"""
LOGIC = (ast.FunctionDef, ast.ClassDef, ast.Lambda, ast.For, ast.While, ast.If, ast.IfExp, ast.Try, ast.With)

pytestmark = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def cells(path, kind):
    notebook = json.loads(path.read_text(encoding="utf-8"))
    return [cell | {"source": "".join(cell["source"])} for cell in notebook["cells"] if cell["cell_type"] == kind]


def test_outputs_are_stripped(path):
    """What a cell shows is computed by who reads it; a diff shows what was written. As nbstripout leaves a file.

    But its key picture is there, for where no code runs. Of a scenario it is the one that the engine draws today. It is
    an image as well: Jupyter draws no SVG of a notebook that it does not trust.
    """
    notebook = json.loads(path.read_text(encoding="utf-8"))
    assert set(notebook["metadata"]) == {"kernelspec", "language_info", "title"}
    pictures = []
    for cell in notebook["cells"]:
        assert cell["metadata"] == {}
        if cell["cell_type"] == "code":
            assert cell["execution_count"] is None
            stories = re.findall(r'\bStory\("([\w-]+)"\)', "".join(cell["source"]))
            shown = [output["data"]["image/svg+xml"] for output in cell["outputs"]]
            images = ["".join(output["data"].get("text/html", "")) for output in cell["outputs"]]
            assert [b64decode(image.partition(";base64,")[2]).decode() for image in images] == [
                "".join(s) for s in shown
            ]
            assert not stories or shown == [[drawn(name)] for name in stories]
            pictures += shown
    assert [text[:4] for [text] in pictures] == ["<svg"] * len(pictures) != []


def drawn(name):
    data = story_data(load_scenario(name))
    return svg(data, key_step(data))


def test_the_first_cell_installs_only_what_is_missing(path):
    """The same cell everywhere, and torch where attention or the engine need it; it does nothing in a clone."""
    first, *rest = cells(path, "code")
    source = "".join(cell["source"] for cell in rest)
    needs_engine = bool(re.search(r"mini_kv\.(engine|course\.lessons\.(generation|torch_plane))\b", source))
    needs_torch = needs_engine or bool(re.search(r"mini_kv\.(attention|course\.lessons\.tensors)\b", source))
    needs_events = "mini_kv.course.lessons.mirrored" in source
    assert first["source"] == (
        FIRST_CELL + WITH_TORCH * needs_torch + WITH_SAFETENSORS * needs_engine + WITH_MSGSPEC * needs_events
    )


def test_it_opens_with_its_title_and_can_be_opened_elsewhere(path):
    """A title, and the way to Colab and Binder, as links: a badge would ask the network."""
    opening = cells(path, "markdown")[0]["source"]
    title = json.loads(path.read_text(encoding="utf-8"))["metadata"]["title"]
    assert opening.startswith(f"# {title}\n")
    name = ADDRESS.removeprefix("https://github.com/")
    assert f"colab.research.google.com/github/{name}/blob/main/notebooks/{path.name}" in opening
    assert f"mybinder.org/v2/gh/{name}/main?urlpath=lab/tree/notebooks/{path.name}" in opening
    assert "![" not in opening


def test_it_asks_before_it_shows(path):
    """At least one prediction; each has what the engine says behind it, and no cell gives the sentence of it away."""
    source = "\n".join(cell["source"] for cell in cells(path, "code")[1:])
    asked = calls_in(source, "Predict")
    assert asked
    assert [ast.unparse(call) for call in asked if len(call.args) < 2] == []
    named = [question.id for question in questions().values() if question.seen and f'"{question.id}"' in source]
    assert [question_id for question_id in named if f'seen("{question_id}")' not in source] == []


def test_it_has_a_control_and_a_challenge(path):
    """One thing to bring about that the engine looks at: by name for a player, inside a lever."""
    source = "\n".join(cell["source"] for cell in cells(path, "code")[1:])
    players = [player for name in PLAYERS for player in calls_in(source, name)]
    levers = re.findall(r"^(\w+_lever)\(", source, re.MULTILINE)
    assert len(players) + len(levers) == 1
    for player in players:
        [name] = [argument.value.value for argument in player.keywords if argument.arg == "challenge"]
        assert name in CHALLENGES


PLAYERS = ("LivePlayer", "ChainExplorer", "PromptPlayer")


def calls_in(source, name):
    return [
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == name
    ]


def test_it_ends_with_the_way_to_its_lab(path):
    assert re.search(r"\(\.\./labs/lab-\d\d/README\.md\)", cells(path, "markdown")[-1]["source"])


def test_every_link_leads_somewhere(path):
    """Links within the repository; the others are not followed in tests."""
    text = "\n".join(cell["source"] for cell in cells(path, "markdown"))
    targets = [target for target in re.findall(r"\]\(([^)]+)\)", text) if "://" not in target]
    assert targets
    assert [target for target in targets if not (path.parent / target).is_file()] == []


def test_cells_hold_no_logic_of_their_own(path):
    """A cell imports, calls and shows. What it computes is computed by functions that have tests."""
    for cell in cells(path, "code")[1:]:
        found = [type(node).__name__ for node in ast.walk(ast.parse(cell["source"])) if isinstance(node, LOGIC)]
        assert found == []

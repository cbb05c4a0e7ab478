"""What a notebook is handed: HTML that carries its script and its data, and a clear word where a package is missing."""

import importlib
import json
import re
import sys
import tomllib
from pathlib import Path

import pytest

from mini_kv.core.kv_cache_manager import KVCacheManager
from mini_kv.course.lessons import timeline
from mini_kv.course.lessons.chart import LOOKS, bar_chart, line_chart, stacked_chart, timeline_chart
from mini_kv.course.lessons.needs import MissingPackageError, need
from mini_kv.course.lessons.notebook import LivePlayer, Story
from mini_kv.installer import pip
from mini_kv.story import figure
from mini_kv.story.recorder import Recorder
from mini_kv.story.scenario import load_scenario, prefill
from mini_kv.story.traced_manager import TracedKVCacheManager

ROOT = Path(__file__).parents[4]


def test_a_story_carries_all_that_it_needs():
    """It holds its script, once, and its data, and loads nothing from elsewhere."""
    html = Story("share-and-evict")._repr_html_()
    assert html.startswith(f"<script>{figure.script()}</script>")
    assert html.endswith(f"{figure.fragment(figure.story_data(load_scenario('share-and-evict')))}</div>")
    assert not re.search(r"""(src|href)=(?!"#)|@import|url\(["']?http""", html.replace(figure.script(), ""))


def test_a_story_of_a_learner_s_own_run():
    """Any traced manager can be shown."""
    recorder = Recorder()
    manager = KVCacheManager.for_full_attention(4, 2, new_block=recorder.new_block)
    kv = TracedKVCacheManager(manager, recorder, snapshots=True)
    prefill(kv, kv.manager.new_request("A", [1, 2, 3]))
    data = Story(kv, "Mine").data
    assert (data["title"], data["num_blocks"], data["block_size"]) == ("Mine", 4, 2)
    assert data["steps"][0]["lines"] == ["lookup A: hit 0", "allocate A: allocated 1 2, cached 1"]
    assert Story(kv).data["title"] == "Your run"


def test_a_story_can_end_before_a_question():
    """What comes next is not in the page."""
    whole, part = Story("revival").data, Story("revival", until=2).data
    assert part["steps"] == whole["steps"][:2]
    assert len(whole["steps"]) == 5


@pytest.mark.notebooks
def test_each_package_of_the_notebooks_has_a_user_here():
    """JupyterLab opens them; the other three are used by what their cells show."""
    extra = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["notebooks"]
    assert [re.split("[<>=]", one)[0] for one in extra] == ["jupyterlab", "ipywidgets", "anywidget", "matplotlib"]
    player = LivePlayer()
    assert isinstance(player.pool, importlib.import_module("ipywidgets").IntSlider)
    assert isinstance(player.figure, importlib.import_module("anywidget").AnyWidget)
    chart = line_chart("T", "S", [1, 2], {"a": [0, 1]}, labels=("x", "y"))
    assert chart.svg.count("<path") > 2
    assert "matplotlib.figure" in sys.modules


@pytest.mark.notebooks
def test_the_figure_of_a_player_follows_the_cache_call_by_call():
    """A press hands the element the whole story, opened at its end; its code is the book's script and a few lines."""
    player = LivePlayer(9, 4, prompts={"32 tokens": "0..31", "others": "500..515"}, challenge="half is left")
    assert player.figure.story["steps"] == []
    player.admit.click()
    player.finish.click()
    assert [step["say"] for step in player.figure.story["steps"]] == player.cache.told
    assert player.figure.story["at"] == -1
    player.size.value = 4
    player.pressure.click()
    assert "Open." in player.said.value
    player.admit.click()
    assert "find exactly one half of itself. <b>Done.</b>" in player.said.value
    player.again.click()
    assert "Open." in player.said.value
    assert player.figure._esm.startswith(figure.script()[:100])
    assert player.figure._esm.count("export default") == 1


def test_a_missing_package_is_missed_in_a_sentence(monkeypatch):
    """No traceback of ipywidgets, but the command that gets it."""
    monkeypatch.setitem(sys.modules, "ipywidgets", None)
    with pytest.raises(MissingPackageError, match=f"needs the package ipywidgets: {pip()} install ipywidgets, or"):
        LivePlayer()


def test_a_missing_module_of_a_package_names_the_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingPackageError, match="needs the package matplotlib"):
        line_chart("T", "S", [1], {"a": [1]}, labels=("x", "y"))
    assert need("json") is json


CHARTS = {
    "lines": lambda: line_chart("T", "A & B.", [1, 2, 4], {"a": [0, 0.5, 1]}, labels=("x", "y"), log="x"),
    "by factors": lambda: line_chart(
        "T", "A & B.", [1, 2], {"a": [1, 1000]}, labels=("x", "y"), log="xy", shares=False
    ),
    "steps": lambda: line_chart("T", "A & B.", [1, 2], {"a": [0, 1]}, labels=("x", "y"), steps=True),
    "counts": lambda: line_chart("T", "A & B.", [1, 2], {"a": [0, 7]}, labels=("x", "y"), shares=False),
    "bars of counts": lambda: bar_chart("T", "A & B.", ["p"], {"a": [3]}, labels=("x", "y"), shares=False),
    "timeline": lambda: timeline_chart(
        "T", "A & B.", {"a": [("prompt", 3), ("answer", 1)], "b": [("", 0), ("waits", 0)]}, labels=("x", "y")
    ),
    "areas": lambda: stacked_chart("T", "A & B.", {"a": [1, 2], "b": [3, 2]}, labels=("x", "y")),
    "bars": lambda: bar_chart("T", "A & B.", ["p", "q"], {"a": [0.1, 0.2], "b": [0.3, 0.4]}, labels=("x", "y")),
}


@pytest.mark.notebooks
@pytest.mark.parametrize("kind", CHARTS)
def test_a_chart_is_a_good_guest_on_a_page(kind):
    """The page's own colour, no style for others, a text for who cannot see it; and twice the same, to the byte.

    Its letters are 11 pixels on a phone, where it is 358 wide.
    """
    html = CHARTS[kind]().fragment()
    letters = min(map(float, re.findall(r"font-size: ([\d.]+)px", html)))
    assert letters * 358 / float(re.findall(r'viewBox="0 0 ([\d.]+)', html)[0]) >= 11
    assert html.startswith('<figure style="margin:0;max-width:36rem"><svg role="img" aria-label="T. A &amp; B." ')
    assert html.endswith("<figcaption>A &amp; B.</figcaption></figure>")
    assert "currentColor" in html
    assert not re.search(r"<style|<\?xml|<!DOCTYPE|<metadata|<script|#000000|http://(?!www\.w3\.org)", html)
    assert CHARTS[kind]().fragment() == html


@pytest.mark.notebooks
def test_a_timeline_shows_every_doing_in_its_legend_and_long_prompts_by_their_number():
    row = [("waits", 0), ("waits", 0), ("prompt", 300), ("answer", 1), ("thrown out", 0), ("again", 301)]
    svg = timeline_chart("T", "S", {"r": row}, labels=("x", "y")).svg
    texts = re.findall(r">([^<>]+)</text>", svg)
    assert [name for name in LOOKS if name in texts] == list(LOOKS)
    assert [text for text in texts if text in ("0", "1", "300", "301")] == ["1", "300", "301"]  # 1 is a step's number


def test_the_doings_of_a_timeline_are_those_that_have_a_look():
    """Written down twice, since a drawing does not import a workload."""
    assert set(LOOKS) == {timeline.WAITS, timeline.PROMPT, timeline.ANSWER, timeline.OUT, timeline.AGAIN}

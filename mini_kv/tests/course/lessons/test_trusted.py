"""What a reader sees of an output in a notebook that is not trusted."""

from html.parser import HTMLParser

import pytest

from mini_kv.course.lessons.chart import Chart
from mini_kv.course.lessons.instruments import changed_token
from mini_kv.course.lessons.lever import Lever
from mini_kv.course.lessons.notebook import Beside, Story
from mini_kv.course.lessons.predict import Predict
from mini_kv.story.figure import story_data
from mini_kv.story.scenario import load_scenario

VOID = {"br", "input", "path", "rect", "circle", "line", "use"}


class Untrusted(HTMLParser):
    """The words of an output, as Jupyter leaves them: without styles and scripts, and each drawing as its texts."""

    def __init__(self, output: str) -> None:
        super().__init__()
        self.hidden: list[str] = []
        """Open elements, from the first one that is hidden."""
        self.words: list[str] = []
        self.feed(output)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID and (self.hidden or tag in ("style", "script") or "hidden" in dict(attrs)):
            self.hidden.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        if self.hidden and tag not in VOID:
            self.hidden.pop()

    def handle_data(self, data: str) -> None:
        if not self.hidden:
            self.words += data.split()


def seen(output: object) -> str:
    return " ".join(Untrusted(output._repr_html_()).words)  # type: ignore[attr-defined]


INSTEAD = (
    "The engine's result is hidden while this notebook is not trusted: run the cell, or choose Trust Notebook in the"
    " menu File."
)
DATA = story_data(load_scenario("share-and-evict"))
CHART = Chart("T", "S", "<svg><text>7</text></svg>")


@pytest.mark.parametrize(
    "output",
    [Story("share-and-evict"), Beside(DATA, DATA), CHART, changed_token(), Lever("size", {"1": CHART, "2": CHART})],
)
def test_a_figure_is_a_sentence_and_no_row_of_digits(output: object) -> None:
    assert seen(output) == INSTEAD


def test_a_question_is_shown_without_its_result() -> None:
    question = Predict("dashboard")
    assert seen(Predict("dashboard", 4711, "secret")) == (
        f"{seen(question)} After your answer, the result of the engine appears here. {INSTEAD}"
    )
    assert seen(question).startswith("Before you go on.")

"""Questions to answer before a cell is run. Each answer, right or wrong, gets a reason.

    Predict("dashboard", found_in_turn(["0..31", "0..31"]))     the question, and the engine's result: after an answer

Each choice is a button, in plain HTML and CSS without scripts. The engine's result is in the page, hidden until a
choice is opened, also after "Run All" and in an exported page. In a notebook that is not trusted it stays hidden. The
questions are data, `predictions.toml`. A test computes each answer on the engine.
"""

import html
import tomllib
from dataclasses import dataclass
from importlib import resources
from pprint import pformat
from typing import Any

from mini_kv.course.lessons.trusted import SENTENCE, STYLE

_STYLE = "border:1px solid currentColor;border-radius:6px;padding:.2em .8em .5em;margin:.5em 0;max-width:44rem"

LOCK = (
    "<style>.kv-predict:not(:has(details[open])) > .kv-locked{visibility:hidden;height:0;overflow:hidden}"
    ".kv-predict:has(details[open]) > .kv-lock{display:none}"
    ".kv-predict summary::-webkit-details-marker{display:none}.kv-predict details[open]{flex-basis:100%}</style>"
)
"""Style of choices and of a locked answer. It has its final width: a figure measures its place before it is shown."""

_BUTTON = (
    "display:inline-block;list-style:none;cursor:pointer;min-height:1.5em;padding:.35em .9em;"
    "border:1px solid currentColor;border-radius:6px;font-weight:600"
)


@dataclass(frozen=True, slots=True)
class Question:
    """A question with its choices."""

    id: str
    ask: str
    answer: str
    choices: dict[str, str]
    """The choices in order. Each has its reason: why it is right, or the condition under which it would be."""
    seen: str = ""
    """The sentence for the picture that answers it. It is not in the cell: it would be seen too early."""


class Predict:
    """A question, and below it the answer, hidden until one of the choices has been opened."""

    def __init__(self, question_id: str, *answers: Any) -> None:
        """Set the question of that name, and its answer: pictures, stories, or any values.

        Raises `ValueError` with all names for an unknown one.
        """
        self.question = _question(question_id)
        self.answers = answers

    def _repr_html_(self) -> str:
        choices = "".join(self._choice(choice, reason) for choice, reason in self.question.choices.items())
        return (
            f'{LOCK}<div class="kv-predict"><div role="group" aria-label="A prediction" style="{_STYLE}">'
            f"<p><strong>Before you go on.</strong> {html.escape(self.question.ask)}</p>"
            f'<div style="display:flex;flex-wrap:wrap;gap:.4em">{choices}</div></div>'
            f"{self._locked()}</div>"
        )

    def _locked(self) -> str:
        """Return the hidden answers, and the line in their place before the reader answers."""
        if not self.answers:
            return ""
        return (
            '<p class="kv-lock"><em>After your answer, the result of the engine appears here.</em></p>'
            f'{STYLE}{SENTENCE}<div class="kv-locked kv-trusted" hidden>{"".join(map(_shown, self.answers))}</div>'
        )

    def _choice(self, choice: str, reason: str) -> str:
        """Return a choice that opens to its reason."""
        verdict = "Yes." if choice == self.question.answer else "No: then"
        return (
            f'<details style="margin:0"><summary style="{_BUTTON}">{html.escape(choice)}</summary>'
            f'<p style="margin:.25em 0 .25em .9em"><strong>{verdict}</strong> {html.escape(reason)}</p></details>'
        )


def seen(question_id: str) -> str:
    """Return the sentence of the chart that answers a question. It is kept out of the cell.

    Raises `ValueError` for an unknown question, or one whose answer is not a picture.
    """
    question = _question(question_id)
    if not question.seen:
        raise ValueError(f"predictions.toml has no sentence for the picture that answers {question_id}")
    return question.seen


def _question(question_id: str) -> Question:
    known = questions()
    if question_id not in known:
        raise ValueError(f"no question {question_id!r}; there are: {', '.join(sorted(known))}")
    return known[question_id]


def _shown(answer: Any) -> str:
    """Return an answer as a notebook shows it: its own HTML, a text unchanged, or the `repr` of a value."""
    if hasattr(answer, "_repr_html_"):
        return str(answer._repr_html_())
    text = answer if isinstance(answer, str) else pformat(answer, width=90, compact=True, sort_dicts=False)
    return f'<pre style="white-space:pre-wrap;font-family:monospace">{html.escape(text)}</pre>'


def questions() -> dict[str, Question]:
    """Return all questions of predictions.toml by id. Raises `ValueError` if an answer is not one of the choices."""
    text = resources.files("mini_kv.course.lessons").joinpath("predictions.toml").read_text(encoding="utf-8")
    return parsed(text, "predictions.toml")


def parsed(text: str, file: str) -> dict[str, Question]:
    """Return the questions of a text in the form of predictions.toml by id, in their order.

    Raises `ValueError` if an answer is not one of the choices.
    """
    result = {}
    for values in tomllib.loads(text)["question"]:
        question = Question(
            values["id"],
            " ".join(values["ask"].split()),
            values["answer"],
            _one_line(values["choices"]),
            " ".join(values.get("seen", "").split()),
        )
        if question.answer not in question.choices or question.id in result:
            raise ValueError(f"{file}: {question.id} occurs twice, or its answer is not one of its choices")
        result[question.id] = question
    return result


def _one_line(choices: dict[str, str]) -> dict[str, str]:
    return {choice: " ".join(reason.split()) for choice, reason in choices.items()}

"""Questions to answer before a cell is run; each answer, right or wrong, is met with a reason.

    Predict("dashboard", found_in_turn(["0..31", "0..31"]))     the question, and what the engine says: after an answer

Plain HTML and CSS with nothing to run: what the engine says is in the page and out of sight until a choice is opened,
after "Run All" and in an exported page too. The questions are data, `predictions.toml`; a test works each answer out
on the engine.
"""

import html
import tomllib
from dataclasses import dataclass
from importlib import resources
from pprint import pformat
from typing import Any

_STYLE = "border:1px solid currentColor;border-radius:6px;padding:.2em .8em .5em;margin:.5em 0;max-width:44rem"

LOCK = (
    "<style>.kv-predict:not(:has(details[open])) > .kv-locked{visibility:hidden;height:0;overflow:hidden}"
    ".kv-predict:has(details[open]) > .kv-lock{display:none}</style>"
)
"""Out of sight, also of a screen reader, and as wide as it will be: a figure measures its place before it is seen."""


@dataclass(frozen=True, slots=True)
class Question:
    """A question with its choices."""

    id: str
    ask: str
    answer: str
    choices: dict[str, str]
    """In the order in which they are shown: for the answer why it is right, for the others what would have had to be
    true."""
    seen: str = ""
    """What is to be seen in the picture that answers it; it stands here, since in the cell it would be read before."""


class Predict:
    """A question, and below it what answers it, locked until one of the choices has been opened."""

    def __init__(self, question_id: str, *answers: Any) -> None:
        """Take the question of that name, and what is to be seen after it: pictures, stories, or any values.

        Raises `ValueError`, naming the questions, for an unknown one.
        """
        self.question = _question(question_id)
        self.answers = answers

    def _repr_html_(self) -> str:
        choices = "".join(self._choice(choice, reason) for choice, reason in self.question.choices.items())
        return (
            f'{LOCK}<div class="kv-predict"><div role="group" aria-label="A prediction" style="{_STYLE}">'
            f"<p><strong>Before you go on.</strong> {html.escape(self.question.ask)}</p>{choices}</div>"
            f"{self._locked()}</div>"
        )

    def _locked(self) -> str:
        """Return the answers, and the line that is shown in their place before the reader answers."""
        if not self.answers:
            return ""
        return (
            '<p class="kv-lock"><em>Answer, and what the engine says appears here.</em></p>'
            f'<div class="kv-locked">{"".join(map(_shown, self.answers))}</div>'
        )

    def _choice(self, choice: str, reason: str) -> str:
        """Return a choice that opens to its reason."""
        verdict = "Yes." if choice == self.question.answer else "No: then"
        return (
            f'<details style="margin:.25em 0"><summary style="cursor:pointer">{html.escape(choice)}</summary>'
            f'<p style="margin:.25em 0 .25em 1.2em"><strong>{verdict}</strong> {html.escape(reason)}</p></details>'
        )


def seen(question_id: str) -> str:
    """Return the sentence of the chart that answers a question. It is kept out of the cell.

    Raises `ValueError` for an unknown question, or one whose answer is no picture.
    """
    question = _question(question_id)
    if not question.seen:
        raise ValueError(f"predictions.toml says of {question_id} no sentence of what is to be seen")
    return question.seen


def _question(question_id: str) -> Question:
    known = questions()
    if question_id not in known:
        raise ValueError(f"no question {question_id!r}; there are: {', '.join(sorted(known))}")
    return known[question_id]


def _shown(answer: Any) -> str:
    """Return an answer as a notebook would show it: its own HTML, a text as it is, or a value as Python writes it."""
    if hasattr(answer, "_repr_html_"):
        return str(answer._repr_html_())
    text = answer if isinstance(answer, str) else pformat(answer, width=90, compact=True, sort_dicts=False)
    return f'<pre style="white-space:pre-wrap;font-family:monospace">{html.escape(text)}</pre>'


def questions() -> dict[str, Question]:
    """Return all questions by id. Raises `ValueError` if one has an answer that is none of its choices."""
    text = resources.files("mini_kv.lessons").joinpath("predictions.toml").read_text(encoding="utf-8")
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
            raise ValueError(f"predictions.toml: {question.id} is there twice, or its answer is none of its choices")
        result[question.id] = question
    return result


def _one_line(choices: dict[str, str]) -> dict[str, str]:
    return {choice: " ".join(reason.split()) for choice, reason in choices.items()}

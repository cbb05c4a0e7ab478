"""Questions to answer before a cell is run; each answer, right or wrong, is met with a reason.

    Predict("a-second-of-two")          a notebook shows the question and what may be the answer

Plain HTML with nothing to run: it answers in an exported page, and before anything has been executed. The questions
are data, `predictions.toml`; a test works each answer out on the engine.
"""

import html
import tomllib
from dataclasses import dataclass
from importlib import resources

_STYLE = "border:1px solid currentColor;border-radius:6px;padding:.2em .8em .5em;margin:.5em 0;max-width:44rem"


@dataclass(frozen=True, slots=True)
class Question:
    """A question with its choices."""

    id: str
    ask: str
    answer: str
    choices: dict[str, str]
    """In the order in which they are shown: for the answer why it is right, for the others what would have had to be
    true."""


class Predict:
    """A question as a notebook shows it. Raises `ValueError`, naming the choices, for an unknown one."""

    def __init__(self, question_id: str) -> None:
        known = questions()
        if question_id not in known:
            raise ValueError(f"no question {question_id!r}; there are: {', '.join(sorted(known))}")
        self.question = known[question_id]

    def _repr_html_(self) -> str:
        choices = "".join(self._choice(choice, reason) for choice, reason in self.question.choices.items())
        return (
            f'<div role="group" aria-label="A prediction" style="{_STYLE}">'
            f"<p><strong>Before you go on.</strong> {html.escape(self.question.ask)}</p>{choices}</div>"
        )

    def _choice(self, choice: str, reason: str) -> str:
        """Return a choice that opens to its reason."""
        verdict = "Yes." if choice == self.question.answer else "No: then"
        return (
            f'<details style="margin:.25em 0"><summary style="cursor:pointer">{html.escape(choice)}</summary>'
            f'<p style="margin:.25em 0 .25em 1.2em"><strong>{verdict}</strong> {html.escape(reason)}</p></details>'
        )


def questions() -> dict[str, Question]:
    """Return all questions by id. Raises `ValueError` if one has an answer that is none of its choices."""
    text = resources.files("mini_kv.lessons").joinpath("predictions.toml").read_text(encoding="utf-8")
    result = {}
    for values in tomllib.loads(text)["question"]:
        question = Question(
            values["id"], " ".join(values["ask"].split()), values["answer"], _one_line(values["choices"])
        )
        if question.answer not in question.choices or question.id in result:
            raise ValueError(f"predictions.toml: {question.id} is there twice, or its answer is none of its choices")
        result[question.id] = question
    return result


def _one_line(choices: dict[str, str]) -> dict[str, str]:
    return {choice: " ".join(reason.split()) for choice, reason in choices.items()}

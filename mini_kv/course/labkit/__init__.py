"""The labs' harness: finds the code to run, runs the tests on it, prints the error in a few drawn lines.

The functions that a lab's files import are here: `todo` for the starter, `points` for the tests. The other modules, in
reading order: `lab` (a lab's data), `learner_parts` (the parts that an engine can take from a learner),
`implementation` (LAB_IMPL: the code that runs), `fixture` (the fixture of a test), `time_limit` (its limits), `naive`
and `lives` (for comparisons: a slow cache and scheduler, random lives), `failure` (the message), `scoreboard`,
`misconception` (names the belief that leads to a wrong answer), `learner_state`, `progress` and `export` (stored
results), `spelling` (compares a learner's answer), `tamper_check` (detects changes of the judge), `plugin` (pytest's
hooks), `shrink` (the fewest steps that fail), `audit` (checks the tests), `course_settings` (an instructor's settings).
"""

from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    import pytest


class LabTodo(NotImplementedError):
    """Raised by a starter in place of code that the learner has to write. Shown as TODO, not as a failure."""


def todo(lab: str, function: str, step: str) -> NoReturn:
    """Mark a step of a starter that the learner has to write. Always raises `LabTodo`."""
    raise LabTodo(f"{lab} {function}: {step}")


def points(
    value: int, function: str, *, stage: str = "biography", after: str | None = None, rule: int = 0, why: str = ""
) -> "pytest.MarkDecorator":
    """Mark a lab's test with its points, the learner's function that it checks, and its reason.

    Args:
        value: points.
        function: name of the learner's function.
        stage: `biography` (to be read in order), `adversary` or `property`.
        after: name of the test that must pass before. If it fails, the marked test is not run.
        rule: number of the sentence of README's contract that the test checks. A failure without a belief prints it.
        why: the idea behind the test, one sentence. It is the last line of a failure.
    """
    import pytest  # a starter imports this package too, and needs no pytest

    return pytest.mark.lab(points=value, function=function, stage=stage, after=after, rule=rule, why=why)

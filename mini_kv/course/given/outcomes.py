"""Runs a learner's check on one manager, queue or admission, and returns whether the check accuses it."""

import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from mini_kv.course.given.manager_under_test import MAX_CALLS, ManagerUnderTest, Session, TooManyCallsError
from mini_kv.course.labkit import LabTodo

MakeManager = Callable[[int, int], ManagerUnderTest]
Check = Callable[[MakeManager], object]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a check on one of its subjects."""

    session: Session
    accused: AssertionError | None = None
    """The accusation."""
    mistake: Exception | None = None
    """Another exception, or too many calls."""

    @property
    def failed(self) -> bool:
        """Whether the check ended with an exception. It accuses a manager if no correct one raises it.

        Too many calls accuse no manager.
        """
        return self.accused is not None or not isinstance(self.mistake, TooManyCallsError | None)

    @property
    def said(self) -> str:
        """The message of the accusation, or the line of the check if it has none."""
        if self.mistake is not None:
            return f"{type(self.mistake).__name__}: {self.mistake}"
        if self.accused is None or str(self.accused):
            return str(self.accused or "")
        return traceback.extract_tb(self.accused.__traceback__)[-1].line or "an assertion without a message"

    @property
    def calls(self) -> list[str]:
        """The calls to the last object that the check made, with their answers."""
        return list(self.session.made[-1].told) if self.session.made else []

    @property
    def all_calls(self) -> list[str]:
        """The calls to all objects that the check made, with their answers."""
        return [call for made in self.session.made for call in made.told]

    @property
    def told(self) -> str:
        """The size of the run in words."""
        num_managers = len(self.session.made)
        return f"{self.session.num_calls} calls on {num_managers} manager{'s' * (num_managers != 1)}"


def contradicted_rule(
    check: Callable[[Any], object],
    alarm: Outcome,
    wrong: Sequence[Any],
    file: str,
    kind: Callable[..., Any] = ManagerUnderTest,
) -> int:
    """Return the number of the sentence of the contract that a false alarm contradicts, or 0 if it is not known.

    The check expects something that a correct subject does not do. So its failing line passes on a wrong subject that
    does it, and this subject breaks the sentence. Of several, the one with the answers that differ least up to there.

    Args:
        check: the learner's check.
        alarm: its outcome on a correct subject.
        wrong: subjects with `make` and `rule`.
        file: the learner's file.
        kind: what the check gets.
    """
    place, answers = _place(alarm, file), alarm.all_calls
    found: list[tuple[int, int]] = []
    for subject in wrong:
        outcome = run_check(check, subject.make, kind)
        if not outcome.failed or _place(outcome, file) > place:
            differences = sum(mine != its for mine, its in zip(answers, outcome.all_calls, strict=False))
            found.append((differences, subject.rule))
    return min(found, default=(0, 0), key=lambda pair: pair[0])[1]


def _place(outcome: Outcome, file: str) -> list[int]:
    """Return the lines of the learner's file on which the check ended, outermost first."""
    error = outcome.accused or outcome.mistake
    frames = traceback.extract_tb(error.__traceback__) if error else []
    return [frame.lineno or 0 for frame in frames if frame.filename == file]


def run_check(
    check: Callable[[Any], object], make_inner: Callable[..., Any], kind: Callable[..., Any] = ManagerUnderTest
) -> Outcome:
    """Run a check on objects of this kind, whose calls are counted. A TODO is raised."""
    session = Session(kind, make_inner)
    try:
        check(session.make)
    except LabTodo:
        raise
    except AssertionError as error:
        return Outcome(session, accused=error)
    except Exception as error:
        return Outcome(session, mistake=error)
    if session.num_calls > MAX_CALLS:
        return Outcome(session, mistake=TooManyCallsError(f"more than {MAX_CALLS} calls"))
    return Outcome(session)

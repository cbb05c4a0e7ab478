"""Runs a learner's check on one manager, and says whether the check accuses it."""

import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mini_kv.course.given.faulty_managers import SUSPECTS, Suspect
from mini_kv.course.given.manager_under_test import MAX_CALLS, ManagerUnderTest, Session, TooManyCallsError
from mini_kv.course.labkit import LabTodo

MakeManager = Callable[[int, int], ManagerUnderTest]
Check = Callable[[MakeManager], object]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a check on one manager."""

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
    def told(self) -> str:
        """The size of the run in words."""
        num_managers = len(self.session.managers)
        return f"{self.session.num_calls} calls on {num_managers} manager{'s' * (num_managers != 1)}"


def run_check(check: Check, make_inner: Callable[[int, int], Any]) -> Outcome:
    """Run the check on managers of this kind. A TODO is raised."""
    session = Session(make_inner)
    return run_in(session, lambda: check(session.make_manager))


def run_in(session: Session, check: Callable[[], object]) -> Outcome:
    """Run a check whose calls this session counts. A TODO is raised."""
    try:
        check()
    except LabTodo:
        raise
    except AssertionError as error:
        return Outcome(session, accused=error)
    except Exception as error:
        return Outcome(session, mistake=error)
    if session.num_calls > MAX_CALLS:
        return Outcome(session, mistake=TooManyCallsError(f"more than {MAX_CALLS} calls"))
    return Outcome(session)


def suspects_of(check: str) -> list[Suspect]:
    """Return the suspects that break the part of the contract which this check is about."""
    return [suspect for suspect in SUSPECTS if suspect.check == check]

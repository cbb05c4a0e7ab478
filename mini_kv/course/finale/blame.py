"""Finds the faulty part: the line of an error, and the parts that make a run right if the engine's own replace them."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from mini_kv.course.finale.learner_files import Found, last_line, own_parts, short
from mini_kv.course.finale.steps import Run
from mini_kv.course.labkit import LabTodo
from mini_kv.course.labkit.failure import in_words
from mini_kv.course.labkit.time_limit import NoVerdictError, TookTooLongError

PATIENCE_S = 3
"""Seconds that a step may take while parts are tried, if an engine did not return in time."""


def what_broke(error: BaseException, when: str, limit: float, parts: Mapping[str, Found]) -> list[str]:
    """Return the error that stopped an engine, and the learner's line that was running. `limit`: seconds of a step."""
    what = in_words(error)
    if isinstance(error, NoVerdictError):
        what = str(error)
    elif isinstance(error, TookTooLongError):
        what = f"it did not return within {limit} s"
    elif isinstance(error, LabTodo):
        what = f"still TODO: {error}"
    line = last_line(error, {each.source for each in parts.values()})
    at = f"at {short(line[0])}:{line[1]}  {line[2]}" if line else "in mini_kv's code, with a value from yours"
    return [f"Your engine stopped {when}: {what}", f"  {at}"]


@dataclass(frozen=True, slots=True)
class Blame:
    """The result of a search."""

    names: list[str]
    """The parts at fault, or those of which one is. Empty: each is right alone."""
    lines: list[str]
    """The result, as text."""


class Search:
    """Runs the learner's engine again with some of its parts, and finds the faulty ones."""

    def __init__(
        self, run: Run, reference: Run, parts: Mapping[str, Found], noun: str = "the run", host: str = "mini_kv"
    ) -> None:
        """Set the two runs and the parts by name.

        Args:
            run: the failed run.
            reference: the engine's own run.
            parts: the learner's parts in the failed run.
            noun: the word for what must be right.
            host: the engine whose parts replace the learner's.
        """
        self._run, self._reference, self._parts, self._noun, self._host = run, reference, parts, noun, host
        self._limit = PATIENCE_S if isinstance(run.error, TookTooLongError) else run.limit
        line = last_line(run.error, {each.source for each in parts.values()}) if run.error is not None else None
        self._blamed = [name for name, each in parts.items() if line and each.source == line[0]]
        """The parts of the lab whose code was running at the error."""

    def blame(self) -> Blame:
        """Return the part, lab or parts at fault, or the result that there is none."""
        return self._single_parts() or self._whole_labs() or self._wrong_alone()

    def _is_right_without(self, names: Collection[str]) -> bool:
        own = own_parts(each for name, each in self._parts.items() if name not in names)
        return self._run.again(own, self._limit).agrees_with(self._reference)

    def _single_parts(self) -> Blame | None:
        """Return every part whose replacement alone fixes the output. Parts of the failing lab are tried first."""
        healers = []
        for name in dict.fromkeys([*self._blamed, *self._parts]):
            if self._is_right_without([name]):
                healers.append(name)
                if name in self._blamed:
                    break
        lines = [f"With {name} from {self._host} {self._noun} is right: {self._parts[name].place}" for name in healers]
        if len(lines) > 1:
            lines.insert(0, "Replacing any of these helps. Check the calls between them.")
        return Blame(healers, lines) if healers else None

    def _whole_labs(self) -> Blame | None:
        """Return the lab whose replacement fixes the output, if there is one. Parts of a lab may call each other."""
        for lab_id in dict.fromkeys(each.part.lab_id for each in self._parts.values()):
            names = [name for name, each in self._parts.items() if each.part.lab_id == lab_id]
            if self._is_right_without(names):
                said = f"With all of {lab_id} from {self._host} {self._noun} is right. Run its tests."
                return Blame(names, [said])
        return None

    def _wrong_alone(self) -> Blame:
        """Return the parts that are wrong while all others are the engine's own."""
        wrong = [name for name in self._parts if not self._is_right_without(self._parts.keys() - {name})]
        if not wrong:
            return Blame([], ["Each of your parts is right alone, but not together."])
        places = [f"  {name}: {self._parts[name].place}" for name in wrong]
        return Blame(wrong, ["No single part helps. These are wrong even alone:", *places])

"""What differs between the learner's run and the engine's own, which part is at fault, and both sides as stories."""

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from mini_kv.course.finale.blame import Blame, what_broke
from mini_kv.course.finale.learner_files import Found, last_line
from mini_kv.course.finale.steps import Divergence, Run, Workload
from mini_kv.course.labkit.learner_parts import OwnParts


@dataclass(frozen=True, slots=True)
class Difference:
    """The first step of a run that differs, and the part at fault."""

    run: Run
    parts: Mapping[str, Found]
    divergence: Divergence
    blame: Blame
    host: str = "mini_kv"
    """The engine that made the reference."""
    own: str = "yours"
    """The name of the engine with these parts."""
    alone: str = ""
    """A sentence that names the parts, if the others of the learner's did not run."""

    @property
    def said(self) -> list[str]:
        """What differs, and the part at fault: a sentence each."""
        lines = [self.divergence.sentence(self.host, self.own)]
        if self.run.error is not None:
            lines = what_broke(self.run.error, f"in step {len(self.run.steps) + 1}", self.run.limit, self.parts)
        return [*lines, *filter(None, [self.alone]), *self.blame.lines]

    @property
    def both_sides(self) -> list[str]:
        """The step on both sides, as text. Empty after an error."""
        return [] if self.run.error is not None else self.divergence.both_sides(self.host)

    @property
    def place(self) -> tuple[str, int] | None:
        """File and line of the error, else of the first part at fault. `None`: none is."""
        sources = {each.source for each in self.parts.values()}
        if self.run.error is not None and (line := last_line(self.run.error, sources)):
            return line[:2]
        places = [(self.parts[name].source, self.parts[name].line) for name in self.blame.names]
        return places[0] if places else None

    def sides(self, more: int = 0) -> tuple[dict[str, Any], ...]:
        """Return the engine's run and the learner's as stories, `more` steps beyond the first that differs.

        Empty: the workload tells no story, as a cache behind messages.
        """
        step = self.divergence.its.number
        its = story_until(self.run.workload, OwnParts(), step + more)
        if not its:
            return ()
        mine = story_until(self.run.workload, self.run.own, step + more) or {**its, "steps": []}
        return {**its, "title": self.host, "at": step}, {**mine, "title": self.own, "at": step}


def story_until(workload: Workload, own: OwnParts, last: int) -> dict[str, Any]:
    """Return the first `last` steps of a run as a story. An error ends it. Empty: the engine could not be built."""
    run = Run(workload, own)
    with closing(run.in_steps()) as steps:
        for step in steps:
            if step.number == last:
                break
    return run.engine.story() if run.engine is not None else {}

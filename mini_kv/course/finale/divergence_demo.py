"""One random workload on changed parts, for the chapter and the notebook on the finale. Imports no torch.

    demo = DivergenceDemo("turns the list")     runs the workload until a step differs from the engine's own run
    print(demo.report)                          what `mini-kv finale --verbose` prints about it
    demo.sides()                                both runs up to that step, as two stories
    demo.swaps()                                the workload again, each time with one part from the engine

Four parts can be changed. Those that are not changed are the engine's own.
"""

import html
import inspect
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

from mini_kv.core.block_hash import get_request_block_hasher
from mini_kv.core.free_queue import FreeKVCacheBlockQueue
from mini_kv.core.sched.scheduler import Scheduler
from mini_kv.core.single_type_kv_cache_manager import FullAttentionManager
from mini_kv.course.finale.blame import Search
from mini_kv.course.finale.difference import Difference, story_until
from mini_kv.course.finale.learner_files import Found, by_name, own_parts
from mini_kv.course.finale.random_workload import RandomWorkload
from mini_kv.course.finale.steps import COMPARED, Run
from mini_kv.course.given.correct_managers import other_hashes
from mini_kv.course.given.faulty_parts import AllOrNothing, LetsTheNextPass, TurnsTheList, hashes_without_parents
from mini_kv.course.labkit.lab import LabPart
from mini_kv.course.labkit.learner_parts import OwnParts

WORKLOAD = RandomWorkload(454)
"""One of the act *Dice instead of a model*. Its pool has 13 blocks. Its requests have neither salts nor images."""
CHANGED = {
    "turns the list": ("queue", TurnsTheList),
    "all or nothing": ("full_attention", AllOrNothing),
    "no parent": ("hasher", hashes_without_parents),
    "lets the next pass": ("scheduler", LetsTheNextPass),
    "other hashes": ("hasher", other_hashes),
}
"""Four wrong parts and a right one, each with its place."""
OWN: dict[str, tuple[str, Any]] = {
    "queue": ("lab-02", FreeKVCacheBlockQueue),
    "hasher": ("lab-04", get_request_block_hasher),
    "full_attention": ("lab-07", FullAttentionManager),
    "scheduler": ("lab-11", Scheduler),
}
"""The lab and the engine's part of each place in this workload."""


def _parts_with(names: Collection[str]) -> dict[str, Found]:
    """Return the four parts, with these changes. Raises `ValueError` with the known names for an unknown one."""
    unknown = [name for name in names if name not in CHANGED]
    if unknown:
        raise ValueError(f"no part {unknown[0]!r}; there are: {', '.join(CHANGED)}")
    values = {place: part for place, (_, part) in OWN.items()} | dict(CHANGED[name] for name in names)
    found = [_found(LabPart(lab, own.__name__, place), values[place]) for place, (lab, own) in OWN.items()]
    return by_name(found)


def _found(part: LabPart, value: Any) -> Found:
    return Found(part, value, f"{value.__module__.rpartition('.')[2]}.py", inspect.getsourcelines(value)[1])


@cache
def _engines_run() -> Run:
    """Return the run of the engine's own parts, to the end."""
    return Run(WORKLOAD).complete()


@dataclass(frozen=True, slots=True)
class Swapped:
    """The comparison after one part has been replaced by the engine's own."""

    sentence: str
    owners: Mapping[str, str]
    """The owner of each part."""
    is_right: bool

    def _repr_html_(self) -> str:
        cell = '<td style="text-align:left;padding:.1em 1.5em .1em 0">'
        rows = "".join(f"<tr>{cell}{html.escape(part)}</td>{cell}{who}</td></tr>" for part, who in self.owners.items())
        return f"<table>{rows}</table><p><b>{html.escape(self.sentence)}</b></p>"


class DivergenceDemo:
    """A run on some changed parts, until a step differs from the engine's own run."""

    def __init__(self, *names: str) -> None:
        """Run. `names`: keys of `CHANGED`. Raises `ValueError` for an unknown one."""
        self.names, self.parts = names, _parts_with(names)
        self.reference = _engines_run()
        self.run = Run(WORKLOAD, own_parts(self.parts.values()))
        self.divergence = self.run.first_divergence(self.reference)

    @cached_property
    def difference(self) -> Difference | None:
        """The first step that differs, and the part at fault."""
        if self.divergence is None:
            return None
        blame = Search(self.run, self.reference, self.parts).blame()
        return Difference(self.run, self.parts, self.divergence, blame)

    @property
    def report(self) -> str:
        """What the finale prints about the run: what differs first, the part at fault, and both sides of the step."""
        if self.difference is None:
            return f"{len(self.run.steps)} steps: the same cache, batches and tokens as mini_kv's."
        return "\n".join([*self.difference.said, "", *self.difference.both_sides])

    @property
    def first_steps(self) -> dict[str, int]:
        """The first step in which each thing differs, if both runs go on to the end."""
        first: dict[str, int] = {}
        ended = Run(WORKLOAD, self.run.own).complete()
        for mine, its in zip(ended.steps, self.reference.steps, strict=False):
            for noun, of in COMPARED.items():
                if of(mine) != of(its):
                    first.setdefault(noun, mine.number)
        return first

    def sides(self, more: int = 0) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the engine's run and the learner's as stories, `more` steps beyond the first that differs."""
        at = self.divergence.its.number if self.divergence else len(self.reference.steps)
        its, mine = (story_until(WORKLOAD, own, at + more) for own in (OwnParts(), self.run.own))
        changed = f"Changed: {', '.join(self.names)}"
        return {**its, "title": "The engine's parts", "at": at}, {**mine, "title": changed, "at": at}

    def swaps(self) -> dict[str, Swapped]:
        """Return the comparison for each replaced part. The first has none replaced."""
        return {"none": self._swapped(None), **{name: self._swapped(name) for name in self.parts}}

    def _swapped(self, replaced: str | None) -> Swapped:
        found = {name: each for name, each in self.parts.items() if name != replaced}
        run = self.run.again(own_parts(found.values()), self.run.limit)
        divergence = run.first_divergence(self.reference)
        owners = {name: "mini_kv" if name == replaced else "yours" for name in self.parts}
        if divergence is None:
            return Swapped(f"{len(run.steps)} steps, all equal to the engine's.", owners, True)
        return Swapped(f"Step {divergence.its.number} differs: {divergence.what}.", owners, False)


def engines_story() -> dict[str, Any]:
    """Return the whole run of the engine's own parts, as a story."""
    return {**story_until(WORKLOAD, OwnParts(), len(_engines_run().steps)), "title": "Forty requests", "at": 7}


def engines_side() -> dict[str, Any]:
    """Return the engine's side of the run in which a queue turns the list, up to the first hit that is lost."""
    return DivergenceDemo("turns the list").sides(more=6)[0]


def learners_side() -> dict[str, Any]:
    """Return the learner's side of the same steps."""
    return DivergenceDemo("turns the list").sides(more=6)[1]

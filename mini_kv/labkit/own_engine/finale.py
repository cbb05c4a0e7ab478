"""The finale: the learner's parts through four rush hours, compared step by step with the engine's own.

In each step these must be equal: the tokens that were found, the requests that ran, the state of the cache, the new
tokens, and the logits that they were chosen from.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from mini_kv.labkit import LabTodo
from mini_kv.labkit.lab import Lab
from mini_kv.labkit.learner_parts import OwnParts
from mini_kv.labkit.own_engine.blame import Search
from mini_kv.labkit.own_engine.found import Found, find_parts, last_line, own_parts, short
from mini_kv.labkit.own_engine.rush_hour import Hour, Rush, Step
from mini_kv.labkit.own_engine.trial import STEP_LIMIT_S, TOLERANCE, first_cause
from mini_kv.labkit.time_limit import TookTooLongError
from mini_kv.viz.text import draw_state


@dataclass(slots=True)
class Act:
    """One run of a rush hour: its steps, and its error."""

    hour: Hour
    own: OwnParts = field(default_factory=OwnParts)
    limit: float = STEP_LIMIT_S
    steps: list[Step] = field(default_factory=list)
    error: BaseException | None = None
    rush: Rush | None = None

    def again(self, own: OwnParts, limit: float) -> "Act":
        """Return a run of the same rush hour on other parts."""
        return Act(self.hour, own, limit)

    def run(self) -> Iterator[Step]:
        """Yield the steps, and end at an error."""
        try:
            self.rush = Rush(self.hour, self.own, self.limit)
            for step in self.rush.steps():
                self.steps.append(step)
                yield step
        except (Exception, SystemExit, TookTooLongError) as error:
            self.error = first_cause(error)

    def film(self) -> dict[str, Any]:
        """Return the story of the pool. It ends where the run ended."""
        assert self.rush is not None
        return {**(self.rush.live.recorded() or {}), "title": f"The rush hour of seed {self.hour.seed}"}

    def agrees_with(self, reference: "Act") -> bool:
        """Run until a step differs from the other run's. Return whether none differs."""
        return self.first_difference(reference) is None

    def first_difference(self, reference: "Act") -> "Difference | None":
        """Run until a step differs from the other run's, and return both steps."""
        hashes, twins = Numbering(), Numbering()
        for step, its in zip(self.run(), reference.steps, strict=False):
            what = differing(step, its)
            if not what and hashes.of(step) != twins.of(its):
                what = "the cached blocks"
            if what:
                return Difference(what, step, its)
        if self.error is not None or len(self.steps) < len(reference.steps):
            return Difference("it ends early", None, reference.steps[len(self.steps)])
        return None


class Numbering:
    """Numbers block hashes in the order of their first use: two right engines may hash differently."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def of(self, step: Step) -> list[int | None]:
        """Return the number of each block's hash. `None`: the block is not cached."""
        hashes = (block.block_hash for block in step.frame.blocks)
        return [None if each is None else self._numbers.setdefault(each, len(self._numbers)) for each in hashes]


@dataclass(frozen=True, slots=True)
class Difference:
    """The first step that differs."""

    what: str
    mine: Step | None
    """`None`: there is no such step."""
    its: Step

    def lines(self) -> list[str]:
        """Return both sides of the step, as text."""
        lines = [f"Step {self.its.number} differs: {self.what}."]
        for owner, step in (("mini_kv", self.its), ("yours", self.mine)):
            if step is None:
                continue
            lines += ["", f"{owner}:", *(f"  {line}" for line in step.lines)]
            lines += [f"  {line}" for line in draw_state(step.frame)]
            if self.what == "the tokens":
                lines += [f"  {name}: token {', '.join(map(str, ids))}" for name, ids in step.token_ids.items()]
        return lines


def differing(step: Step, its: Step) -> str:
    """Return what differs between two steps, or an empty string. `Act.first_difference` compares the block hashes."""
    if step.lookups != its.lookups:
        return "the tokens that were found"
    if step.scheduled != its.scheduled:
        return "the requests that ran"
    if [block.ref_cnt for block in step.frame.blocks] != [block.ref_cnt for block in its.frame.blocks]:
        return "the references"
    if step.frame.tables != its.frame.tables:
        return "the block tables"
    if step.frame.free_order != its.frame.free_order:
        return "the free queue"
    if step.token_ids != its.token_ids:
        return "the tokens"
    if step.logits.keys() != its.logits.keys():
        return "the requests that got logits"
    pairs = ((row, its.logits[name]) for name, row in step.logits.items())
    if not all(float((row - other).abs().max()) <= TOLERANCE for row, other in pairs):  # NaN is no small number
        return "the logits"
    return ""


def report(act: Act, reference: Act, parts: Mapping[str, Found]) -> tuple[list[str], bool]:
    """Run the act. Return what happened, and whether it was right."""
    difference = act.first_difference(reference)
    if difference is None:
        num_tokens = sum(len(ids) for step in act.steps for ids in step.token_ids.values())
        return [
            f"{len(act.steps)} steps, {num_tokens} tokens: the same cache, batches, words and logits as mini_kv's."
        ], True
    lines = difference.lines() if act.error is None else what_broke(act, parts)
    return [*lines, "", *Search(act, reference, parts, "the run").lines()], False


def what_broke(act: Act, parts: Mapping[str, Found]) -> list[str]:
    """Return the error, and the learner's line that was running."""
    error = act.error
    assert error is not None
    what = f"{type(error).__name__}: {error}".removesuffix(": ")
    if isinstance(error, TookTooLongError):
        what = f"it did not return within {act.limit} s"
    elif isinstance(error, LabTodo):
        what = f"still TODO: {error}"
    line = last_line(error, {each.source for each in parts.values()})
    at = f"at {short(line[0])}:{line[1]}  {line[2]}" if line else "in mini_kv's code, with a value from yours"
    return [f"Your engine stopped in step {len(act.steps) + 1}: {what}", f"  {at}"]


def numbers(act: Act) -> list[str]:
    """Return a table: the act's own numbers beside those of engines that have less."""
    assert act.rush is not None
    longest = max(len(step_tokens(act.rush, text)) for text in act.rush.texts.values())
    pool = act.hour.config.block_size * ((act.hour.config.num_blocks or 1) - 1)
    others = {
        "no prefix caching": replace(act.hour, enable_caching=False),
        f"rows of {longest} tokens": replace(act.hour, enable_caching=False, max_num_seqs=max(1, pool // longest)),
        "one at a time": replace(act.hour, max_num_seqs=1),
    }
    rows = {"yours": act}
    for name, hour in others.items():
        rows[name] = Act(hour)
        for _ in rows[name].run():
            pass
    head = f"{'':<22}{'steps':>7}{'computed':>10}{'found':>8}{'preempted':>11}{'mean wait':>11}"
    return [head, *(_row(name, each) for name, each in rows.items())]


def step_tokens(rush: Rush, text: str) -> Sequence[int]:
    """Return the tokens of a text."""
    assert rush.engine.tokenizer is not None
    return rush.engine.tokenizer.encode(text)


def _row(name: str, act: Act) -> str:
    rush = act.rush
    assert rush is not None
    stats = rush.engine.stats
    wait = sum(rush.waits.values()) / len(rush.waits)
    cells = f"{len(act.steps):>7}{stats.num_scheduled_tokens:>10}{stats.recent_requests.hit_rate:>8.0%}"
    return f"{name:<22}{cells}{rush.engine.scheduler.num_preemptions:>11}{wait:>11.1f}"


@dataclass(frozen=True, slots=True)
class Scene:
    """An act's title, its rush hour, and the places whose parts cannot play in it, each with the reason."""

    title: str
    hour: Hour
    left_out: Mapping[str, str]

    def cast(self, found: Sequence[Found]) -> list[Found]:
        """Return the parts, without those that cannot play."""
        return [
            replace(each, value=None, why=self.left_out[each.part.goes_to])
            if each.value is not None and each.part.goes_to in self.left_out
            else each
            for each in found
        ]


KERNELS = dict.fromkeys(("write_kernel", "decode_kernel"), "in the last act: the interpreter is slow")
NO_FORKS = dict.fromkeys(("slots", "scheduler"), "its lab has no forks")


def scenes(seed: int) -> list[Scene]:
    """Return the acts of a seed."""
    return [
        Scene("One group of layers", Hour(seed), KERNELS),
        Scene("A model with windows", Hour(seed, windows=True), KERNELS),
        Scene("Several answers to one prompt", Hour(seed, forks=True), KERNELS | NO_FORKS),
        Scene("Six requests on your kernels", Hour(seed, num_visits=6), {}),
    ]


class Finale:
    """All acts on the learner's parts."""

    def __init__(self, choice: str, labs: Sequence[Lab], seed: int) -> None:
        """Set `starter`, `solution` or a folder, the labs, and the seed of the requests. Nothing runs yet."""
        self._choice, self._labs, self._seed = choice, labs, seed
        self.first: Act | None = None
        """The first act, once it has run."""
        self.is_right = True
        """Whether all acts so far were equal to the engine's own."""

    def lines(self) -> Iterator[str]:
        """Play the acts, and yield the report line by line."""
        shown: set[str] = set()
        for number, scene in enumerate(scenes(self._seed), start=1):
            model = "windows" if scene.hour.windows else "one group"
            found = scene.cast(find_parts(self._choice, self._labs, Path.cwd(), model))
            parts = {str(each.part): each for each in found if each.value is not None}
            yield f"Act {number}. {scene.title}: {len(parts)} parts from the labs"
            for each in found:
                line = f"  {each.part!s:<38} {each.place if each.value is not None else f'mini_kv: {each.why}'}"
                if line not in shown:
                    shown.add(line)
                    yield line
            reference = Act(scene.hour)
            for _ in reference.run():
                pass
            act = reference.again(own_parts(found), reference.limit)
            self.first = self.first or act
            lines, is_right = report(act, reference, parts)
            yield from ("", *lines, "")
            self.is_right = self.is_right and is_right
            if is_right and number == 1:
                yield from (*numbers(act), "")

"""The finale: the learner's parts through a rush hour, compared step by step with the engine's own.

Two acts: the small model with one group of layers, then the one with windows. In each step, the calls to the cache, the
state of the cache, the tokens and their logits must be equal.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from mini_kv.labkit import LabTodo
from mini_kv.labkit.learner_parts import OwnParts
from mini_kv.labkit.own_engine.blame import Search
from mini_kv.labkit.own_engine.found import Found, last_line, own_parts, short
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

    def agrees_with(self, reference: "Act") -> bool:
        """Run until a step differs from the other run's. Return whether none differs."""
        return self.first_difference(reference) is None

    def first_difference(self, reference: "Act") -> "Difference | None":
        """Run until a step differs from the other run's, and return both steps."""
        for step, its in zip(self.run(), reference.steps, strict=False):
            if what := differing(step, its):
                return Difference(what, step, its)
        if self.error is not None or len(self.steps) < len(reference.steps):
            return Difference("it ends early", None, reference.steps[len(self.steps)])
        return None


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
    """Return what differs between two steps, or an empty string."""
    if step.lines != its.lines:
        return "the calls to the cache"
    if step.frame != its.frame:
        return "the cache after it"
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
            f"{len(act.steps)} steps, {num_tokens} tokens: the same calls, cache, words and logits as mini_kv's."
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


def run_acts(found_by_act: Mapping[bool, Sequence[Found]], seed: int) -> Iterator[tuple[bool, Act, list[str], bool]]:
    """Run both acts. Yield whether the model has windows, the run, the report, and whether it was right."""
    for windows, found in found_by_act.items():
        reference = Act(Hour(seed, windows))
        for _ in reference.run():
            pass
        parts = {str(each.part): each for each in found if each.value is not None}
        act = Act(reference.hour, own_parts(found))
        lines, is_right = report(act, reference, parts)
        yield windows, act, lines, is_right

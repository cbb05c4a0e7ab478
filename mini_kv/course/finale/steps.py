"""The steps of a run, and the first step in which two runs differ. Imports no torch.

Two right engines may name a block by different hashes. So hashes are compared by the order of their first use.
"""

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, Protocol, Self

from mini_kv.core.request import Request
from mini_kv.core.sched.output import SchedulerOutput
from mini_kv.course.labkit.learner_parts import OwnParts
from mini_kv.course.labkit.time_limit import TookTooLongError, each_in_time
from mini_kv.story.frame import Frame
from mini_kv.story.story_text import story
from mini_kv.story.text import draw_state
from mini_kv.story.traced_manager import Span

STEP_LIMIT_S = 30
"""Seconds that an engine may compute for a step. The slowest right one needs a few."""
TOLERANCE = 0.001
"""Largest difference of two logits that count as equal. Sums in another order give 0.00001 after 100 tokens."""


@dataclass(frozen=True, slots=True)
class Step:
    """One step of an engine, and its state afterwards."""

    number: int
    spans: Sequence[Span] = ()
    """The calls to the cache."""
    found: dict[str, int] = field(default_factory=dict)
    """The tokens that each newly admitted request found in the cache."""
    scheduled: list[tuple[str, int]] = field(default_factory=list)
    """The requests that ran, in the order of the batch, and the tokens computed for each."""
    messages: list[str] = field(default_factory=list)
    """What the scheduler tells the worker, as text. Empty in a run with a model."""
    waiting: list[str] = field(default_factory=list)
    """The waiting requests after the step, first in line first."""
    num_preemptions: int = 0
    """Preemptions since the beginning."""
    counters: dict[str, float] | None = field(default_factory=dict)
    """The counters of pool and cache that a user can read. `None`: they were not recorded."""
    frame: Frame = field(default_factory=lambda: Frame((), {}, []))
    """Blocks, block tables and free queue after the step."""
    groups: list[tuple[str, ...]] = field(default_factory=list)
    """The layers of each group. Empty in a run with a model."""
    statuses: list[str] = field(default_factory=list)
    """The status of each waiting request and its preemptions, as text. Empty in a run with a model."""
    endings: dict[str, str] = field(default_factory=dict)
    """The reason why each request of the batch ended, or that it did not. Empty in a run with a model."""
    home: list[str] = field(default_factory=list)
    """The entries of the second home, least recently used first. Empty in a run without one."""
    token_ids: dict[str, list[int]] = field(default_factory=dict)
    """The new tokens of each request or sample."""
    logits: dict[str, Any] | None = field(default_factory=dict)
    """The tensors that they were chosen from. Empty in a run without a model. `None`: they were not recorded."""

    @property
    def lines(self) -> list[str]:
        """The calls to the cache, each with what it found, allocated, evicted or freed."""
        return story(self.spans)


class Engine(Protocol):
    """An engine that runs one workload."""

    def steps(self) -> Iterator[Step]:
        """Yield the steps until no request is left. Raises whatever the engine raises."""

    def story(self) -> dict[str, Any]:
        """Return the story of the pool so far, for the figure."""


class Workload(Protocol):
    """Requests, and the sizes of the engine that runs them."""

    def engine(self, own: OwnParts) -> Engine:
        """Return an engine with these parts."""


@dataclass(slots=True)
class Run:
    """One run of a workload: its steps, and its error."""

    workload: Workload
    own: OwnParts = field(default_factory=OwnParts)
    limit: float = STEP_LIMIT_S
    """Seconds that a step may compute. The first one includes the building of the engine."""
    steps: list[Step] = field(default_factory=list)
    error: BaseException | None = None
    engine: Engine | None = None
    each_step: Callable[[int], None] = lambda number: None
    """Is told the number of each step that was made."""

    def again(self, own: OwnParts, limit: float) -> Self:
        """Return a run of the same workload on other parts."""
        return type(self)(self.workload, own, limit)

    def in_steps(self) -> Generator[Step, None, None]:
        """Yield the steps, and end at an error."""
        try:
            for step in each_in_time(self._steps(), self.limit):
                self.steps.append(step)
                self.each_step(len(self.steps))
                yield step
        except (Exception, SystemExit, TookTooLongError) as error:
            self.error = _first_cause(error)

    def _steps(self) -> Iterator[Step]:
        if self.engine is None:
            self.engine = self.workload.engine(self.own)
        yield from self.engine.steps()

    def complete(self) -> Self:
        """Run to the end without a time limit, and return the run. For the engine's own parts: an error is raised."""
        self.steps += self._steps()
        return self

    @property
    def answers(self) -> dict[str, list[int]]:
        """The tokens of each request, from all steps."""
        answers: dict[str, list[int]] = {}
        for step in self.steps:
            for name, token_ids in step.token_ids.items():
                answers.setdefault(name, []).extend(token_ids)
        return answers

    def agrees_with(self, reference: "Run") -> bool:
        """Run until a step differs from the other run's. Return whether none differs."""
        return self.first_divergence(reference) is None

    def first_divergence(self, reference: "Run") -> "Divergence | None":
        """Run until a step differs from the other run's, and return both steps."""
        hashes, twins = Numbering(), Numbering()
        with closing(self.in_steps()) as steps:
            for step, its in zip(steps, reference.steps, strict=False):
                numbers, twin_numbers = hashes.of(step), twins.of(its)
                what = differing(step, its) or (HASHES if numbers != twin_numbers else "")
                if what:
                    of = COMPARED.get(what)
                    values = (of(step), of(its)) if of else (numbers, twin_numbers)
                    return Divergence(what, step, its, None if what == "the logits" else contrast(what, *values))
        if self.error is not None or len(self.steps) < len(reference.steps):
            return Divergence("it ends early", None, reference.steps[min(len(self.steps), len(reference.steps) - 1)])
        return None


class Numbering:
    """Numbers block hashes in the order of their first use."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def of(self, step: Step) -> list[int | None]:
        """Return the number of each block's hash. `None`: the block is not cached."""
        hashes = (block.block_hash for block in step.frame.blocks)
        return [None if each is None else self._numbers.setdefault(each, len(self._numbers)) for each in hashes]


def _by_table(step: Step) -> dict[str, list[int]]:
    """Return the block tables, by request and group of layers."""
    tables = step.frame.tables.items()
    return {
        f"{name}, group {number}" if len(groups) > 1 else name: blocks
        for name, groups in tables
        for number, blocks in enumerate(groups, start=1)
    }


COMPARED: dict[str, Callable[[Step], Any]] = {
    "the groups of layers": lambda step: step.groups,
    "the tokens that were found": lambda step: step.found,
    "the requests that ran": lambda step: step.scheduled,
    "the references": lambda step: [block.ref_cnt for block in step.frame.blocks],
    "the block tables": _by_table,
    "the free queue": lambda step: step.frame.free_order,
    "the worker's orders": lambda step: step.messages,
    "the second home": lambda step: step.home,
    "the waiting requests": lambda step: step.waiting,
    "the status of the waiting requests": lambda step: step.statuses,
    "the reasons why requests ended": lambda step: step.endings,
    "the number of preemptions": lambda step: step.num_preemptions,
    "the counters": lambda step: step.counters,
    "the tokens": lambda step: step.token_ids,
    "the requests that got logits": lambda step: None if step.logits is None else sorted(step.logits),
}
"""What must be equal in both steps, in the order in which a difference is reported: what is wrong first comes first."""


def differing(step: Step, its: Step) -> str:
    """Return what differs between two steps, or an empty string. What a recorded step lacks does not count.

    `Run.first_divergence` compares the block hashes.
    """
    for noun, of in COMPARED.items():
        if of(its) is not None and of(step) != of(its):
            return noun
    pairs = ((step.logits[name], row) for name, row in (its.logits or {}).items()) if step.logits is not None else ()
    if not all(float((row - other).abs().max()) <= TOLERANCE for row, other in pairs):  # NaN is no small number
        return "the logits"
    return ""


@dataclass(frozen=True, slots=True)
class Contrast:
    """The first value that differs between two steps, among the values beside it."""

    where: str
    """The request whose values these are, or an empty string."""
    names: list[str]
    mine: list[str]
    its: list[str]
    at: int
    """The place of the value that differs, in all three lists."""
    unit: str = "{}"

    def sentence(self, host: str, own: str) -> str:
        """Return where the value is, and both sides of it. `host`, `own`: the names of the other engine and of this."""
        name = ", ".join(filter(None, (self.where, self.names[self.at])))
        its, mine = (value[self.at] and self.unit.format(value[self.at]) for value in (self.its, self.mine))
        return f"{name}{name and ': '}{its or 'nothing'} in {host}, {mine or 'nothing'} in {own}."


UNITS = {
    "the tokens that were found": "{} tokens",
    "the block tables": "block {}",
    "the free queue": "block {}",
    "the block hashes": "hash {}",
}
HASHES = "the block hashes"
"""They are numbered in the order of their first use."""
BY_BLOCK = ("the references", HASHES)
"""What has a value per block of the pool."""


def contrast(what: str, mine: Any, its: Any) -> Contrast:
    """Return the first value that differs between two sides of `what`: it may be in a list, or in a request's."""
    path: list[str] = []
    while True:
        if isinstance(its, dict):
            names = [str(key) for key in its | mine]
            left, right = ([side.get(key) for key in its | mine] for side in (mine, its))
        elif isinstance(its, list):
            noun, first = ("block", 0) if what in BY_BLOCK else ("place", 1)
            noun = noun if path else noun.capitalize()
            names = [f"{noun} {at}" for at in range(first, first + max(len(mine), len(its)))]
            left, right = ([*side, *[None] * (len(names) - len(side))] for side in (mine, its))
        else:
            names, left, right = [""], [mine], [its]
        at = next((at for at, (a, b) in enumerate(zip(left, right, strict=True)) if a != b), 0)
        if not (isinstance(left[at], list) and isinstance(right[at], list)):
            return Contrast(
                ", ".join(path), names, [*map(_shown, left)], [*map(_shown, right)], at, UNITS.get(what, "{}")
            )
        path.append(names[at])
        mine, its = left[at], right[at]


def _shown(value: Any) -> str:
    """Return a value as a reader sees it; "" if there is none."""
    if isinstance(value, (list, tuple)):
        return " ".join(map(str, value)) or "nothing"
    return "" if value is None else str(value)


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first step that differs."""

    what: str
    mine: Step | None
    """`None`: there is no such step."""
    its: Step
    contrast: Contrast | None = None
    """The first value that differs. `None`: the logits do, or a step is missing."""

    def sentence(self, host: str, own: str = "yours") -> str:
        """Return the step, what differs in it, and the first value that does, with names for both engines."""
        values = f" {self.contrast.sentence(host, own)}" if self.contrast else ""
        numbered = " Hashes are numbered by their first use." if self.what == HASHES else ""
        return f"Step {self.its.number} differs: {self.what}.{values}{numbered}"

    def both_sides(self, host: str) -> list[str]:
        """Return the calls of the step on both sides, and the cache after them, as text."""
        lines: list[str] = []
        of = COMPARED.get(self.what)
        for owner, step in ((host, self.its), ("yours", self.mine)):
            if step is None:
                continue
            lines += ["", f"{owner}:", *(f"  {line}" for line in step.lines)]
            lines += [f"  {line}" for line in draw_state(step.frame)]
            if of is not None and self.what not in DRAWN:
                lines += [f"  {self.what.removeprefix('the ')}: {of(step)}"]
        return lines[1:]


DRAWN = ("the references", "the block tables", "the free queue")
"""What the drawing of a step shows already."""


def plan_lines(output: SchedulerOutput) -> list[str]:
    """Return what a plan tells the worker, one line per request. New blocks that are none may be told in two ways."""
    lines = [
        f"{new.request_id}: computed {new.num_computed_tokens}, tokens {list(new.token_ids)}, blocks {new.block_ids}"
        for new in output.scheduled_new_reqs
    ]
    for request_id, new_block_ids, num_computed_tokens in output.scheduled_cached_reqs:
        blocks = new_block_ids if new_block_ids and any(new_block_ids) else "none"
        lines.append(f"{request_id}: computed {num_computed_tokens}, new blocks {blocks}")
    lines += [f"{name}: drafts {drafts}" for name, drafts in output.scheduled_spec_decode_tokens.items()]
    for verb, names in (("preempted", output.preempted_req_ids), ("ended", output.finished_req_ids)):
        lines += [f"{name}: {verb}" for name in sorted(set(names))]
    return sorted(lines)


def found_by(spans: Sequence[Span], scheduled: Sequence[tuple[str, int]]) -> dict[str, int]:
    """Return the tokens that each newly admitted request found. Lookups of refused requests do not count."""
    ran = dict(scheduled)
    lookups = (span for span in spans if span.call == "get_computed_blocks" and span.request_id in ran)
    return {str(span.request_id): span.result for span in lookups if isinstance(span.result, int)}


def names_of(requests: Sequence[Request]) -> list[str]:
    """Return the ids of these requests."""
    return [request.request_id for request in requests]


def _first_cause(error: BaseException) -> BaseException:
    """Return the error that made a step fail, if `error` was raised while the step's requests were being aborted.

    Python keeps the first error as the context of the later one. A context that the learner's code caught itself never
    reached the engine's loop, so it is not the cause.
    """
    while error.__context__ is not None and _reached_the_loop(error.__context__):
        error = error.__context__
    return error


def _reached_the_loop(error: BaseException) -> bool:
    """Return whether the frame that caught the error belongs to `LLMEngine`."""
    trace = error.__traceback__
    return trace is not None and trace.tb_frame.f_globals["__name__"] == "mini_kv.engine.llm_engine"

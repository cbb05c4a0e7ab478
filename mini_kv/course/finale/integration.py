"""The finale: checks that run many workloads on the learner's parts, and compare each step with the engine's own.

In each step these must be equal: the tokens that were found, the requests that ran, the state of the cache, the new
tokens, and with a model the logits that they were chosen from. Users know a check as an act.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

from mini_kv.course.finale.answered_workload import AnsweredWorkload
from mini_kv.course.finale.blame import Search, what_broke
from mini_kv.course.finale.learner_files import Found, by_name, find_parts, own_parts, why_not
from mini_kv.course.finale.offload_workload import OffloadWorkload
from mini_kv.course.finale.random_workload import PrefillWorkload, random_workloads
from mini_kv.course.finale.steps import Divergence, Run, Step, Workload
from mini_kv.course.labkit.lab import Lab, LabPart
from mini_kv.course.labkit.learner_parts import OwnParts
from mini_kv.installer import pip

NUM_HOURS = 30
"""Workloads of a random check. Each takes about a tenth of a second, so that all checks end within a minute."""
WINDOWS = ((2,), (1, 3), (4, 2), (5, 1))
"""Windows of the models in the check with windows, in blocks."""


@dataclass(frozen=True, slots=True)
class Check:
    """An act of the finale: its title, its workloads, and the places whose parts are the labs'."""

    title: str
    workloads: Sequence[Workload]
    model: str
    """The kind of model, as `find_parts` knows it."""
    left_out: Collection[str]
    """The places without a part of the labs."""
    alone: Collection[str] = ()
    """The places whose parts are also run alone, in turn, with the engine's own around them."""
    others: Mapping[str, Workload] = field(default_factory=dict)
    """The first workload's requests on engines that have less, by name."""
    has_model: bool = False
    compared: str = "cache, batches and tokens"
    reference: Callable[[Workload], Run] = lambda workload: Run(workload).complete()
    """Returns the run that a run of this workload is compared with."""
    host: str = "mini_kv"
    """The engine that made the reference."""
    own: str = "mini_kv"
    """The engine whose parts replace missing ones."""

    def parts(self, choice: str, labs: Sequence[Lab], invocation_dir: Path) -> list[Found]:
        """Return the parts of the labs that have a place in this check."""
        plays = [lab for lab in labs if not all(self.leaves_out(part) for part in lab.parts)]
        found = find_parts(choice, plays, invocation_dir, self.model, in_finale=True)
        return [replace(each, value=None) if self.leaves_out(each.part) else each for each in found]

    def leaves_out(self, part: LabPart) -> bool:
        """Return whether the engine's own part is used in this check, whatever the learner has."""
        return bool(why_not(part, self.model, in_finale=True)) or part.goes_to in self.left_out


PROMPTS = ("admit", "ref_counts", "hit_rate")
"""The places of lab-05, which admits prompts itself."""
COUNTS = ("counts", "frees")
"""The places of lab-03. Its `free_blocks` ignores block hashes, so it runs where nothing is cached."""
CACHE = ("queue", "counts", "index", "pool", "hasher", "full_attention", "slots", "lookup")
"""The places of labs 02 to 07."""
WHOLE = ("answer",)
"""The place of lab-17, which is a whole cache."""
WITH_WINDOWS = ("sliding_window", "coordinator", "group_layers")
"""The places of lab-12."""
HOME = ("home_store", "home_lease", "home_release", "promote", "crossover")
"""The places of lab-14."""
ON_DICE = (*PROMPTS, *HOME, *WHOLE, "policy", "page_size", "frees")
"""Places that no model has."""
KERNELS = ("write_kernel", "decode_kernel")
"""The interpreter of kernels is slow: they run in one check."""
TENSORS = ("block_table", "slot_mapping", "write", "decode", "prefill", *KERNELS)
"""The places of labs 08 to 10, which only a model of mini_kv's has."""


def random_checks(seed: int, num_hours: int = NUM_HOURS) -> list[Check]:
    """Return the checks that need no model.

    Lab-11 has one group of layers and no drafts, so the engine's scheduler plans where there are others.
    """
    few = max(num_hours // 3, 1)
    plain, with_windows = random_workloads(seed, num_hours), random_workloads(seed, num_hours, WINDOWS)
    prompts = [PrefillWorkload(seed * 1000 + at) for at in range(few)]
    forks = [PrefillWorkload(seed * 1000 + at, WINDOWS[at % len(WINDOWS)], caching=False) for at in range(few)]
    homes = [OffloadWorkload(seed * 1000 + at) for at in range(few)]
    empty = [AnsweredWorkload(seed * 1000 + at) for at in range(num_hours)]
    drafts, lfu = random_workloads(seed, few, drafts=True), random_workloads(seed, few, policy=True)
    without = (*PROMPTS, *HOME, *WHOLE, "policy", "frees", *TENSORS)
    no_cache = (*CACHE[2:], *PROMPTS, *WHOLE, "stats", "scheduler", "policy")  # lab-05 has one group
    all_others = [each.name for each in fields(OwnParts) if each.name not in WHOLE]
    return [
        Check(
            "Prompts without a scheduler",
            prompts,
            "one group",
            ("scheduler", "policy", "frees", *HOME, *WHOLE, *TENSORS),
        ),
        Check("Dice instead of a model", plain, "one group", without, CACHE),
        Check("Dice, and layers with windows", with_windows, "windows", (*without, "scheduler"), WITH_WINDOWS),
        Check("Dice, and drafts", drafts, "one group", (*without, "scheduler")),
        Check(
            "Dice, and an eviction policy",
            lfu,
            "one group",
            (*PROMPTS, *HOME, *WHOLE, *TENSORS, *COUNTS, "queue", "pool"),
        ),
        Check(
            "Prompts, and a second home", homes, "one group", ("scheduler", "policy", "frees", *WHOLE, *TENSORS), HOME
        ),
        Check("Forks and windows, and no cache", forks, "one group", (*no_cache, *HOME, *TENSORS), COUNTS),
        Check("A cache from an empty file", empty, "one group", all_others, compared="hits, tables, queue and hashes"),
    ]


def model_checks(seed: int) -> list[Check]:
    """Return the checks with a model. They need torch. Labs 06 and 11 have no forks."""
    from mini_kv.course.finale.model_workload import ModelWorkload

    workload = ModelWorkload(seed)
    with_windows, forks, large, few = (
        replace(workload, windows=True, num_blocks=106),
        replace(workload, forks=True),
        replace(workload, large_scores=True, num_requests=12),
        replace(workload, large_scores=True, num_requests=6, longest_answer=6),
    )
    without = (*KERNELS, *ON_DICE)
    check = partial(Check, has_model=True, compared="cache, batches, words and logits")
    return [
        check("A model", [workload], "one group", without, others=workload.others()),
        check("A model with windows", [with_windows], "windows", (*without, "scheduler")),
        check("Several answers to one prompt", [forks], "one group", (*without, "slots", "scheduler")),
        check("A model with large scores", [large], "one group", without),
        check("Six requests on your kernels", [few], "one group", ON_DICE),
    ]


class Finale:
    """All checks of the learner's parts."""

    def __init__(
        self,
        choice: str,
        labs: Sequence[Lab],
        checks: Sequence[Check],
        tell: Callable[[str], None] = lambda name: None,
    ) -> None:
        """Set the checks. Nothing runs yet.

        Args:
            choice: `starter`, `solution` or a folder.
            labs: all labs.
            checks: the acts of the report.
            tell: is told of each run before it begins, and of each step of a run with a model.
        """
        self._choice, self._labs, self._checks, self._tell = choice, labs, checks, tell
        self._has_model = any(check.has_model for check in checks)
        self._shown: set[str] = set()
        self.story: dict[str, Any] | None = None
        """The story of the learner's pool in the first check with a model, or in the first one if none has a model."""
        self.num_played = self.num_equal = 0
        """Checks so far with a part of the learner's, and those that were equal to the engine's own."""

    def lines(self) -> Iterator[str]:
        """Run the checks, and yield the report line by line."""
        for number, check in enumerate(self._checks, start=1):
            yield from self._check(number, check)
        if not self._has_model:
            yield f"The acts with a model need PyTorch: {pip()} install torch"
        if self.num_played == 0:
            yield "No part is yours yet. Begin with a lab: mini-kv run 01"
        elif self.is_right:
            yield f"All {self.num_played} acts are right." if self.num_played > 1 else "The act is right."
        else:
            yield f"{self.num_equal} of {self.num_played} acts are right."

    @property
    def is_right(self) -> bool:
        """Whether all checks so far were equal to the engine's own."""
        return self.num_equal == self.num_played

    def _check(self, number: int, check: Check) -> Iterator[str]:
        found = check.parts(self._choice, self._labs, Path.cwd())
        all_parts = by_name(found)
        yield f"Act {number}. {check.title}: {len(all_parts)} part{'s' * (len(all_parts) != 1)} from the labs"
        for each in found:
            line = f"  {each.part!s:<38} {each.place if each.value is not None else f'{check.own}: {each.why}'}"
            if line not in self._shown and (each.part.never or not check.leaves_out(each.part)):
                self._shown.add(line)
                yield line
        if not all_parts:
            yield from ("Not played: no part is yours.", "")
            return
        self.num_played += 1
        runs: list[Run] = []
        for workload, parts in workloads_with_parts(check, all_parts):
            title = f"Act {number}, run {len(runs) + 1}"
            self._tell(title)
            if not runs or workload is not runs[-1].workload:
                reference = check.reference(workload)
            run = Run(workload, own_parts(parts.values()), each_step=partial(self._tell_step, check, title))
            runs.append(run)
            divergence = run.first_divergence(reference)
            if self.story is None and run.engine is not None and check.has_model == self._has_model:
                self.story = run.engine.story()
            if divergence is not None:
                yield from ("", *_what_differs(run, divergence, parts, check.host), "")
                if len(parts) < len(all_parts):
                    yield f"In this run {', '.join(parts)} played alone, and the other parts were {check.own}'s."
                yield from (*Search(run, reference, parts, host=check.own).lines(), "")
                return
        self.num_equal += 1
        num_steps = sum(len(run.steps) for run in runs)
        num_runs = f"{len(runs)} runs, " if len(runs) > 1 else ""
        yield from ("", f"{num_runs}{num_steps} steps: the same {check.compared} as {check.host}'s.", "")
        if check.others:
            yield from (*numbers(runs[0], check.others, self._tell), "")

    def _tell_step(self, check: Check, title: str, number: int) -> None:
        if check.has_model:  # the others' steps take a hundredth of a second
            self._tell(f"{title}, step {number}")


def workloads_with_parts(check: Check, parts: Mapping[str, Found]) -> Iterator[tuple[Workload, Mapping[str, Found]]]:
    """Yield each workload with all parts. Yield it again with one of those that run alone, in turn.

    A wrong part and a careful one can make a right run together.
    """
    isolated = [name for name, each in parts.items() if each.part.goes_to in check.alone]
    for number, workload in enumerate(check.workloads):
        yield workload, parts
        if isolated and len(parts) > 1:
            name = isolated[number % len(isolated)]
            yield workload, {name: parts[name]}


def _what_differs(run: Run, divergence: Divergence, parts: Mapping[str, Found], host: str) -> list[str]:
    if run.error is None:
        return divergence.lines(host)
    return what_broke(run.error, f"in step {len(run.steps) + 1}", run.limit, parts)


def numbers(run: Run, others: Mapping[str, Workload], tell: Callable[[str], None] | None = None) -> list[str]:
    """Return a table: the numbers of this run beside those of engines that have less. `tell`: is told of each."""
    rows = {"yours": run}
    for name, workload in others.items():
        if tell is not None:
            tell(name)
        rows[name] = Run(workload).complete()
    head = f"{'':<22}{'steps':>7}{'computed':>10}{'found':>8}{'preempted':>11}{'waited':>8}"
    return [head, *(_row(name, each.steps) for name, each in rows.items())]


def _row(name: str, steps: Sequence[Step]) -> str:
    computed = sum(num_tokens for step in steps for _, num_tokens in step.scheduled)
    found = sum(sum(step.found.values()) for step in steps)
    waited = sum(len(step.waiting) for step in steps)
    return f"{name:<22}{len(steps):>7}{computed:>10}{found:>8}{steps[-1].num_preemptions:>11}{waited:>8}"

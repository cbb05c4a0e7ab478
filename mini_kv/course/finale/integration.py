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
from mini_kv.course.finale.blame import Search
from mini_kv.course.finale.difference import Difference
from mini_kv.course.finale.hour_workload import HourWorkload
from mini_kv.course.finale.learner_files import Found, by_name, find_parts, own_parts, short, why_not
from mini_kv.course.finale.offload_workload import OffloadWorkload
from mini_kv.course.finale.random_workload import PrefillWorkload, random_workloads
from mini_kv.course.finale.steps import Run, Workload
from mini_kv.course.labkit.lab import Lab, LabPart
from mini_kv.course.labkit.learner_parts import OwnParts

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


Numbers = tuple[str, int, int, int, int, int]
"""A name, and what a run of the same requests took: the columns of `numbers_as_text`."""


def random_checks(seed: int, num_hours: int = NUM_HOURS) -> list[Check]:
    """Return the checks that need no model.

    Lab-11 has one group of layers and no drafts, so the engine's scheduler plans where there are others.
    """
    few, hour = max(num_hours // 3, 1), HourWorkload(seed)
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
        Check("Dice instead of a model", [hour, *plain], "one group", without, CACHE, others=hour.others()),
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
        check("A model", [workload], "one group", without),
        check("A model with windows", [with_windows], "windows", (*without, "scheduler")),
        check("Several answers to one prompt", [forks], "one group", (*without, "slots", "scheduler")),
        check("A model with large scores", [large], "one group", without),
        check("Six requests on your kernels", [few], "one group", ON_DICE),
    ]


@dataclass(frozen=True, slots=True)
class Act:
    """A check that was made."""

    number: int
    check: Check
    num_runs: int = 0
    """Runs with the learner's parts. 0: none of the parts has a place in this check."""
    num_steps: int = 0
    difference: Difference | None = None

    @property
    def verdict(self) -> str:
        """One of `not played`, `right` and `differs`."""
        if not self.num_runs:
            return "not played"
        return "right" if self.difference is None else "differs"

    @property
    def lines(self) -> list[str]:
        """The verdict as text, and what differs."""
        title = f"Act {self.number}. {self.check.title}: {self.verdict}"
        if self.difference is not None:
            return [title, *(f"  {line}" for line in self.difference.said)]
        if self.verdict == "not played":
            return [title]
        num_runs = f"{self.num_runs} runs, " if self.num_runs > 1 else ""
        return [f"{title}, {num_runs}{self.num_steps} steps: the same {self.check.compared} as {self.check.host}'s"]


class Finale:
    """All checks of the learner's parts."""

    def __init__(
        self,
        choice: str,
        labs: Sequence[Lab],
        checks: Sequence[Check],
        tell: Callable[[str], None] = lambda name: None,
    ) -> None:
        """Find the parts. Nothing runs yet.

        Args:
            choice: `starter`, `solution` or a folder.
            labs: all labs.
            checks: the acts of the report.
            tell: is told of each run before it begins, and of each step of a run with a model.
        """
        self.checks, self._tell = checks, tell
        self._found = [check.parts(choice, labs, Path.cwd()) for check in checks]
        self._has_model = any(check.has_model for check in checks)
        self.acts: list[Act] = []
        """The checks that were made so far."""
        self.story: dict[str, Any] | None = None
        """The story of the learner's pool in the first check with a model, or in the first one if none has a model."""
        self._measured: tuple[Run, Mapping[str, Workload]] | None = None
        """The last run whose requests other engines can run, too."""

    @property
    def difference(self) -> Difference | None:
        """The first difference, if there is one."""
        return next((act.difference for act in self.acts if act.difference is not None), None)

    @property
    def num_played(self) -> int:
        """Checks so far with a part of the learner's."""
        return sum(act.verdict != "not played" for act in self.acts)

    @property
    def is_right(self) -> bool:
        """Whether all checks so far were equal to the engine's own."""
        return self.difference is None

    def lines(self, is_verbose: bool = False) -> Iterator[str]:
        """Make the checks, and yield the report line by line.

        `is_verbose`: with the parts that no run needs, and with both sides of each step that differs.
        """
        yield from (*self.parts(is_verbose), "")
        told: set[str] = set()
        for act in self.play():
            yield from (line for line in act.lines if line not in told)
            told.update(f"  {line}" for line in (act.difference.blame.lines if act.difference else ()))
            if is_verbose and act.difference is not None:
                yield from ("", *act.difference.both_sides, "")
        yield from self.ending()

    def parts(self, is_verbose: bool = False) -> list[str]:
        """Return a line per file with the parts that play, and one with those that do not, and why.

        `is_verbose`: also those that no run needs.
        """
        names: dict[tuple[str, str, str], list[str]] = {}
        without: set[str] = set()
        for check, found in zip(self.checks, self._found, strict=True):
            for each in found:
                if not each.part.never and check.leaves_out(each.part):
                    continue
                if not each.source and not each.part.never:
                    without.add(each.part.lab_id)
                elif is_verbose or not each.part.never:
                    why = "" if each.value is not None else f" ({check.own}'s: {each.why})"
                    file = short(each.source) if each.source else each.part.lab_id
                    said = names.setdefault((each.part.lab_id, file, why), [])
                    said += [each.part.name] * (each.part.name not in said)
        lines = [f"{file}: {', '.join(said)}{why}" for (_, file, why), said in sorted(names.items())]
        return [*lines, f"{', '.join(sorted(without))}: there is no file"] if without and lines else lines

    def play(self) -> Iterator[Act]:
        """Make the checks, and yield each as it ends."""
        for number, (check, found) in enumerate(zip(self.checks, self._found, strict=True), start=1):
            act = self._act(number, check, by_name(found))
            self.acts.append(act)
            yield act

    def ending(self) -> list[str]:
        """Return the last lines of the report: the numbers of the learner's cache if all is right, and the verdict."""
        if self.num_played == 0:
            return ["No part is yours yet. Begin with a lab: mini-kv run 01"]
        if not self.is_right:
            num_right = [act.verdict for act in self.acts].count("right")
            return ["", f"{num_right} of {self.num_played} acts are right."]
        numbers = self.numbers()
        lines = ["", *numbers_as_text(numbers)] if numbers else []
        return [*lines, "", f"All {self.num_played} acts are right." if self.num_played > 1 else "The act is right."]

    def numbers(self) -> list[Numbers]:
        """Return the numbers of the learner's run, and those of engines that have less. Costs a run of each."""
        if self._measured is None:
            return []
        run, others = self._measured
        return [numbers_of("yours", run), *(numbers_of(name, Run(less).complete()) for name, less in others.items())]

    def _act(self, number: int, check: Check, all_parts: Mapping[str, Found]) -> Act:
        num_runs = num_steps = 0
        last: Run | None = None
        for workload, parts in workloads_with_parts(check, all_parts) if all_parts else ():
            num_runs += 1
            title = f"Act {number}, run {num_runs}"
            self._tell(title)
            if last is None or workload is not last.workload:
                reference = check.reference(workload)
            run = last = Run(workload, own_parts(parts.values()), each_step=partial(self._tell_step, check, title))
            divergence = run.first_divergence(reference)
            num_steps += len(run.steps)
            if self.story is None and run.engine is not None and check.has_model == self._has_model:
                self.story = run.engine.story()
            if divergence is not None:
                blame = Search(run, reference, parts, host=check.own).blame()
                alone = f"In this run {', '.join(parts)} played alone, and the other parts were {check.own}'s."
                difference = Difference(
                    run, parts, divergence, blame, check.host, alone=alone if len(parts) < len(all_parts) else ""
                )
                return Act(number, check, num_runs, num_steps, difference)
            if num_runs == 1 and check.others:
                self._measured = run, check.others
        return Act(number, check, num_runs, num_steps)

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


def numbers_of(name: str, run: Run) -> Numbers:
    """Return the numbers of a complete run. *Computed* and *found* are tokens, *waited* is summed over the steps."""
    computed = sum(num_tokens for step in run.steps for _, num_tokens in step.scheduled)
    found = sum(sum(step.found.values()) for step in run.steps)
    waited = sum(len(step.waiting) for step in run.steps)
    return name, len(run.steps), computed, found, run.steps[-1].num_preemptions, waited


def numbers_as_text(rows: Sequence[Numbers]) -> list[str]:
    """Return a table."""
    table = [("", "steps", "computed", "found", "preempted", "waited"), *rows]
    return [f"{row[0]:<22}{row[1]:>7}{row[2]:>10}{row[3]:>8}{row[4]:>11}{row[5]:>8}" for row in table]

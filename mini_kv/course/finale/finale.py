"""The finale: the learner's parts through many rush hours, compared step by step with the engine's own.

In each step these must be equal: the tokens that were found, the requests that ran, the state of the cache, the new
tokens, and with a model the logits that they were chosen from. The acts on dice need no torch.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from mini_kv.course.finale.blame import Search, what_broke
from mini_kv.course.finale.dice_hour import dice_hours
from mini_kv.course.finale.found import Found, find_parts, own_parts, why_not
from mini_kv.course.finale.home_hour import HomeHour
from mini_kv.course.finale.prefill_hour import PrefillHour
from mini_kv.course.finale.steps import Act, Difference, Hour, Step
from mini_kv.course.labkit.lab import Lab, LabPart
from mini_kv.installer import pip

NUM_HOURS = 30
"""Hours of an act on dice. Each takes about a tenth of a second, so that all acts end within a minute."""
WINDOWS = ((2,), (1, 3), (4, 2), (5, 1))
"""Windows of the models in the act with windows, in blocks."""


@dataclass(frozen=True, slots=True)
class Scene:
    """An act: its title, its rush hours, the labs whose parts play, and the places without a part of theirs."""

    title: str
    hours: Sequence[Hour]
    model: str
    """The kind of model, as `find_parts` knows it."""
    left_out: Collection[str]
    alone: Collection[str] = ()
    """The places whose parts also play alone, in turn, with the engine's own around them."""
    others: Mapping[str, Hour] = field(default_factory=dict)
    """The first hour's requests on engines that have less, by name."""
    has_model: bool = False
    compared: str = "cache, batches and tokens"
    reference: Callable[[Hour], Act] = lambda hour: Act(hour).played()
    """Returns the run that an hour is compared with."""
    host: str = "mini_kv"
    """The engine that made the reference."""
    own: str = "mini_kv"
    """The engine whose parts play in place of missing ones."""

    def cast(self, choice: str, labs: Sequence[Lab], invocation_dir: Path) -> list[Found]:
        """Return the parts of the labs that have a place in this act."""
        plays = [lab for lab in labs if not all(self.leaves_out(part) for part in lab.parts)]
        found = find_parts(choice, plays, invocation_dir, self.model, in_finale=True)
        return [replace(each, value=None) if self.leaves_out(each.part) else each for each in found]

    def leaves_out(self, part: LabPart) -> bool:
        """Return whether the engine's own part plays in this act, whatever the learner has."""
        return bool(why_not(part, self.model, in_finale=True)) or part.goes_to in self.left_out


PROMPTS = ("admit", "ref_counts", "hit_rate")
"""The places of lab-05, which admits prompts itself."""
COUNTS = ("counts", "frees")
"""The places of lab-03. Its `free_blocks` ignores block hashes, so it plays where nothing is cached."""
CACHE = ("queue", "counts", "index", "pool", "hasher", "full_attention", "slots", "lookup")
"""The places of labs 02 to 07."""
WITH_WINDOWS = ("sliding_window", "coordinator", "group_layers")
"""The places of lab-12."""
HOME = ("home_store", "home_lease", "home_release", "promote", "crossover")
"""The places of lab-14."""
ON_DICE = (*PROMPTS, *HOME, "policy", "page_size", "frees")
"""Places that no model has."""
KERNELS = ("write_kernel", "decode_kernel")
"""The interpreter of kernels is slow: they play in one act."""
TENSORS = ("block_table", "slot_mapping", "write", "decode", "prefill", *KERNELS)
"""The places of labs 08 to 10, which only a model of mini_kv's has."""


def dice_scenes(seed: int, num_hours: int = NUM_HOURS) -> list[Scene]:
    """Return the acts that need no model.

    Lab-11 has one group of layers and no drafts, so the engine's scheduler plans where there are others.
    """
    few = max(num_hours // 3, 1)
    plain, with_windows = dice_hours(seed, num_hours), dice_hours(seed, num_hours, WINDOWS)
    prompts = [PrefillHour(seed * 1000 + at) for at in range(few)]
    forks = [PrefillHour(seed * 1000 + at, WINDOWS[at % len(WINDOWS)], caching=False) for at in range(few)]
    homes = [HomeHour(seed * 1000 + at) for at in range(few)]
    drafts, lfu = dice_hours(seed, few, drafts=True), dice_hours(seed, few, policy=True)
    without = (*PROMPTS, *HOME, "policy", "frees", *TENSORS)
    no_cache = (*CACHE[2:], *PROMPTS, "stats", "scheduler", "policy")  # lab-05 has one group
    return [
        Scene("Prompts without a scheduler", prompts, "one group", ("scheduler", "policy", "frees", *HOME, *TENSORS)),
        Scene("Dice instead of a model", plain, "one group", without, CACHE),
        Scene("Dice, and layers with windows", with_windows, "windows", (*without, "scheduler"), WITH_WINDOWS),
        Scene("Dice, and drafts", drafts, "one group", (*without, "scheduler")),
        Scene("Dice, and an eviction policy", lfu, "one group", (*PROMPTS, *HOME, *TENSORS, *COUNTS, "queue", "pool")),
        Scene("Prompts, and a second home", homes, "one group", ("scheduler", "policy", "frees", *TENSORS), HOME),
        Scene("Forks and windows, and no cache", forks, "one group", (*no_cache, *HOME, *TENSORS), COUNTS),
    ]


def model_scenes(seed: int) -> list[Scene]:
    """Return the acts with a model. They need torch. Labs 06 and 11 have no forks."""
    from mini_kv.course.finale.rush_hour import ModelHour

    hour = ModelHour(seed)
    with_windows, forks, large, few = (
        replace(hour, windows=True, num_blocks=106),
        replace(hour, forks=True),
        replace(hour, large_scores=True, num_visits=12),
        replace(hour, large_scores=True, num_visits=6, longest_answer=6),
    )
    without = (*KERNELS, *ON_DICE)
    return [
        _with_model("A model", hour, "one group", without, hour.others()),
        _with_model("A model with windows", with_windows, "windows", (*without, "scheduler")),
        _with_model("Several answers to one prompt", forks, "one group", (*without, "slots", "scheduler")),
        _with_model("A model with large scores", large, "one group", without),
        _with_model("Six requests on your kernels", few, "one group", ON_DICE),
    ]


def _with_model(
    title: str, hour: Hour, model: str, left_out: Collection[str], others: Mapping[str, Hour] | None = None
) -> Scene:
    compared = "cache, batches, words and logits"
    return Scene(title, [hour], model, left_out, others=others or {}, has_model=True, compared=compared)


class Finale:
    """All acts on the learner's parts."""

    def __init__(
        self,
        choice: str,
        labs: Sequence[Lab],
        scenes: Sequence[Scene],
        tell: Callable[[str], None] = lambda name: None,
    ) -> None:
        """Prepare the acts. Nothing runs yet.

        Args:
            choice: `starter`, `solution` or a folder.
            labs: all labs.
            scenes: the acts.
            tell: is told of each run before it begins, and of each step of a run with a model.
        """
        self._choice, self._labs, self._scenes, self._tell = choice, labs, scenes, tell
        self._has_model = any(scene.has_model for scene in scenes)
        self._shown: set[str] = set()
        self.film: dict[str, Any] | None = None
        """The story of the learner's pool in the first act with a model, or on dice if there is none."""
        self.num_played = self.num_equal = 0
        """Acts so far with a part of the learner's, and those that were equal to the engine's own."""

    def lines(self) -> Iterator[str]:
        """Play the acts, and yield the report line by line."""
        for number, scene in enumerate(self._scenes, start=1):
            yield from self._play(number, scene)
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
        """Whether all acts so far were equal to the engine's own."""
        return self.num_equal == self.num_played

    def _play(self, number: int, scene: Scene) -> Iterator[str]:
        found = scene.cast(self._choice, self._labs, Path.cwd())
        parts = {str(each.part): each for each in found if each.value is not None}
        yield f"Act {number}. {scene.title}: {_counted(len(parts), 'part')} from the labs"
        for each in found:
            line = f"  {each.part!s:<38} {each.place if each.value is not None else f'{scene.own}: {each.why}'}"
            if line not in self._shown and (each.part.never or not scene.leaves_out(each.part)):
                self._shown.add(line)
                yield line
        if not parts or not scene.hours:
            yield from (f"Not played: {'it has no hour' if parts else 'no part is yours'}.", "")
            return
        self.num_played += 1
        acts: list[Act] = []
        last_hour = None
        for hour, cast in hours_with_casts(scene, parts):
            run = f"Act {number}, run {len(acts) + 1}"
            self._tell(run)
            if hour is not last_hour:
                reference, last_hour = scene.reference(hour), hour
            act = Act(hour, own_parts(cast.values()), each_step=partial(self._tell_step, scene, run))
            acts.append(act)
            difference = act.first_difference(reference)
            if self.film is None and act.rush is not None and scene.has_model == self._has_model:
                self.film = act.rush.film()
            if difference is not None:
                yield from ("", *_what_differs(act, difference, cast, scene.host), "")
                if len(cast) < len(parts):
                    yield f"In this run {', '.join(cast)} played alone, and the other parts were {scene.own}'s."
                yield from (*Search(act, reference, cast, host=scene.own).lines(), "")
                return
        self.num_equal += 1
        num_steps = sum(len(act.steps) for act in acts)
        runs = f"{len(acts)} runs, " if len(acts) > 1 else ""
        yield from ("", f"{runs}{num_steps} steps: the same {scene.compared} as {scene.host}'s.", "")
        if scene.others:
            yield from (*numbers(acts[0], scene.others, self._tell), "")

    def _tell_step(self, scene: Scene, run: str, number: int) -> None:
        if scene.has_model:  # the others' steps take a hundredth of a second
            self._tell(f"{run}, step {number}")


def hours_with_casts(scene: Scene, parts: Mapping[str, Found]) -> Iterator[tuple[Hour, Mapping[str, Found]]]:
    """Yield each hour with all parts. Yield it again with one of those that play alone, in turn.

    A wrong part and a careful one can make a right run together.
    """
    soloists = [name for name, each in parts.items() if each.part.goes_to in scene.alone]
    for number, hour in enumerate(scene.hours):
        yield hour, parts
        if soloists and len(parts) > 1:
            name = soloists[number % len(soloists)]
            yield hour, {name: parts[name]}


def _what_differs(act: Act, difference: Difference, parts: Mapping[str, Found], host: str) -> list[str]:
    if act.error is None:
        return difference.lines(host)
    return what_broke(act.error, f"in step {len(act.steps) + 1}", act.limit, parts)


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def numbers(act: Act, others: Mapping[str, Hour], tell: Callable[[str], None] | None = None) -> list[str]:
    """Return a table: the numbers of this act beside those of engines that have less. `tell`: is told of each."""
    rows = {"yours": act}
    for name, hour in others.items():
        if tell is not None:
            tell(name)
        rows[name] = Act(hour).played()
    head = f"{'':<22}{'steps':>7}{'computed':>10}{'found':>8}{'preempted':>11}{'waited':>8}"
    return [head, *(_row(name, each.steps) for name, each in rows.items())]


def _row(name: str, steps: Sequence[Step]) -> str:
    computed = sum(num_tokens for step in steps for _, num_tokens in step.scheduled)
    found = sum(sum(step.found.values()) for step in steps)
    waited = sum(len(step.waiting) for step in steps)
    return f"{name:<22}{len(steps):>7}{computed:>10}{found:>8}{steps[-1].num_preemptions:>11}{waited:>8}"

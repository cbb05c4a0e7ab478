"""`mini-kv generate --labs PATH`: a table of the parts that run, the text, and whether it is the engine's own text."""

import argparse
import os
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mini_kv.core.kv_cache_interface import FullAttentionSpec
from mini_kv.course.finale.assembly import seams
from mini_kv.course.finale.blame import Search, what_broke
from mini_kv.course.finale.learner_files import Found, by_name, find_parts, own_parts, why_not
from mini_kv.course.finale.steps import STEP_LIMIT_S, TOLERANCE, Run, Step, differing
from mini_kv.course.labkit.lab import all_labs
from mini_kv.course.labkit.learner_parts import OwnParts
from mini_kv.engine.generate_text import make_engine, prepare, show, start
from mini_kv.engine.generation_screen import printable
from mini_kv.messages import shown

if TYPE_CHECKING:
    from torch import Tensor

    from mini_kv.engine.generate_text import Deltas
    from mini_kv.engine.llm_engine import LLMEngine
    from mini_kv.engine.output_processor import DeltaOutput


@dataclass(frozen=True, slots=True)
class PromptWorkload:
    """The prompts of the command as a workload."""

    args: argparse.Namespace

    def engine(self, own: OwnParts) -> "PromptEngine":
        """Return an engine with these parts and all prompts added."""
        engine = PromptEngine()
        engine.llm_engine = make_engine(self.args, **seams(own, on_logits=engine.note))
        engine.stream = start(engine.llm_engine, self.args)
        return engine


class PromptEngine:
    """An engine that answers the prompts. Each output of a request is one step."""

    llm_engine: "LLMEngine"
    stream: "Deltas"
    delta: "DeltaOutput"
    """The output of the last step."""

    def __init__(self) -> None:
        self._logits: dict[str, Tensor] = {}

    def note(self, request_ids: list[str], logits: "Tensor") -> None:
        """Keep the logits of the engine's last step."""
        self._logits = dict(zip(request_ids, logits, strict=True))

    def steps(self) -> Iterator[Step]:
        """Yield a step without outputs, because the engine is built. Then yield the outputs."""
        yield Step(0)
        try:
            for number, delta in enumerate(self.stream, start=1):
                self.delta, name = delta, delta.request_id
                yield Step(number, token_ids={name: delta.new_token_ids}, logits={name: self._logits[name]})
        finally:
            with suppress(Exception):  # of requests that are aborted: there is an answer already
                self.stream.close()

    def story(self) -> dict[str, Any]:
        """Return nothing: the command writes the texts."""
        return {}


class PromptRun(Run):
    """A run that is right if the words and logits of each request are. The order of the requests does not count."""

    def agrees_with(self, reference: Run) -> bool:
        """Run until an output differs from the other run's. Return whether none differs."""
        left = defaultdict[str, list[Step]](list)
        for step in reference.steps:
            for name in step.token_ids:
                left[name].append(step)
        with closing(self.in_steps()) as steps:
            for step in steps:
                if any(not left[name] or differing(step, left[name].pop(0)) for name in step.token_ids):
                    return False
        return self.error is None and not any(left.values())

    @property
    def llm_engine(self) -> "LLMEngine":
        """The engine of this run, if it could be built."""
        assert isinstance(self.engine, PromptEngine)
        return self.engine.llm_engine

    def logits(self, request_id: str) -> "list[Tensor]":
        """Return the logits from which each token of a request was chosen."""
        return [step.logits[request_id] for step in self.steps if step.logits and request_id in step.logits]


def run_with_labs(args: argparse.Namespace, root: Path, step_limit_s: float = STEP_LIMIT_S) -> int:
    """Write the table of parts, the learner's text and the verdict, and return the exit status.

    0: the text equals the engine's own. 1: a different text or an error, with the faulty part if it can be found.
    2: the arguments cannot be used.

    Args:
        args: of the command.
        root: the repository.
        step_limit_s: seconds in which a file must be loaded, and in which an engine must return a token.
    """
    labs = all_labs(root)
    problem = _problem(args)
    if problem:
        print(f"mini-kv generate: {problem}", file=sys.stderr)
        return 2
    own_engine = PromptEngine()
    prepared = prepare(args, **seams(OwnParts(), on_logits=own_engine.note))
    if prepared is None:
        return 2
    own_engine.llm_engine, own_engine.stream = prepared
    model = _kind_of_model(own_engine.llm_engine)
    found = find_parts(args.labs, labs, Path.cwd(), model, step_limit_s)
    print("\n".join(table(found, "solution" if args.labs == "solution" else "yours")), end="\n\n", flush=True)
    parts = by_name(found)
    if not parts:
        show(*prepared, args)
        print("\nNo part is yours yet: these are mini_kv's words.")
        return 0
    workload = PromptWorkload(args)
    run = PromptRun(workload, own_parts(found), step_limit_s)
    _show(run, args)
    reference = PromptRun(workload, engine=own_engine).complete()
    print()
    num_usable = sum(not why_not(each.part, model) for each in found)
    lines, is_right = verdict(run, reference, parts, num_usable)
    print("\n".join(lines), flush=True)  # looking for the part can take a while
    if not is_right:
        print("\n".join(Search(run, reference, parts, "the text").blame().lines))
    return 0 if is_right else 1


def _show(run: PromptRun, args: argparse.Namespace) -> None:
    """Write the texts as they grow, until an error ends the run."""
    steps = run.in_steps()
    next(steps, None)
    if isinstance(engine := run.engine, PromptEngine):
        show(engine.llm_engine, (engine.delta for _ in steps), args)


def _problem(args: argparse.Namespace) -> str:
    """Return the reason why the arguments cannot be used; "" if they can."""
    if args.labs not in ("starter", "solution") and not os.path.isdir(args.labs):
        return f"--labs {shown(args.labs)}: it is neither starter nor solution, and there is no such folder"
    if args.n != 1:
        return f"--n is {args.n}, but --labs compares one answer to each prompt: leave it out"
    if args.drafts is not None:
        return f"--drafts is {args.drafts}, but the schedulers of --labs plan no drafts: leave it out"
    tiers = {"--memory-tier": args.memory_tier, "--disk-tier": args.disk_tier, "--server-tier": args.server_tier}
    for option, value in tiers.items():
        if value is not None:
            return f"{option}: the parts of --labs run without tiers: leave out one of the two"
    return ""


def _kind_of_model(engine: "LLMEngine") -> str:
    """Return the kind of model that the parts may need: a key of `NOT_FOR`."""
    groups = engine.kv_cache_manager.kv_cache_config.kv_cache_groups
    is_plain = len(groups) == 1 and isinstance(groups[0].kv_cache_spec, FullAttentionSpec)
    return "one group" if is_plain else "windows"


def table(found: Sequence[Found], learner: str) -> list[str]:
    """Return a line per part: its name, its owner, and its place or the reason why it is not used."""
    lines = [f"{'part':<38} owner"]
    for each in found:
        owner, remark = (learner, each.place) if each.value is not None else ("mini_kv", each.why)
        lines.append(f"{each.part!s:<38} {owner:<8} {remark}")
    return lines


def verdict(
    run: PromptRun, reference: PromptRun, parts: Mapping[str, Found], num_usable: int
) -> tuple[list[str], bool]:
    """Return the report of the run, and whether its text was right."""
    if run.error is not None:
        when = f"after {sum(map(len, run.answers.values()))} tokens"
        return what_broke(run.error, when, run.limit, parts), False
    if run.answers != reference.answers:
        return _other_words(run, reference), False
    differences = [
        float((mine - its).abs().max())
        for name in reference.answers
        for mine, its in zip(run.logits(name), reference.logits(name), strict=True)
    ]
    num_tokens = sum(map(len, reference.answers.values()))
    same = f"The same words as mini_kv's own: {num_tokens} tokens, {len(parts)} of {num_usable} parts from the labs."
    if not all(difference <= TOLERANCE for difference in differences):  # NaN is no small number
        return [same, f"That was luck: the logits of these tokens differ by up to {max(differences):.2g}."], False
    return [same, *hits(run, reference), "The labs' tests check more cases."], True


def hits(run: PromptRun, reference: PromptRun) -> list[str]:
    """Return a line if the cache found fewer tokens than the engine's. This does not change the text."""
    mine, its = (each.llm_engine.kv_cache_manager.prefix_cache_stats for each in (run, reference))
    if (mine.queries, mine.hits) == (its.queries, its.hits):
        return []
    counts = [f"{stats.hits} of {stats.queries} tokens" for stats in (mine, its)]
    return [f"But your prefix cache reports hits on {counts[0]}, and mini_kv's on {counts[1]}."]


def _other_words(run: PromptRun, reference: PromptRun) -> list[str]:
    """Return both versions of each text that differs, from the first different token on."""
    tokenizer = reference.llm_engine.tokenizer
    assert tokenizer is not None
    lines = []
    for name, its in reference.answers.items():
        mine = run.answers.get(name, [])
        if mine == its:
            continue
        first = next((i for i, (a, b) in enumerate(zip(mine, its, strict=False)) if a != b), len(mine))
        who = f"[{int(name) + 1}] " if len(reference.answers) > 1 else ""
        lines.append(f"{who}Other words than mini_kv's own, from token {first + 1} on:")
        for owner, token_ids in (("mini_kv", its), ("yours", mine)):
            text = tokenizer.decode_bytes(token_ids[first : first + 12]).decode(errors="replace")
            lines.append(f"  {owner:<8} ...{printable(text)!r}...")
    return lines

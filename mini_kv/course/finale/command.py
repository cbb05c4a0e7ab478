"""`mini-kv generate --labs PATH`: a table of the parts that run, the text, and whether it is the engine's own text."""

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mini_kv.core.kv_cache_interface import FullAttentionSpec
from mini_kv.course.finale.assembly import seams
from mini_kv.course.finale.blame import Search, what_broke
from mini_kv.course.finale.found import Found, find_parts, own_parts, why_not
from mini_kv.course.finale.trial import STEP_LIMIT_S, TOLERANCE, Trial
from mini_kv.course.labkit.lab import all_labs
from mini_kv.course.labkit.learner_parts import OwnParts
from mini_kv.engine.generate_text import prepare, show
from mini_kv.engine.generation_screen import printable
from mini_kv.messages import shown

if TYPE_CHECKING:
    from mini_kv.engine.llm_engine import LLMEngine


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
    reference = Trial(args, OwnParts())
    prepared = prepare(args, **seams(OwnParts(), on_logits=reference.note))
    if prepared is None:
        return 2
    model = kind_of_model(prepared[0])
    found = find_parts(args.labs, labs, Path.cwd(), model, step_limit_s)
    print("\n".join(table(found, "solution" if args.labs == "solution" else "yours")), end="\n\n", flush=True)
    parts = {str(each.part): each for each in found if each.value is not None}
    if not parts:
        show(*prepared, args)
        print("\nNo part is yours yet: these are mini_kv's words.")
        return 0
    trial = Trial(args, own_parts(found), step_limit_s)
    engine = trial.prepare()
    if engine is not None:
        show(engine, trial.deltas(), args)
    reference.take(*prepared)
    list(reference.deltas())
    print()
    num_usable = sum(not why_not(each.part, model) for each in found)
    lines, is_right = verdict(trial, reference, parts, num_usable)
    print("\n".join(lines), flush=True)  # looking for the part can take a while
    if not is_right:
        print("\n".join(Search(trial, reference, parts).lines()))
    return 0 if is_right else 1


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


def kind_of_model(engine: "LLMEngine") -> str:
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


def verdict(trial: Trial, reference: Trial, parts: Mapping[str, Found], num_usable: int) -> tuple[list[str], bool]:
    """Return the report of the run, and whether its text was right."""
    if trial.error is not None:
        when = f"after {sum(map(len, trial.said.values()))} tokens"
        return what_broke(trial.error, when, trial.limit, parts), False
    if trial.said != reference.said:
        return _other_words(trial, reference), False
    differences = [
        float((mine - its).abs().max())
        for name, rows in reference.logits.items()
        for mine, its in zip(trial.logits[name], rows, strict=True)
    ]
    num_tokens = sum(map(len, reference.said.values()))
    same = f"The same words as mini_kv's own: {num_tokens} tokens, {len(parts)} of {num_usable} parts from the labs."
    if not all(difference <= TOLERANCE for difference in differences):  # NaN is no small number
        return [same, f"That was luck: the logits of these tokens differ by up to {max(differences):.2g}."], False
    return [same, *hits(trial, reference), "The labs' tests check more cases."], True


def hits(trial: Trial, reference: Trial) -> list[str]:
    """Return a line if the cache found fewer tokens than the engine's. This does not change the text."""
    assert trial.engine is not None and reference.engine is not None
    mine, its = (engine.kv_cache_manager.prefix_cache_stats for engine in (trial.engine, reference.engine))
    if (mine.queries, mine.hits) == (its.queries, its.hits):
        return []
    counts = [f"{stats.hits} of {stats.queries} tokens" for stats in (mine, its)]
    return [f"But your prefix cache reports hits on {counts[0]}, and mini_kv's on {counts[1]}."]


def _other_words(trial: Trial, reference: Trial) -> list[str]:
    """Return both versions of each text that differs, from the first different token on."""
    assert reference.engine is not None and reference.engine.tokenizer is not None
    lines = []
    for name, its in reference.said.items():
        mine = trial.said[name]
        if mine == its:
            continue
        first = next((i for i, (a, b) in enumerate(zip(mine, its, strict=False)) if a != b), len(mine))
        who = f"[{int(name) + 1}] " if len(reference.said) > 1 else ""
        lines.append(f"{who}Other words than mini_kv's own, from token {first + 1} on:")
        for owner, token_ids in (("mini_kv", its), ("yours", mine)):
            text = reference.engine.tokenizer.decode_bytes(token_ids[first : first + 12]).decode(errors="replace")
            lines.append(f"  {owner:<8} ...{printable(text)!r}...")
    return lines

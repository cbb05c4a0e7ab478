"""`mini-kv generate --labs PATH`: whose part is where, the text, and whether it is the text that it should be."""

import argparse
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mini_kv.engine.generate_command import prepare, show
from mini_kv.engine.terminal import printable
from mini_kv.labkit import LabTodo
from mini_kv.labkit.lab import all_labs
from mini_kv.labkit.own_engine.parts import Found, find_parts, last_line, short
from mini_kv.labkit.own_engine.trial import STEP_LIMIT_S, Said, TookTooLongError, Trial


def add_labs_argument(parser: argparse.ArgumentParser) -> None:
    """Add the argument that `run_with_labs` is about."""
    parser.add_argument(
        "--labs",
        metavar="PATH",
        help="put the parts that your labs provide into the engine, and say whose each part is: starter, solution, or a"
        " folder with lab-NN.py or lab-NN/starter.py",
    )


def run_with_labs(args: argparse.Namespace, root: Path) -> int:
    """Write the table of parts, what the learner's engine says, and the verdict; return the exit status.

    0: the same words as the engine's own. 1: other words, or an error, and the part that is to blame if one can be
    found. 2: cannot be done as asked.

    Args:
        args: of the command.
        root: the repository.
    """
    labs = all_labs(root)
    problem = ""
    if not labs:
        problem = "there is no folder labs/ here: call this in the repository"
    elif args.labs not in ("starter", "solution") and not Path(args.labs).is_dir():
        problem = f"--labs {args.labs}: it is neither starter nor solution, and there is no such folder"
    if problem:
        print(f"mini-kv generate: {problem}", file=sys.stderr)
        return 2
    reference = prepare(args)
    if reference is None:
        return 2
    found = find_parts(args.labs, labs, Path.cwd())
    print("\n".join(table(found, "solution" if args.labs == "solution" else "yours")), end="\n\n", flush=True)
    parts = {str(each.part): each for each in found if each.value is not None}
    if not parts:
        show(*reference, args)
        print("\nNo part is yours yet: these are mini_kv's words.")
        return 0
    trial = Trial(args, {name: each.value for name, each in parts.items()})
    engine = trial.prepare()
    if engine is not None:
        show(engine, trial.deltas(), args)
    said: defaultdict[str, list[int]] = defaultdict(list)
    for delta in reference[1]:
        said[delta.request_id] += delta.new_token_ids
    print()
    if trial.error is None and trial.said == said:
        num_usable = sum(not each.part.never for each in found)
        num_tokens = sum(map(len, said.values()))
        print(
            f"The same words as mini_kv's own: {num_tokens} tokens, {len(parts)} of {num_usable} parts from the labs."
        )
        print(*hits(trial, reference[0]), sep="\n", end="")
        return 0
    print("\n".join(what_happened(trial, said, reference[0].tokenizer, parts)), flush=True)
    print("\n".join(who_is_to_blame(args, trial.error, said, parts)))
    return 1


def table(found: Sequence[Found], learner: str) -> list[str]:
    """Return a line a part: its name, its owner, and where it stands or why it is not used."""
    lines = [f"{'part':<38} owner"]
    for each in found:
        owner, remark = (learner, each.place) if each.value is not None else ("mini_kv", each.why)
        lines.append(f"{each.part!s:<38} {owner:<8} {remark}")
    return lines


def hits(trial: Trial, reference: Any) -> list[str]:
    """Return a line if the cache did not help as much as it should: that changes no word."""
    assert trial.engine is not None
    mine, its = trial.engine.kv_cache_manager.prefix_cache_stats, reference.kv_cache_manager.prefix_cache_stats
    if (mine.queries, mine.hits) == (its.queries, its.hits):
        return []
    counts = [f"{stats.hits} of {stats.queries} tokens" for stats in (mine, its)]
    return [f"But your prefix cache says that it had {counts[0]}, and mini_kv's had {counts[1]}.", ""]


def what_happened(trial: Trial, said: Said, tokenizer: Any, parts: Mapping[str, Found]) -> list[str]:
    """Return the lines that say how the run went wrong."""
    error = trial.error
    if error is not None:
        num_said = sum(map(len, trial.said.values()))
        what = f"{type(error).__name__}: {error}".removesuffix(": ")
        if isinstance(error, TookTooLongError):
            what = f"it did not come back within {STEP_LIMIT_S} s"
        elif isinstance(error, LabTodo):
            what = f"still TODO: {error}"
        line = last_line(error, {each.source for each in parts.values()})
        at = [f"  at {short(line[0])}:{line[1]}  {line[2]}"] if line else ["  in mini_kv's code, on what yours gave it"]
        return [f"Your engine stopped after {num_said} tokens: {what}", *at]
    lines = []
    for request_id, tokens in said.items():
        mine = trial.said[request_id]
        if mine == tokens:
            continue
        same = next((i for i, pair in enumerate(zip(mine, tokens, strict=False)) if pair[0] != pair[1]), len(mine))
        who = f"[{int(request_id) + 1}] " if len(said) > 1 else ""
        lines.append(f"{who}Other words than mini_kv's own, from token {same + 1} on:")
        for owner, ids in (("mini_kv", tokens), ("yours", mine)):
            lines.append(f"  {owner:<8} ...{printable(tokenizer.decode(ids[same : same + 12]))!r}...")
    return lines


def who_is_to_blame(
    args: argparse.Namespace, error: BaseException | None, said: Said, parts: Mapping[str, Found]
) -> list[str]:
    """Let one part after the other fall back to the engine's own, and return what that says.

    If the learner's code was running when it broke, its lab goes first, and a part of it that helps ends the search.
    """
    line = last_line(error, {each.source for each in parts.values()}) if error is not None else None
    blamed = [name for name, each in parts.items() if line and each.source == line[0]]
    healers = []
    for name in [*blamed, *(name for name in parts if name not in blamed)]:
        others = {other: each.value for other, each in parts.items() if other != name}
        if Trial(args, others).agrees_with(said):
            healers.append(name)
            if name in blamed:
                break
        elif isinstance(error, TookTooLongError) and blamed and name == blamed[-1]:
            break  # the others would each take as long
    if healers:
        lines = [f"With {name} from mini_kv the words are right again: {parts[name].place}" for name in healers]
        return lines if len(lines) == 1 else ["Any one of these helps, so look where two of them meet.", *lines]
    if blamed and isinstance(error, TookTooLongError):
        return ["No single part of that lab helps if mini_kv's takes its place: run its tests."]
    # A part may call another one of its lab, and then both must go.
    for lab_id in dict.fromkeys(each.part.lab_id for each in parts.values()):
        others = {name: each.value for name, each in parts.items() if each.part.lab_id != lab_id}
        if Trial(args, others).agrees_with(said):
            return [f"With all of {lab_id} from mini_kv the words are right again. Run its tests."]
    wrong = [name for name, each in parts.items() if not Trial(args, {name: each.value}).agrees_with(said)]
    if not wrong:
        return ["Each of your parts says the right words alone; together they do not."]
    return ["No single part helps. These say other words even alone:", *(f"  {n}: {parts[n].place}" for n in wrong)]

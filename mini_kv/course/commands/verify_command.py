"""`mini-kv verify -- COMMAND`: the recorded scenarios of vLLM, played on any engine that speaks JSON."""

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from mini_kv.course.commands import write_file
from mini_kv.course.given.contract import PUBLIC, Variant, draw
from mini_kv.course.labkit.course_settings import load_course
from mini_kv.course.labkit.lab import UnknownLabError, find_checkout
from mini_kv.course.verify.board import badge, green_topics, squares
from mini_kv.course.verify.compare import (
    PARTS,
    TOPICS,
    Outcome,
    Recorded,
    Verdict,
    play,
    recorded_scenarios,
    recording,
    topic_of,
)
from mini_kv.course.verify.program import TIMEOUT_S, Piped, ProgramError
from mini_kv.course.verify.verdict_report import challenge_report, difference, place, report
from mini_kv.messages import choices, did_you_mean, shown
from mini_kv.progress_line import ProgressLine
from mini_kv.typed_numbers import number_above_zero, output_file

MISUSE = "misuse"
"""The topic that is played only if asked for: calls that are mistakes. Every engine may answer them as it likes."""
MOST_SILENT = 3
"""Scenarios in a row without a reply after which no more are played. Each costs the whole timeout."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that `run` reads."""
    parser.add_argument(
        "--only",
        metavar="TOPICS",
        help=f"play only these, separated by commas (default: all but {MISUSE}): {', '.join(TOPICS)}",
    )
    parser.add_argument(
        "--challenge", action="store_true", help="play the scenarios of lab-17, and draw its board: a sign per scenario"
    )
    parser.add_argument(
        "--to", type=output_file(".svg"), metavar="FILE", help="write a badge with the topics of lab-17 that are equal"
    )
    parser.add_argument(
        "--scenario", metavar="NAME", help="play this one, and print every line to and from the program"
    )
    parser.add_argument(
        "--timeout",
        type=number_above_zero(1_000_000),
        default=TIMEOUT_S,
        metavar="S",
        help=f"seconds per reply (default: {TIMEOUT_S:g})",
    )
    parser.add_argument("--list", action="store_true", help="print the scenarios, and play none")
    parser.add_argument("--json", action="store_true", help="print the outcome of each scenario as a line of JSON")
    parser.add_argument(
        "program",
        nargs="*",
        metavar="COMMAND",
        help="the program and its arguments, after --; or FILE.py, which has a function `answer`",
    )


def run(args: argparse.Namespace) -> int:
    """Print the report. Return 0 if nothing differs, 1 if something does, 2 if an argument is wrong."""
    try:
        variant = _variant(args)
        chosen = _chosen(args, variant)
    except ValueError as error:
        print(f"mini-kv verify: {error}", file=sys.stderr)
        return 2
    if args.list:
        for recorded in chosen:
            print(f"{topic_of(recorded):<13} {recorded.scenario.name}: {recorded.scenario.purpose}")
        return 0
    if not args.program:
        print("mini-kv verify: which program? Write it after --, as in: mini-kv verify -- ./engine", file=sys.stderr)
        return 2
    try:
        if args.scenario is not None:
            return max([_one(recorded, args) for recorded in chosen])  # the manager's and the scheduler's
        outcomes: list[Outcome] = []
        with ProgressLine(sys.stderr, "starting the program") as progress:
            progress.total = len(chosen)
            played = _noted(_played(chosen, _command(args.program), args.timeout), outcomes, progress)
            for line in _lines(args, played, variant):
                progress.print(line)  # as it comes: a slow program takes minutes
        if args.to is not None:
            return max(_status(outcomes), _write_badge(args.to, outcomes))
    except (ValueError, ProgramError) as error:
        print(f"mini-kv verify: {error}", file=sys.stderr)
        return 2
    return _status(outcomes)


def _command(words: Sequence[str]) -> list[str]:
    """Return the program's command. A file of Python alone is one with a function `answer`."""
    if len(words) == 1 and words[0].endswith(".py"):
        return [sys.executable, "-m", "mini_kv.course.verify.adapter", *words]
    return list(words)


def _lines(args: argparse.Namespace, played: Iterator[Outcome], variant: Variant) -> Iterator[str]:
    """Return the lines to print: JSON, the board or the report."""
    if args.json:
        return map(json.dumps, map(_as_dict, played))
    return challenge_report(list(played), variant) if args.challenge else report(played)


def _variant(args: argparse.Namespace) -> Variant:
    """Return the contract of the course in whose checkout this runs. Raises `ValueError` if it has no badge."""
    if not args.challenge:
        return PUBLIC
    try:
        variant = draw(load_course(find_checkout(Path.cwd())).challenge)
    except UnknownLabError:
        return PUBLIC
    if args.to is not None and variant != PUBLIC:
        raise ValueError("--to draws a badge that compares with vLLM, and this course has a contract of its own")
    return variant


def _write_badge(file: Path, outcomes: Sequence[Outcome]) -> int:
    """Write the badge. Return 1, and write nothing, if no topic is equal."""
    topics = green_topics(outcomes)
    if not topics:
        print("mini-kv verify: no topic of lab-17 is equal, so there is no badge", file=sys.stderr)
        return 1
    version = recording(PARTS[0])["header"]["vllm"].rpartition(".")[0]
    write_file(file, badge(version, topics))
    return 0


def _noted(played: Iterator[Outcome], outcomes: list[Outcome], progress: ProgressLine) -> Iterator[Outcome]:
    """Yield the outcomes, add each to the list, and show how many there are."""
    for outcome in played:
        outcomes.append(outcome)
        progress.show(len(outcomes))
        yield outcome


def _chosen(args: argparse.Namespace, variant: Variant) -> list[Recorded]:
    """Return the scenarios to play, topic by topic. Raises `ValueError` for an unknown name."""
    scenarios = recorded_scenarios()
    if args.challenge:
        scenarios = [recorded for of_topic in squares(variant).values() for recorded in of_topic]
    if args.scenario is not None:
        named = [recorded for recorded in scenarios if recorded.scenario.name == args.scenario]
        if not named:
            advice = did_you_mean(args.scenario, [recorded.scenario.name for recorded in scenarios])
            raise ValueError(f"there is no scenario {shown(args.scenario)}; {advice}all: mini-kv verify --list")
        return named
    topics = [topic for topic in TOPICS if topic != MISUSE]
    if args.only is not None:
        topics = [topic.strip() for topic in args.only.split(",")]
    for topic in topics:
        if topic not in TOPICS:
            raise ValueError(
                f"there is no topic {shown(topic)}; {choices(topic, list(TOPICS), 'mini-kv verify --list')}"
            )
    return [recorded for topic in TOPICS if topic in topics for recorded in scenarios if topic_of(recorded) == topic]


def _played(chosen: Sequence[Recorded], command: Sequence[str], timeout_s: float) -> Iterator[Outcome]:
    """Play the scenarios in turn. After a reply that is missing or unusable the program is started again.

    Stop with a message if the program is silent in several scenarios in a row.
    """
    waiting = list(chosen)
    num_silent = 0
    while waiting:
        if num_silent == MOST_SILENT:
            message = f"no reply in {MOST_SILENT} scenarios in a row: the other {len(waiting)} are not played"
            print(f"mini-kv verify: {message}", file=sys.stderr)
            return
        with Piped(command, timeout_s) as program:
            while waiting:
                outcome = play(waiting.pop(0), program)
                yield outcome
                num_silent = num_silent + 1 if program.is_silent else 0
                if outcome.verdict is Verdict.DIFFERS and outcome.reason:
                    break


def _one(recorded: Recorded, args: argparse.Namespace) -> int:
    """Play one scenario and print every line."""
    with Piped(_command(args.program), args.timeout) as program:
        outcome = play(recorded, program)
    print("\n".join(program.dialogue))
    print()
    if outcome.verdict is Verdict.DIFFERS:
        print("\n".join(difference(outcome)))
    else:
        print(f"{outcome.verdict.value}: {outcome.num_equal} calls{outcome.reason and f' ({outcome.reason})'}")
    return _status([outcome])


def _status(outcomes: Sequence[Outcome]) -> int:
    return int(any(outcome.verdict is Verdict.DIFFERS for outcome in outcomes))


def _as_dict(outcome: Outcome) -> dict[str, Any]:
    differs = outcome.verdict is Verdict.DIFFERS
    return {
        "topic": topic_of(outcome.recorded),
        "scenario": outcome.recorded.scenario.name,
        "verdict": outcome.verdict.value,
        "calls": outcome.num_equal,
        "listed": outcome.num_listed,
        "reason": outcome.reason,
        "at": place(outcome) if differs else "",
        "vllm": outcome.wanted,
        "program": outcome.got,
        "not_compared": sorted(outcome.not_shown),
    }

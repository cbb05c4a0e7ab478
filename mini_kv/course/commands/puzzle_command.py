"""`mini-kv puzzle [NAME]`: a picture, a goal, and calls to reach it. The engine checks the goal."""

import argparse
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from mini_kv.course.labkit.lab import UnknownLabError, find_checkout
from mini_kv.course.labkit.learner_state import State, read_state, update_state
from mini_kv.messages import choices, shown
from mini_kv.story.puzzle import Puzzle, PuzzlePlayer, load_puzzle, puzzle_names
from mini_kv.story.text import LEGEND, draw_state

OTHERS = "or: again, hint, quit"
UNBROKEN = "\N{NO-BREAK SPACE}"
"""Joins the words of a call, so that no line break separates them."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the puzzle's name."""
    parser.add_argument("name", metavar="NAME", nargs="?", help="default: list the puzzles")


def run(args: argparse.Namespace) -> int:
    """Play a puzzle and return 0 if it was solved, 1 if not, 2 if there is no such puzzle."""
    names = puzzle_names()
    if args.name is None:
        print("\n".join(puzzle_list(read_state(folder, "puzzles") if (folder := _folder()) else {})))
        return 0
    if args.name not in names:
        advice = choices(args.name, names, "mini-kv puzzle")
        print(f"mini-kv puzzle: no puzzle {shown(args.name)}; {advice}", file=sys.stderr)
        return 2
    solved_in = play(load_puzzle(args.name), sys.stdout, sys.stdin)
    if solved_in is None:
        return 1
    if folder := _folder():
        update_state(folder, "puzzles", lambda state: state.update({args.name: solved_in}))
    return 0


def _folder() -> Path | None:
    """Return the folder of the learner's state, or `None` outside a clone, where no state is kept."""
    try:
        return find_checkout(Path.cwd()) / ".mini_kv"
    except UnknownLabError:
        return None


def puzzle_list(solved: State) -> list[str]:
    """Return a line per puzzle, and the command to play one."""
    lines = ["type  mini-kv puzzle NAME  with one of these"]
    for puzzle in map(load_puzzle, puzzle_names()):
        done = f"   solved in {solved[puzzle.name]} calls" if puzzle.name in solved else ""
        lines.append(f"  {puzzle.name:<18}  {puzzle.minutes} minutes   {puzzle.scenario.title}{done}")
    return lines


def play(puzzle: Puzzle, out: TextIO, answers: TextIO) -> int | None:
    """Read calls until the goal is reached and return their number, or `None` if the player stopped."""
    scenario = puzzle.scenario
    out.write(f"{scenario.title}\n{'=' * len(scenario.title)}\n")
    groups = "" if scenario.groups == ("full",) else f"   layers: {', '.join(scenario.groups)}"
    out.write(f"{scenario.num_blocks - 1} blocks of {scenario.block_size} tokens{groups}.   {LEGEND}\n\n")
    out.writelines(f"{line}\n" for line in prompt_lines(puzzle))
    player = _begin(puzzle, out)
    while not player.is_solved:
        if len(player.calls) == puzzle.most_calls:
            out.write(f"\n{textwrap.fill(missed(player), 78)}\n\nFrom the beginning:\n")
            player = _begin(puzzle, out)
        out.write(f"\n{len(player.calls) + 1}> ")
        out.flush()
        line = answers.readline()
        word = " ".join(line.split())
        if not line or word in ("quit", "q"):
            out.write("\n")
            return None
        if word == "again":
            player = _begin(puzzle, out)
        elif word == "hint":
            out.write(f"{textwrap.fill(puzzle.hint, 78)}\n")
        else:
            _call(player, word, out)
    ending = textwrap.fill(" ".join(scenario.ending.split()), 78)
    out.write(f"\nSolved in {call_count(len(player.calls))}.\n\n{ending}\n")
    return len(player.calls)


def prompt_lines(puzzle: Puzzle) -> list[str]:
    """Return each request with its words, a bar between blocks."""
    lines = []
    for request, tokens in puzzle.all_prompts.items():
        blocks = " | ".join(" ".join(block) for block in puzzle.in_blocks(tokens))
        lines += textwrap.wrap(f"{request}  {blocks}", 78, subsequent_indent="   ")
    return lines


def missed(player: PuzzlePlayer) -> str:
    """Return the message for used-up calls: the last effect, its reason, and the missing part of the goal."""
    unmet = " ".join(player.unmet())
    return f"Not reached, and {call_count(len(player.calls))} made. {player.reason()} {unmet}"


def _begin(puzzle: Puzzle, out: TextIO) -> PuzzlePlayer:
    """Write the calls so far, the goal and the possible calls. Return the player."""
    player = PuzzlePlayer(puzzle)
    said = " ".join(played.step.say for played in player.before)
    out.write(f"\n{textwrap.fill(said, 78)}\n\n")
    _write_indented(draw_state(player.before[-1].frame), out)
    out.write(f"\n{textwrap.fill(f'Goal, in at most {call_count(puzzle.most_calls)}: {puzzle.goal}', 78)}\n")
    numbered = ", ".join(f"{n} {call}".replace(" ", UNBROKEN) for n, call in enumerate(puzzle.calls, start=1))
    choice = textwrap.fill(f"Type a call or its number: {numbered}; {OTHERS}", 78)
    out.write(f"{choice.replace(UNBROKEN, ' ')}\n")
    return player


def _call(player: PuzzlePlayer, word: str, out: TextIO) -> None:
    """Make the typed call and write its effect, or write the reason why it is impossible."""
    calls = player.puzzle.calls
    call = calls[int(word) - 1] if word.isdecimal() and 0 < int(word) <= len(calls) else word
    if call not in calls:
        out.write(f"there is no call {shown(word)}; there are: {', '.join(calls)}; {OTHERS}\n")
        return
    try:
        played = player.call(call)
    except ValueError as error:
        out.write(f"{error}; it does not count\n")
        return
    _write_indented([*played.lines, "", *draw_state(played.frame)], out)


def _write_indented(lines: Sequence[str], out: TextIO) -> None:
    out.writelines(f"    {line}".rstrip() + "\n" for line in lines)


def call_count(count: int) -> str:
    """Return the number of calls with "call" or "calls"."""
    return "1 call" if count == 1 else f"{count} calls"

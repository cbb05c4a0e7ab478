"""Plays the puzzles in the reader's page: the real engine, as in the terminal.

`kv_lab_worker.js` loads this file into Pyodide and calls `look`. It imports no pytest, so a puzzle begins sooner than a
lab's first run.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict

from mini_kv.course.commands.puzzle_command import call_count
from mini_kv.story.figure import puzzle_data
from mini_kv.story.puzzle import PuzzlePlayer, load_puzzle


def look(name: str, calls: Sequence[str]) -> str:
    """Make the calls from the puzzle's beginning; return as JSON what they did and whether the goal is reached.

    A call that cannot be made ends them: it is not among the `calls` of the answer, and `said` tells why.
    """
    player = PuzzlePlayer(load_puzzle(name))
    refused = ""
    for call in calls:
        try:
            player.call(call)
        except ValueError as error:
            refused = f"{error}; it does not count."
            break
    return json.dumps(
        {
            "calls": player.calls,
            "said": refused or _said(player),
            "why": player.reason() if player.made and not refused else "",
            "solved": player.is_solved,
            "ending": " ".join(player.puzzle.scenario.ending.split()) if player.is_solved else "",
            "strips": [asdict(strip) for strip in player.strips()],
            "story": puzzle_data(player),
        }
    )


def _said(player: PuzzlePlayer) -> str:
    """Return where the player stands; if no call is left, also what the goal still needs."""
    made, most = len(player.calls), player.puzzle.most_calls
    if player.is_solved:
        return f"Solved in {call_count(made)}."
    if made == most:
        return f"Not reached, and {call_count(made)} made. {' '.join(player.unmet())} Take one back, or start again."
    return f"{made} of {call_count(most)} made."

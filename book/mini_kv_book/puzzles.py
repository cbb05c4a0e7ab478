"""The fence of a puzzle, kv-puzzle: a picture, a goal, and calls that the engine carries out in the page.

Where the book has no browser's Python, or a browser no scripts, the reader sees the picture in the terminal's signs and
the command that plays the puzzle there.
"""

from html import escape
from typing import Any

from mini_kv.labkit.commands.puzzle import call_count
from mini_kv.trace.puzzle import Puzzle, PuzzlePlayer, load_puzzle, puzzle_names
from mini_kv.trace.story import id_runs
from mini_kv.viz.figure import puzzle_data
from mini_kv.viz.text import LEGEND
from mini_kv_book.fences import code
from mini_kv_book.fences import fence as as_fence
from mini_kv_book.lab import inert, megabytes
from mini_kv_book.runs import FenceError


@as_fence
def fence(body: str, _md: Any) -> str:
    """Let the reader play the puzzle of that name."""
    name = body.strip()
    if name not in puzzle_names():
        raise FenceError(f"there is no puzzle {name!r}; there are: {', '.join(puzzle_names())}")
    return element(load_puzzle(name), megabytes())


def element(puzzle: Puzzle, size: int | None) -> str:
    """Return `<kv-puzzle>`. Without `size`, what a first call loads in MB, the page says where else to play it."""
    story = puzzle_data(PuzzlePlayer(puzzle))
    about = {"calls": puzzle.calls, "most": puzzle.most_calls, "hint": puzzle.hint, "story": story, "megabytes": size}
    data = f'<script type="application/json">{inert(about)}</script>' if size is not None else ""
    said = " ".join(step["say"] for step in story["steps"])
    calls = ", ".join(f"<code>{escape(call)}</code>" for call in puzzle.calls)
    picture = f"{story['drawing']}\n\n{LEGEND}"
    return (
        f'<div><kv-puzzle name="{puzzle.name}"{" python" if size is not None else ""}>{data}'
        f'<p slot="goal"><strong>Goal, in at most {call_count(puzzle.most_calls)}:</strong> {escape(puzzle.goal)}</p>'
        f'<p slot="prompts">{" &emsp; ".join(_prompt(*prompt) for prompt in puzzle.prompts.items())}</p>'
        f"<p>{story['title']}. {escape(said)}</p>{code(picture, 'text')}"
        f"<p>The calls: {calls}. Play it in a terminal:</p>"
        f"{code(f'mini-kv puzzle {puzzle.name}', 'text')}</kv-puzzle></div>"
    )


def _prompt(request: str, tokens: tuple[int, ...]) -> str:
    """Return a request's name and its tokens, which stay on one line if they can."""
    return f'<span style="display: inline-block"><b>{escape(request)}</b> <code>{id_runs(tokens)}</code></span>'


def as_markdown() -> str:
    """Return the list of puzzles and a section for each, the easiest first: `puzzles/#make-room` leads to one."""
    puzzles = [load_puzzle(name) for name in puzzle_names()]
    lines = [
        f"1. [{puzzle.scenario.title}](#{puzzle.name}), {puzzle.minutes} minutes"
        f'<span data-puzzle="{puzzle.name}"></span>'
        for puzzle in puzzles
    ]
    sections = [
        f"\n## {puzzle.scenario.title} {{ #{puzzle.name} }}\n\n```kv-puzzle\n{puzzle.name}\n```\n" for puzzle in puzzles
    ]
    return "\n".join([*lines, *sections])

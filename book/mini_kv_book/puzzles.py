"""The page of puzzles: a grid with a small picture of each, and the fence kv-puzzle, which plays one in the page.

A puzzle is a picture, a goal, and calls that the engine carries out in the page. Where the book has no browser's
Python, or a browser no scripts, the reader sees all puzzles below the grid: prompts, the picture in the terminal's
signs and the command that plays the puzzle there.
"""

from dataclasses import asdict
from html import escape
from typing import Any

from mini_kv.course.commands.puzzle_command import call_count, prompt_lines
from mini_kv.story.figure import puzzle_data
from mini_kv.story.puzzle import Puzzle, PuzzlePlayer, load_puzzle, puzzle_names
from mini_kv.story.still import svg
from mini_kv.story.text import LEGEND
from mini_kv_book.fences import code
from mini_kv_book.fences import fence as as_fence
from mini_kv_book.lab import inert, megabytes
from mini_kv_book.runs import FenceError

WIDTH = 330
"""Width of a small picture in pixels: seven cards in a row."""


@as_fence
def fence(body: str, _md: Any) -> str:
    """Return the puzzle of that name, to be played in the page."""
    name = body.strip()
    if name not in puzzle_names():
        raise FenceError(f"there is no puzzle {name!r}; there are: {', '.join(puzzle_names())}")
    return level(load_puzzle(name), megabytes())


def level(puzzle: Puzzle, size: int | None) -> str:
    """Return a puzzle under its heading: `#make-room` is its address.

    The heading is not in the page's contents: the grid leads to it.
    """
    number = puzzle_names().index(puzzle.name) + 1
    return (
        f'<section class="kv-level"><h2 id="{puzzle.name}" tabindex="-1">{number}. {escape(puzzle.scenario.title)}</h2>'
        f"{element(puzzle, size)}</section>"
    )


def element(puzzle: Puzzle, size: int | None) -> str:
    """Return `<kv-puzzle>`. `size`: MB that a first call loads. Without it the page shows the command to play it."""
    player = PuzzlePlayer(puzzle)
    story = puzzle_data(player)
    strips = [asdict(strip) for strip in player.strips()]
    about = {
        "calls": puzzle.calls,
        "most": puzzle.most_calls,
        "hint": puzzle.hint,
        "size": puzzle.scenario.block_size,
        "strips": strips,
        "story": story,
        "megabytes": size,
    }
    data = f'<script type="application/json">{inert(about)}</script>' if size is not None else ""
    said = " ".join(step["say"] for step in story["steps"])
    calls = ", ".join(f"<code>{escape(call)}</code>" for call in puzzle.calls)
    picture = "\n".join([*prompt_lines(puzzle), "", story["drawing"], "", LEGEND])
    return (
        f'<div><kv-puzzle name="{puzzle.name}"{" python" if size is not None else ""}>{data}'
        f'<p slot="goal"><strong>Goal, in at most {call_count(puzzle.most_calls)}:</strong> {escape(puzzle.goal)}</p>'
        f"<p>{story['title']}. {escape(said)}</p>{code(picture, 'text')}"
        f"<p>The calls: {calls}. Play it in a terminal:</p>"
        f"{code(f'mini-kv puzzle {puzzle.name}', 'text')}"
        f'<p class="kv-ways" slot="ways">{ways_on(puzzle.name)}</p></kv-puzzle></div>'
    )


def ways_on(name: str) -> str:
    """Return links to the next puzzle, if there is one, and to the grid."""
    next_names = puzzle_names()[puzzle_names().index(name) + 1 :][:1]
    following = [f'<a href="#{one}">Next: {escape(load_puzzle(one).scenario.title)}</a>' for one in next_names]
    return " ".join([*following, '<a href="#puzzles">All puzzles</a>'])


def as_markdown() -> str:
    """Return the grid of puzzles and then each of them, the easiest first."""
    puzzles = [load_puzzle(name) for name in puzzle_names()]
    fences = [f"\n```kv-puzzle\n{puzzle.name}\n```" for puzzle in puzzles]
    return "\n".join([grid(puzzles), *fences])


def grid(puzzles: list[Puzzle]) -> str:
    """Return a list of links, each with a picture, the number of calls, and room for the reader's result."""
    cards = [
        f'<li><div class="kv-thumb" aria-hidden="true">{small_picture(puzzle)}</div>'
        f'<a href="#{puzzle.name}">{number}. {escape(puzzle.scenario.title)}</a>'
        f"<span>{puzzle.minutes} minutes, {call_count(puzzle.most_calls)}</span>"
        f'<strong data-puzzle="{puzzle.name}"></strong></li>'
        for number, puzzle in enumerate(puzzles, start=1)
    ]
    return f'<ol class="kv-grid">{"".join(cards)}</ol>'


def small_picture(puzzle: Puzzle) -> str:
    """Return the still of a moment in the puzzle, without words, which would be too small to read."""
    player = PuzzlePlayer(puzzle)
    for call in puzzle.picture:
        player.call(call)
    story = puzzle_data(player)
    for step in story["steps"]:
        step.pop("words", None)
    return svg(story, width=WIDTH)

"""The fence kv-challenge: an editor for a cache of the reader's own, and the board of the contract's scenarios.

It has no body. Without packed Python, or without scripts, the reader sees the empty file and how to play it.
"""

from functools import cache
from typing import Any

from mini_kv.course.given.challenge import Variant, draw
from mini_kv.course.verify.challenge import squares
from mini_kv.course.verify.compare import CORE
from mini_kv_book.course import closed_sentence, course
from mini_kv_book.fences import code
from mini_kv_book.fences import fence as as_fence
from mini_kv_book.lab import ASSETS, inert, megabytes
from mini_kv_book.places import ROOT
from mini_kv_book.runs import FenceError

LAB = "lab-17"
COMMAND = "mini-kv verify --challenge answer.py"


@cache
def variant() -> Variant:
    """Return the variant of the contract that the class has."""
    return draw(course().challenge)


@as_fence
def fence(body: str, _md: Any) -> str:
    """Show the challenge. Raises `FenceError` if the fence is not empty."""
    if body.strip():
        raise FenceError(f"kv-challenge has no fields, but this one says {body.strip()!r}")
    closed = closed_sentence(LAB)
    return f"<p>{closed}</p>" if closed else element(megabytes())


def element(size: int | None) -> str:
    """Return `<kv-challenge>`. `size`: MB of Python that a first run loads. Without it the page cannot play."""
    python = (ROOT / f"mini_kv/course/labkit/starters/{LAB}.txt").read_text(encoding="utf-8")
    rows = [
        {"topic": topic, "extra": topic not in CORE, "squares": [each.scenario.name for each in of_topic]}
        for topic, of_topic in squares(variant()).items()
    ]
    javascript = (ASSETS / "challenge_empty.js.txt").read_text(encoding="utf-8")
    about = {"megabytes": size, "rows": rows, "empty": {"python": python, "javascript": javascript}}
    data = f'<script type="application/json">{inert(about)}</script>' if size else ""
    said = "<p>Save the empty file as <code>answer.py</code>. In a terminal the board plays it:</p>"
    whole = f"{data}{said}{code(COMMAND, 'text')}{code(python, 'python')}"
    return f"<div><kv-challenge{' python' if size else ''}>{whole}</kv-challenge></div>"

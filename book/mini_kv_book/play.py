"""The fence kv-play: the engine in the page, with the reader's own texts.

Each line of the fence is a case: fields as in an address, a bar, and words. The fields are the levers of
`mini_kv/course/lessons/play.py`, `model`, and `a`, `b` and `c`, the texts of the boxes. The page opens on the first
case. Without packed Python, or without scripts, the reader sees the texts and a command that serves the same model.
"""

from html import escape
from typing import Any

from mini_kv.course.lessons.play import Levers
from mini_kv.policy.catalogue import POLICIES
from mini_kv_book.assets.play_page import BOXES, MODELS, problem
from mini_kv_book.fences import code
from mini_kv_book.fences import fence as as_fence
from mini_kv_book.lab import inert, megabytes
from mini_kv_book.plan import case_of
from mini_kv_book.runs import FenceError


@as_fence
def fence(body: str, _md: Any) -> str:
    """Show the boxes of the first case, and buttons for the others."""
    cases = [case_of(line) for line in body.strip().splitlines()]
    for given, _ in cases:
        if said := problem(given):
            raise FenceError(said)
    return element(cases, megabytes())


def element(cases: list[tuple[dict[str, str], str]], size: int | None) -> str:
    """Return `<kv-play>`. `size`: MB of Python that a first step loads. Without it the page cannot run an engine."""
    about = {
        "cases": cases,
        "megabytes": None if size is None else size + 2,
        "levers": Levers().as_texts(),
        "policies": list(POLICIES),
        "models": list(MODELS.items()),
    }
    data = f'<script type="application/json">{inert(about)}</script>' if size is not None else ""
    texts = "".join(f"<p>{escape(text)}</p>" for name, text in cases[0][0].items() if name in BOXES)
    said = "<p>These texts run in the page if it has scripts. In a terminal, the same model answers your browser:</p>"
    python = " python" if size is not None else ""
    return f"<div><kv-play{python}>{data}{texts}{said}{code('mini-kv serve', 'text')}</kv-play></div>"

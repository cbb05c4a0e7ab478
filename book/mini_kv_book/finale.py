"""The fence kv-finale: the finale in the page, with the reader's own parts of all labs.

It has no body. Without packed Python, or without scripts, the reader sees the command that plays it in a terminal.
"""

from typing import Any

from mini_kv.course.labkit.lab import all_labs
from mini_kv_book.course import closed_sentence
from mini_kv_book.fences import code
from mini_kv_book.fences import fence as as_fence
from mini_kv_book.lab import inert, megabytes
from mini_kv_book.places import ROOT
from mini_kv_book.runs import FenceError


@as_fence
def fence(body: str, _md: Any) -> str:
    """Show the finale. Raises `FenceError` if the fence is not empty."""
    if body.strip():
        raise FenceError(f"kv-finale has no fields, but this one says {body.strip()!r}")
    return element(megabytes())


def element(size: int | None) -> str:
    """Return `<kv-finale>`. `size`: MB of Python that a first run loads. Without it the page cannot play."""
    labs = [
        {
            "id": lab.lab_id,
            "title": lab.title,
            "starter": (ROOT / "mini_kv" / "course" / "labkit" / "starters" / f"{lab.lab_id}.txt").read_text(
                encoding="utf-8"
            ),
        }
        for lab in all_labs(ROOT)
        if lab.needs == "C" and any(part.goes_to for part in lab.parts) and not closed_sentence(lab.lab_id)
    ]
    data = f'<script type="application/json">{inert({"megabytes": size, "labs": labs})}</script>' if size else ""
    said = "<p>In a terminal, with the parts that you have written:</p>"
    command = code("mini-kv finale --labs starter", "text")
    return f"<div><kv-finale{' python' if size else ''}>{data}{said}{command}</kv-finale></div>"

"""The fence kv-session: a coding agent's session file in the page, drawn in blocks.

It has no body. Without packed Python, or without scripts, the reader sees the command that reads a file in a terminal.
"""

from typing import Any

from mini_kv_book.fences import code
from mini_kv_book.fences import fence as as_fence
from mini_kv_book.lab import inert, megabytes
from mini_kv_book.runs import FenceError


@as_fence
def fence(body: str, _md: Any) -> str:
    """Show the element. Raises `FenceError` if the fence is not empty."""
    if body.strip():
        raise FenceError(f"kv-session has no fields, but this one says {body.strip()!r}")
    return element(megabytes())


def element(size: int | None) -> str:
    """Return `<kv-session>`. `size`: MB of Python that a first run loads. Without it the page cannot read a file."""
    data = f'<script type="application/json">{inert({"megabytes": size})}</script>' if size else ""
    said = "<p>In a terminal, with a file of your own or the example:</p>"
    command = code("mini-kv session example", "text")
    return f"<div><kv-session{' python' if size else ''}>{data}{said}{command}</kv-session></div>"

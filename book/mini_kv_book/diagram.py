"""Mermaid's diagrams become SVG when the book is built. Their colours come from the page's stylesheet, dark mode too."""

import hashlib
import re
from typing import Any

import mermaidx

from mini_kv_book.fences import fence
from mini_kv_book.runs import FenceError


@fence
def mermaid(body: str, _md: Any) -> str:
    """Draw a diagram."""
    try:
        svg = str(mermaidx.render(body, theme="neutral").svg())
    except Exception as error:  # whatever Mermaid's own JavaScript raised
        raise FenceError(str(error)) from error
    name = "diagram-" + hashlib.sha256(body.encode()).hexdigest()[:8]  # ids are the page's: each diagram needs its own
    label = re.search(r"accTitle: *(.+)", body)
    svg = svg.replace("my-svg", name).replace('role="graphics-document document"', 'role="img"')
    if label is None:
        raise FenceError("a diagram needs a line `accTitle: ...`, for readers who cannot see it")
    return f'<figure class="kv-diagram">{svg}</figure>'

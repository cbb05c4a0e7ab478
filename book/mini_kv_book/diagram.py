"""Mermaid diagrams become SVG when the book is built. Their colours come from the stylesheet, in dark mode too."""

import hashlib
import re
from typing import Any

import mermaidx

from mini_kv_book.fences import fence
from mini_kv_book.kept import kept
from mini_kv_book.runs import FenceError


@fence
def mermaid(body: str, _md: Any) -> str:
    """Draw a diagram."""
    try:
        svg: str = kept()(["mermaid", body], lambda: str(mermaidx.render(body, theme="neutral").svg()))
    except Exception as error:  # whatever Mermaid's own JavaScript raised
        raise FenceError(str(error)) from error
    if not re.search(r"^ *accTitle: *\S", body, re.MULTILINE):
        raise FenceError("a diagram needs a line `accTitle: ...`, for readers who cannot see it")
    name = "diagram-" + hashlib.sha256(body.encode()).hexdigest()[:8]  # ids are the page's: each diagram needs its own
    svg = svg.replace("my-svg", name).replace('role="graphics-document document"', 'role="img"')
    # Below seven tenths of its size a diagram's text is too small to read: then it scrolls instead of shrinking.
    svg = re.sub(r"max-width: ([\d.]+)px;", lambda w: f"{w[0]} min-width: {float(w[1]) * 0.7:.0f}px;", svg, count=1)
    return f'<figure class="kv-diagram">{svg}</figure>'

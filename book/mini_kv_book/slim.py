"""A hook of MkDocs: every page comes without the bytes that it does not need."""

import re
from typing import Any

_MAIN = '<div class="md-content"'
_SYMBOLS = re.compile(r'\s*<link rel="stylesheet" href="[^"]*_mkdocstrings\.css">')


def on_post_page(output: str, *, page: Any, config: Any) -> str:
    """Return the page without the template's indentation, and without the style of symbols outside `api/`.

    Only what stands before the text is touched: a listing keeps every blank.
    """
    if _MAIN not in output:
        return output
    head, text = output.split(_MAIN, 1)
    if not page.file.src_uri.startswith("api/"):
        head = _SYMBOLS.sub("", head)
    return re.sub(r"\n\s+", "\n", head) + _MAIN + text

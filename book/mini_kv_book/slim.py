"""A hook of MkDocs: every page comes without the bytes that it does not need."""

import re
from typing import Any

_MAIN = '<div class="md-content"'
_PLAIN = re.compile(r'<span class="[nw]">([^<]*)</span>')  # names and blanks of listings, in the text's own colour
_SYMBOLS = re.compile(r'\s*<link rel="stylesheet" href="[^"]*_mkdocstrings\.css">')


def on_post_page(output: str, *, page: Any, config: Any) -> str:
    """Return the page without the template's indentation and, outside `api/`, without the style of symbols.

    Listings keep every character; they lose the marks that change no colour.
    """
    if _MAIN not in output:
        return output
    head, text = output.split(_MAIN, 1)
    if not page.file.src_uri.startswith("api/"):
        head = _SYMBOLS.sub("", head)
    return re.sub(r"\n\s+", "\n", head) + _MAIN + _PLAIN.sub(r"\1", text)

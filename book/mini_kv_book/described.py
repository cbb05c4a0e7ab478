"""A hook of MkDocs: every page has a description, for search engines and shared links."""

import html
import re
from typing import Any

PARAGRAPH = re.compile(r"<p>(.*?)</p>", re.DOTALL)
NO_WORDS = re.compile(r".{,40}$|On your own machine")  # a row of badges; how a lab is solved
TAG = re.compile(r"<[^>]+>")


def on_page_content(content: str, *, page: Any, config: Any, files: Any) -> str:
    """Use a page's first words as its description, unless it has its own. The page itself is unchanged."""
    if words := first_words(content):
        page.meta.setdefault("description", html.escape(words))  # the theme puts it between quotation marks as it is
    return content


def first_words(content: str, at_most: int = 200) -> str:
    """Return the text of the first paragraph with words, cut between two of them, or an empty string.

    >>> first_words("<p>CPU-OK</p><p>A <em>block</em> &amp; its hash, until a request needs it</p>", 20)
    'A block & its…'
    """
    texts = [" ".join(html.unescape(TAG.sub("", found)).split()) for found in PARAGRAPH.findall(content)]
    text = next((text for text in texts if not NO_WORDS.match(text)), "")
    return text if len(text) <= at_most else text[: at_most - 1].rsplit(" ", 1)[0] + "…"

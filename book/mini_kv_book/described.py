"""A hook of MkDocs: every page describes itself, to search engines and where a link to it is shown."""

import html
import re
from typing import Any

PARAGRAPH = re.compile(r"<p>(.*?)</p>", re.DOTALL)
NO_WORDS = re.compile(r".{,40}$|Solve it |\d+ minutes, difficulty|On your own machine")
"""A row of badges, and how a lab's page says where it is solved and how long it takes."""
TAG = re.compile(r"<[^>]+>")


def on_page_content(content: str, *, page: Any, config: Any, files: Any) -> str:
    """Take a page's first words for its description, unless it has one of its own. The page itself stays as it is."""
    if words := first_words(content):
        page.meta.setdefault("description", html.escape(words))  # the theme puts it between quotation marks as it is
    return content


def first_words(content: str, at_most: int = 200) -> str:
    """Return the text of the first paragraph that has words, cut between two of them; empty if there is none.

    >>> first_words("<p>CPU-OK</p><p>A <em>block</em> &amp; its hash, until a request needs it</p>", 20)
    'A block & its…'
    """
    texts = [" ".join(html.unescape(TAG.sub("", found)).split()) for found in PARAGRAPH.findall(content)]
    text = next((text for text in texts if not NO_WORDS.match(text)), "")
    return text if len(text) <= at_most else text[: at_most - 1].rsplit(" ", 1)[0] + "…"

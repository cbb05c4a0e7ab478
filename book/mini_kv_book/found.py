"""A hook of MkDocs: the search leads to the chapter that teaches a word, in English and in Chinese, and is small.

Which chapter teaches which word, `book/data/taught.toml` says. The glossary shows it to readers as links; the search
has it as keywords of the chapter, which count most. Listings are left out of the index, and of the engine's pages all
but names and first sentences. The theme reads the rest, cut into words by jieba where it is Chinese.
"""

import json
import logging
import re
from pathlib import Path
from typing import Any

from mini_kv_book.taught import GLOSSARY, TERM, glossary, title_of, words

ENTRY = re.compile(TERM.pattern + r"(?:.+\n?(?:    .+\n?)*)", re.MULTILINE)
HAN = re.compile(r"[\u4e00-\u9fff]+")
LISTING = re.compile(r"<pre>.*?</pre>", re.DOTALL)
BLANKS = re.compile(r"(?:\s|<p></p>)+")
API_BOOST = 0.2
"""What a page of the engine counts, where a page of prose counts 1."""


def on_startup(*, command: str, dirty: bool) -> None:
    """Have jieba be quiet: it would tell of each start."""
    import jieba  # type: ignore[import-untyped]  # only a build has it

    jieba.setLogLevel(logging.WARNING)


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Any) -> str:
    """Return the glossary with a link to the chapters of each word; other pages as they are."""
    return with_chapters(markdown) if page.file.src_uri == GLOSSARY else markdown


def with_chapters(markdown: str) -> str:
    """Return a glossary whose definitions lead to the chapters that teach their words."""

    def entry(found: re.Match[str]) -> str:
        chapters = [name for name, those in words().items() if found["english"] in those]
        links = ", ".join(f"[{title_of(name)}](../chapters/{name}.md)" for name in chapters)
        return f"{found[0].rstrip()}\n    Chapter: {links}.\n" if links else found[0]

    return ENTRY.sub(entry, markdown)


def on_post_build(*, config: Any) -> None:
    """Write the search's index anew."""
    path = Path(config.site_dir, "search", "search_index.json")
    index = json.loads(path.read_text(encoding="utf-8"))
    index["docs"] = [indexed(entry) for entry in index["docs"]]
    path.write_text(json.dumps(index, ensure_ascii=False, separators=(",", ":")), encoding="utf-8", newline="\n")


def indexed(entry: dict[str, Any]) -> dict[str, Any]:
    """Return an entry, a section of a page, as it is searched: without listings, a chapter's first with keywords."""
    text = BLANKS.sub(" ", LISTING.sub(" ", entry["text"])).strip()
    place = entry["location"]
    if place.startswith("api/"):
        return {**entry, "text": first_sentence(text), "boost": API_BOOST}
    those = words().get(place.removeprefix("chapters/").strip("/"))
    return {**entry, "text": text} | ({"tags": keywords(those)} if those else {})


def first_sentence(text: str) -> str:
    """Return the first paragraph's first sentence.

    >>> first_sentence("<p>A block of <code>x.y</code>. And more.</p> <p>Args:</p>")
    'A block of x.y.'
    """
    paragraph = re.sub("<[^>]+>", "", re.split("</p>", text, maxsplit=1)[0]).strip()
    return re.split(r"(?<=\.)\s", paragraph, maxsplit=1)[0]


def keywords(those: list[str]) -> list[str]:
    """Return a chapter's words, those of the glossary with their Chinese one, as the search reads them."""
    import jieba

    chinese = glossary()
    both = [f"{word} {chinese[word]}" if word in chinese else word for word in those]
    return [HAN.sub(lambda found: "\u200b".join(jieba.cut(found[0])), word) for word in both]

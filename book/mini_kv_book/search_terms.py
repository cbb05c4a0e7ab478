"""A hook of MkDocs: the search leads to the chapter that teaches a word, in English and in Chinese, and is small.

`book/data/taught.toml` lists the words that each chapter teaches. The glossary shows them to readers as links. The
search has them as keywords of the chapter, with the most weight. Listings, drawings and tables of numbers are left out
of the index, so that two builds of the same files have the same one: measured times differ. Of the engine's pages it
has only names and first sentences. The theme reads the rest. jieba cuts Chinese text into words. The theme's copy of
lunr, which searches in the browser, is mended. The index is loaded when it is needed.
"""

import html
import json
import logging
import re
from pathlib import Path
from typing import Any

from mini_kv_book.curriculum import GLOSSARY, TERM, glossary, title_of, words

_ENTRY = re.compile(TERM.pattern + r"(?:.+\n?(?:    .+\n?)*)", re.MULTILINE)
_HAN = re.compile(r"[\u4e00-\u9fff]+")
_LISTING = re.compile(r"<pre>.*?</pre>", re.DOTALL)
_DRAWN = re.compile(r'<(?:kv-story|kv-planes|svg|figure class="kv-instrument")(?=[ >])')
_TABLE = re.compile(r"<table(?=[ >]).*?</table>", re.DOTALL)
_CELL = re.compile(r"<td[^>]*>(.*?)</td>", re.DOTALL)
LEFT_OUT = ' data-search-exclude="numbers"'
"""The theme's attribute of an element whose text is not in the index. The theme removes it from the page."""
_MOST_LETTERS = 3
"""Letters of a number's unit in a table."""
_BLANKS = re.compile(r"(?:\s|<p></p>)+")
MENDED = [
    ("workers/search.*.js", "e=e+s+o.id", 'e=e+s+o.id+","'),
    (
        "workers/search.*.js",
        "for(let a of s)this.pipeline",
        'for(let a of o===lunr.zh?["stopWordFilter",...s]:s)this.pipeline',
    ),
    ("bundle.*.js", 'L($(location.protocol!=="file:"),Je("search"))', 'Je("search")'),
    (
        "bundle.*.js",
        "Mn(e,t=new Worker(e))",
        'Mn(e,t=location.protocol==="file:"?new Worker(e):Object.assign(new EventTarget,{postMessage(r){'
        "this.real||(this.real=new Worker(e),this.real.onmessage="
        'o=>this.dispatchEvent(new MessageEvent("message",{data:o.data}))),this.real.postMessage(r)}}))',
    ),
    (
        "bundle.*.js",
        'z([t,r.pipe(Q(we()),g(o=>!!o.searchParams.get("h")))])',
        'r.pipe(Q(we()),g(o=>!!o.searchParams.get("h")),b(o=>z([t,$(o)])))',
    ),
]
"""What scripts of the theme say, and what they say in the book.

`TokenSet.toString` of lunr is the key of a node in its tree of words: of each edge the letter, and the number of the
node behind it. Without a separator an edge 1 to node 234 looks like the edges 1 to node 2 and 3 to node 4. Nodes of the
same key become one. So words with digits are lost, and others are in the tree that are not in the index. A query for
words that begin like one of these ends in a TypeError, and finds nothing.

Chinese words such as 已 and 自 are not indexed by lunr, and a query that begins with one of them finds nothing. Here
they are indexed.

The theme loads the search's index with every page, and makes lunr's tree of it in a worker. The book does so when the
search is opened, or when an address has words to mark, after `h=`. The worker starts with its first message. On a page
that was opened as a file it starts at once: the browser refuses it there, and the theme hides the search.
"""
_API_BOOST = 1e-6
"""Weight of a page of the engine in the search. It comes after every page of prose with the same word: such a page has
the weight 1, and a word in a title counts 1,000 times."""


def on_startup(*, command: str, dirty: bool) -> None:
    """Silence jieba, which would log each start."""
    import jieba  # type: ignore[import-untyped]  # only a build has it

    jieba.setLogLevel(logging.WARNING)


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Any) -> str:
    """Return the glossary with links to the chapters of each word. Return other pages unchanged."""
    return _with_chapters(markdown) if page.file.src_uri == GLOSSARY else markdown


def _with_chapters(markdown: str) -> str:
    """Return a glossary whose definitions link to the chapters that teach their words."""

    def entry(found: re.Match[str]) -> str:
        chapters = [name for name, those in words().items() if found["english"] in those]
        links = ", ".join(f"[{title_of(name)}](../chapters/{name}.md)" for name in chapters)
        return f"{found[0].rstrip()}\n    Chapter: {links}.\n" if links else found[0]

    return _ENTRY.sub(entry, markdown)


def on_page_content(content: str, *, page: Any, config: Any, files: Any) -> str:
    """Return the page with a mark on what the search leaves out."""
    return marked(content)


def marked(page: str) -> str:
    """Return a page's HTML with a mark on each drawing and each table of numbers.

    >>> marked("<table><td>LRU</td><td>12.5 ms</td></table>")
    '<table data-search-exclude="numbers"><td>LRU</td><td>12.5 ms</td></table>'
    >>> marked("<table><td>LRU</td><td>the least recently used</td></table>")
    '<table><td>LRU</td><td>the least recently used</td></table>'
    """
    page = _DRAWN.sub(lambda found: found[0] + LEFT_OUT, page)
    return _TABLE.sub(
        lambda found: found[0].replace("<table", "<table" + LEFT_OUT, 1 if _of_numbers(found[0]) else 0), page
    )


def _of_numbers(table: str) -> bool:
    """Return whether at least half of a table's cells are numbers, with or without a unit."""
    cells = [html.unescape(re.sub("<[^>]+>", "", cell)) for cell in _CELL.findall(table)]
    numbers = [cell for cell in cells if re.search(r"\d", cell) and len(re.findall(r"[^\W\d_]", cell)) <= _MOST_LETTERS]
    return 2 * len(numbers) >= len(cells) > 0


def on_post_build(*, config: Any) -> None:
    """Write the search's index anew, and mend the theme's scripts. Raises `PluginError` where they are others."""
    for script, theirs, ours in MENDED:
        (path,) = Path(config.site_dir, "assets", "javascripts").glob(script)
        path.write_text(mended(path.read_text(encoding="utf-8"), theirs, ours), encoding="utf-8", newline="\n")
    path = Path(config.site_dir, "search", "search_index.json")
    index = json.loads(path.read_text(encoding="utf-8"))
    index["docs"] = [_indexed(entry) for entry in index["docs"]]
    path.write_text(json.dumps(index, ensure_ascii=False, separators=(",", ":")), encoding="utf-8", newline="\n")


def mended(script: str, theirs: str, ours: str) -> str:
    """Return one of the theme's scripts with a piece of it replaced."""
    from mkdocs.exceptions import PluginError

    if script.count(theirs) != 1:
        raise PluginError(f"the theme's search has no {theirs!r}: see what does its work now")
    return script.replace(theirs, ours)


def _indexed(entry: dict[str, Any]) -> dict[str, Any]:
    """Return an index entry for a section of a page: without listings, a chapter's first one with keywords."""
    text = _BLANKS.sub(" ", _LISTING.sub(" ", entry["text"])).strip()
    place = entry["location"]
    if place.startswith("api/"):
        return {**entry, "text": _first_sentence(text), "boost": _API_BOOST}
    those = words().get(place.removeprefix("chapters/").strip("/"))
    return {**entry, "text": text} | ({"tags": _keywords(those)} if those else {})


def _first_sentence(text: str) -> str:
    """Return the first paragraph's first sentence.

    >>> _first_sentence("<p>A block of <code>x.y</code>. And more.</p> <p>Args:</p>")
    'A block of x.y.'
    """
    paragraph = re.sub("<[^>]+>", "", re.split("</p>", text, maxsplit=1)[0]).strip()
    return re.split(r"(?<=\.)\s", paragraph, maxsplit=1)[0]


def _keywords(those: list[str]) -> list[str]:
    """Return a chapter's words in the search's form, those of the glossary with their Chinese word."""
    import jieba

    chinese = glossary()
    both = [f"{word} {chinese[word]}" if word in chinese else word for word in those]
    return [_HAN.sub(lambda found: "\u200b".join(jieba.cut(found[0])), word) for word in both]

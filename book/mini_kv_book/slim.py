"""A hook of MkDocs: removes the unneeded bytes of every page."""

import re
from pathlib import Path
from typing import Any

_MAIN = '<div class="md-content"'
_PLAIN = re.compile(r'<span class="[nw]">([^<]*)</span>')  # names and blanks of listings, in the text's own colour
_SYMBOLS = re.compile(r'\s*<link rel="stylesheet" href="[^"]*_mkdocstrings\.css">')


def on_post_page(output: str, *, page: Any, config: Any) -> str:
    """Return the page without the template's indentation and, outside `api/`, without the style of symbols.

    Listings keep every character, but lose the marks without a colour.
    """
    if _MAIN not in output:
        return output
    head, text = output.split(_MAIN, 1)
    if not page.file.src_uri.startswith("api/"):
        head = _SYMBOLS.sub("", head)
    return re.sub(r"\n\s+", "\n", head) + _MAIN + _PLAIN.sub(r"\1", text)


_RULE = re.compile(r"([^{}@;]+)\{([^{}]*)\}")
_COMMA = re.compile(r",(?![^(\[]*[)\]])")  # between two selectors, not inside the brackets of one
_WORD = re.compile(r"[\w-]+")
_CLASS = re.compile(r"\.([\w-]+)")
_COLOUR = re.compile(r"\[data-md-color-\w+=([\w-]+)\]")


def on_post_build(*, config: Any) -> None:
    """Remove the theme's styles that apply to no page, a third of their bytes. Shorten the book's."""
    site = Path(config.site_dir)
    words: set[str] = set()
    for path in (*site.rglob("*.html"), *site.rglob("*.js")):
        words.update(_WORD.findall(path.read_text(encoding="utf-8")))
    for path in site.glob("assets/stylesheets/*.css"):
        path.write_text(without_unused(path.read_text(encoding="utf-8"), words), encoding="utf-8", newline="\n")
    path = site / "assets" / "book.css"
    path.write_text(short(path.read_text(encoding="utf-8")), encoding="utf-8", newline="\n")


def without_unused(css: str, words: set[str]) -> str:
    """Return a style sheet without the selectors of a class, or of a theme's colour, that is not one of these words.

    The words are those of all pages and scripts of the site, so classes set by a script are among them. Selectors for
    pages from right to left are removed too: the book has none.
    """

    def used(selector: str) -> bool:
        return "[dir=rtl]" not in selector and words.issuperset(
            (*_CLASS.findall(re.sub(r":not\([^)]*\)", "", selector)), *_COLOUR.findall(selector))
        )

    def rule(found: re.Match[str]) -> str:
        selectors = ",".join(filter(used, _COMMA.split(found[1])))
        return f"{selectors}{{{found[2]}}}" if selectors else ""

    return re.sub(r"@(?:media|supports)[^{}]*\{\}", "", _RULE.sub(rule, css))


def short(css: str) -> str:
    """Return a style sheet without comments, and without blanks around the signs between its parts.

    >>> short("/* the page */ .a, .b { color: red; } ")
    '.a,.b{color: red;}'
    """
    css = re.sub(r"\s+", " ", re.sub(r"/\*.*?\*/", "", css, flags=re.DOTALL))
    return re.sub(r" ?([{};,]) ?", r"\1", css).strip()

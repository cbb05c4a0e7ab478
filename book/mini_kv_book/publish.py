"""A hook of MkDocs: the whole book on one page, `whole.html`, to be printed or read without a network.

It has every page but the engine's, in the navigation's order, without a script: figures are the stills that tell most,
with their stories in words. Links between its pages stay inside it. `python -m mini_kv_book.pdf` makes a PDF of it.
"""

import html
import posixpath
import re
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from mini_kv_book.page_hooks import with_policy

NAME = "whole.html"
LEFT_OUT = ("api/", "teach/kill-matrix/", "play/", "puzzles/", "true-or-false/", "finale/", "session/", "fit/")
"""Pages that are left out, because readers look things up or play there."""

ARTICLE = re.compile(r'<article class="md-content__inner md-typeset">(.*?)</article>', re.DOTALL)
DRAWING = re.compile(r"(<svg.*?</svg>)", re.DOTALL)
NOT_ON_PAPER = (
    re.compile(r'<a class="headerlink".*?</a>', re.DOTALL),
    re.compile(r"<script.*?</script>", re.DOTALL),
    re.compile(r'<details class="example">\s*<summary>How it is drawn.*?</details>', re.DOTALL),
    re.compile(r'(?<=</p>)<div class="language-python highlight">(?:(?!</div>).)*</div>(?=</kv-lab>)', re.DOTALL),
    re.compile(r'<div class="kv-controls".*?</div>(?=<svg)', re.DOTALL),
)
ID = re.compile(r'(?<= id=")(?=[^"])')
LINK = re.compile(r'(?<= href=")[^"]*|(?<= src=")[^"]*')

_pages: list[Any] = []


def on_nav(nav: Any, *, config: Any, files: Any) -> Any:
    """Note the order of the pages."""
    _pages[:] = [page for page in nav.pages if not page.url.startswith(LEFT_OUT)]
    return nav


def on_post_build(*, config: Any) -> None:
    """Write the one page."""
    site = Path(config.site_dir)
    urls = {posixpath.normpath(page.url): page.url for page in _pages}
    parts = [chapter(url, (site / url / "index.html").read_text(encoding="utf-8"), urls) for url in urls.values()]
    page = PAGE.format(
        name=html.escape(config.site_name),
        description=html.escape(config.site_description),
        styles="".join(f'<link rel="stylesheet" href="{path}">' for path in styles(site)),
        licence=html.escape(config.copyright or ""),
        contents=contents(_pages),
        body="".join(parts),
    )
    (site / NAME).write_text(with_policy(page), encoding="utf-8", newline="\n")


def contents(pages: list[Any]) -> str:
    """Return the list of pages, under the names of the navigation's parts."""
    out, part = [], ""
    for page in pages:
        if page.ancestors and page.ancestors[-1].title != part:
            part = page.ancestors[-1].title
            out.append(f"</ul><h2>{html.escape(part)}</h2><ul>")
        out.append(f'<li><a href="#{slug(page.url)}">{html.escape(str(page.title))}</a></li>')
    return f"<ul>{''.join(out)}</ul>"


def styles(site: Path) -> list[str]:
    """Return the style sheets, from the site's root: the theme's, its colours, and the book's own."""
    theirs = sorted(path.relative_to(site).as_posix() for path in site.glob("assets/stylesheets/*.css"))
    return [path for path in theirs if "mkdocstrings" not in path] + ["assets/book.css"]


def chapter(url: str, page: str, urls: dict[str, str]) -> str:
    """Return a page's text as a part of the one page: its anchors are unique, its links stay inside if possible."""
    found = ARTICLE.search(page)
    text = found[1] if found else ""
    for pattern in NOT_ON_PAPER:
        text = pattern.sub("", text)
    text = text.replace("<details", "<details open")
    parts = DRAWING.split(text)
    for place in range(0, len(parts), 2):  # a drawing's names are its own already
        named = ID.sub(f"{slug(url)}--", parts[place])
        parts[place] = LINK.sub(lambda link: html.escape(led(html.unescape(link[0]), url, urls)), named)
    return f'<section id="{slug(url)}">{"".join(parts)}</section>'


def slug(url: str) -> str:
    """Return the name of a page inside the one page.

    >>> slug("chapters/the-free-queue/"), slug("")
    ('chapters-the-free-queue', 'start')
    """
    return url.strip("./").replace("/", "-") or "start"


def led(link: str, url: str, urls: dict[str, str]) -> str:
    """Return the target of a link of the page `url` in the one page, which is at the site's root.

    >>> led("../../labs/lab-05/#run", "chapters/01/", {"labs/lab-05": "labs/lab-05/"})
    '#labs-lab-05--run'
    >>> led("../../api/mini_kv.core/", "chapters/01/", {})
    'api/mini_kv.core/'
    """
    parts = urlsplit(link)
    if parts.scheme or parts.netloc:
        return link
    target = posixpath.normpath(posixpath.join(url, parts.path))
    if target in urls:
        return f"#{slug(urls[target])}" + (f"--{parts.fragment}" if parts.fragment else "")
    fragment = f"#{parts.fragment}" if parts.fragment else ""
    return target + ("/" if parts.path.endswith("/") else "") + fragment


PAGE = """<!doctype html>
<html lang="en" dir="ltr">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width,initial-scale=1">
<title>{name}: the whole book</title>
<meta name="description" content="{description}. The whole book on one page, to be printed.">
<link rel="icon" href="assets/favicon.svg">
<link rel="preload" href="assets/fonts/kv-text.woff2" as="font" type="font/woff2" crossorigin>
{styles}
</head>
<body class="kv-whole" data-md-color-scheme="default" data-md-color-primary="custom" data-md-color-accent="custom">
<main class="md-typeset">
<nav aria-label="Contents"><h1>{name}</h1><p>{description}.</p>
<p class="kv-away">All on one page, to be printed; nothing moves here. <a href="./">Page by page</a>.<!-- pdf --></p>
{contents}<p>{licence}.</p></nav>
{body}
</main>
</body>
</html>
"""

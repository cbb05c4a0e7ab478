"""A hook of MkDocs: the whole book on one page, `whole.html`, to be printed or read without a network.

It has every page but the engine's, in the navigation's order, without a script: figures are the stills that tell most,
with their stories in words. Links between its pages stay inside it.

    python -m mini_kv_book.publish book/site    writes book/site/mini_kv.pdf, and links to it where the site has room

This makes a PDF of it from a built site with this system's Chromium: `make book-pdf`. Nothing is fetched: the site's
files are read under the address that it will have, so that links out of the PDF lead there.
"""

import html
import mimetypes
import posixpath
import re
import shutil
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from mini_kv_book.page_hooks import with_policy

NAME = "whole.html"
_LEFT_OUT = ("api/", "teach/kill-matrix/", "play/", "puzzles/", "true-or-false/", "finale/", "session/", "fit/")
"""Pages that are left out, because readers look things up or play there."""

_ARTICLE = re.compile(r'<article class="md-content__inner md-typeset">(.*?)</article>', re.DOTALL)
_DRAWING = re.compile(r"(<svg.*?</svg>)", re.DOTALL)
_NOT_ON_PAPER = (
    re.compile(r'<a class="headerlink".*?</a>', re.DOTALL),
    re.compile(r"<script.*?</script>", re.DOTALL),
    re.compile(r'<details class="example">\s*<summary>How it is drawn.*?</details>', re.DOTALL),
    re.compile(r'(?<=</p>)<div class="language-python highlight">(?:(?!</div>).)*</div>(?=</kv-lab>)', re.DOTALL),
    re.compile(r'<div class="kv-controls".*?</div>(?=<svg)', re.DOTALL),
)
_ID = re.compile(r'(?<= id=")(?=[^"])')
LINK = re.compile(r'(?<= href=")[^"]*|(?<= src=")[^"]*')

_pages: list[Any] = []


def on_nav(nav: Any, *, config: Any, files: Any) -> Any:
    """Note the order of the pages."""
    _pages[:] = [page for page in nav.pages if not page.url.startswith(_LEFT_OUT)]
    return nav


def on_post_build(*, config: Any) -> None:
    """Write the one page."""
    site = Path(config.site_dir)
    urls = {posixpath.normpath(page.url): page.url for page in _pages}
    parts = [chapter(url, (site / url / "index.html").read_text(encoding="utf-8"), urls) for url in urls.values()]
    page = _PAGE.format(
        name=html.escape(config.site_name),
        description=html.escape(config.site_description),
        styles="".join(f'<link rel="stylesheet" href="{path}">' for path in styles(site)),
        licence=html.escape(config.copyright or ""),
        contents=_contents(_pages),
        body="".join(parts),
    )
    (site / NAME).write_text(with_policy(page), encoding="utf-8", newline="\n")


def _contents(pages: list[Any]) -> str:
    """Return the list of pages, under the names of the navigation's parts."""
    out, part = [], ""
    for page in pages:
        if page.ancestors and page.ancestors[-1].title != part:
            part = page.ancestors[-1].title
            out.append(f"</ul><h2>{html.escape(part)}</h2><ul>")
        out.append(f'<li><a href="#{_slug(page.url)}">{html.escape(str(page.title))}</a></li>')
    return f"<ul>{''.join(out)}</ul>"


def styles(site: Path) -> list[str]:
    """Return the style sheets, from the site's root: the theme's, its colours, and the book's own."""
    theirs = sorted(path.relative_to(site).as_posix() for path in site.glob("assets/stylesheets/*.css"))
    return [path for path in theirs if "mkdocstrings" not in path] + ["assets/book.css"]


def chapter(url: str, page: str, urls: dict[str, str]) -> str:
    """Return a page's text as a part of the one page: its anchors are unique, its links stay inside if possible."""
    found = _ARTICLE.search(page)
    text = found[1] if found else ""
    for pattern in _NOT_ON_PAPER:
        text = pattern.sub("", text)
    text = text.replace("<details", "<details open")
    parts = _DRAWING.split(text)
    for place in range(0, len(parts), 2):  # a drawing's names are its own already
        named = _ID.sub(f"{_slug(url)}--", parts[place])
        parts[place] = LINK.sub(lambda link: html.escape(_led(html.unescape(link[0]), url, urls)), named)
    return f'<section id="{_slug(url)}">{"".join(parts)}</section>'


def _slug(url: str) -> str:
    """Return the name of a page inside the one page.

    >>> _slug("chapters/the-free-queue/"), _slug("")
    ('chapters-the-free-queue', 'start')
    """
    return url.strip("./").replace("/", "-") or "start"


def _led(link: str, url: str, urls: dict[str, str]) -> str:
    """Return the target of a link of the page `url` in the one page, which is at the site's root.

    >>> _led("../../labs/lab-05/#run", "chapters/01/", {"labs/lab-05": "labs/lab-05/"})
    '#labs-lab-05--run'
    >>> _led("../../api/mini_kv.core/", "chapters/01/", {})
    'api/mini_kv.core/'
    """
    parts = urlsplit(link)
    if parts.scheme or parts.netloc:
        return link
    target = posixpath.normpath(posixpath.join(url, parts.path))
    if target in urls:
        return f"#{_slug(urls[target])}" + (f"--{parts.fragment}" if parts.fragment else "")
    fragment = f"#{parts.fragment}" if parts.fragment else ""
    return target + ("/" if parts.path.endswith("/") else "") + fragment


_PAGE = """<!doctype html>
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


# As a file to print ---------------------------------------------------------------------------------------------------

PDF = "mini_kv.pdf"
_PLACE = "<!-- pdf -->"
"""The place for the link in a page of the site."""
_BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome", "chromium-headless-shell")
_ADDRESS = "https://owner.github.io/mini_kv/"
_MARGINS: Any = {"top": "20mm", "bottom": "20mm", "left": "22mm", "right": "22mm"}
_FOOTER = (
    '<div style="width:100%;text-align:center;font:8pt sans-serif;color:#555"><span class="pageNumber"></span></div>'
)


def _address_of(site: Path) -> str:
    """Return the site's own address, as its first page has it."""
    canonical = (site / "index.html").read_text(encoding="utf-8").partition('<link rel="canonical" href="')[2]
    return canonical.partition('"')[0] or _ADDRESS


def write_pdf(site: Path, target: Path, browser: Any) -> None:
    """Print the whole book into a file: with an outline, with links, and with tags for screen readers."""
    home = _address_of(site)

    def answer(route: Any) -> None:
        file = site / urlsplit(route.request.url).path.removeprefix(urlsplit(home).path)
        kind = mimetypes.guess_type(file.name)[0] or "application/octet-stream"
        route.fulfill(body=file.read_bytes(), content_type=kind) if file.is_file() else route.abort()

    page = browser.new_page()
    page.route("**/*", answer)
    page.goto(home + NAME, wait_until="load")
    page.evaluate("document.fonts.ready")
    page.pdf(
        path=str(target),
        format="A4",
        outline=True,
        tagged=True,
        print_background=True,
        margin=_MARGINS,
        display_header_footer=True,
        header_template="<span></span>",
        footer_template=_FOOTER,
    )
    page.close()


def link(site: Path) -> None:
    """Put the link to the PDF, with its size, in the first page and the one page."""
    megabytes = (site / PDF).stat().st_size / 1e6
    for name in ("index.html", NAME):
        path = site / name
        said = f' <a href="{PDF}">The whole book as a PDF</a> ({megabytes:.0f} MB).'
        path.write_text(path.read_text(encoding="utf-8").replace(_PLACE, said), encoding="utf-8", newline="\n")


def main(site: Path) -> None:
    """Print the book of a built site, and link to it there."""
    from playwright.sync_api import sync_playwright  # which a build does not need

    path = next(filter(None, map(shutil.which, _BROWSERS)), None)
    if path is None:
        raise SystemExit("a PDF of the book is printed by Chromium or Chrome: install one and run this again")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        write_pdf(site, site / PDF, browser)
        browser.close()
    link(site)
    print(f"{site / PDF}: {(site / PDF).stat().st_size:,} bytes")


if __name__ == "__main__":
    main(Path(sys.argv[1]))

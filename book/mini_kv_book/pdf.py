"""Make a PDF of the whole book, from a built site and with this system's Chromium: `make book-pdf`.

    python -m mini_kv_book.pdf book/site        writes book/site/mini_kv.pdf, and links to it where the site has room

Nothing is fetched: the site's files are read under the address that it will have, so that links out of the PDF lead
there.
"""

import mimetypes
import shutil
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from playwright.sync_api import sync_playwright

from mini_kv_book.publish import NAME

PDF = "mini_kv.pdf"
PLACE = "<!-- pdf -->"
"""The place for the link in a page of the site."""
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome", "chromium-headless-shell")
ADDRESS = "https://owner.github.io/mini_kv/"
MARGINS: Any = {"top": "20mm", "bottom": "20mm", "left": "22mm", "right": "22mm"}
FOOTER = (
    '<div style="width:100%;text-align:center;font:8pt sans-serif;color:#555"><span class="pageNumber"></span></div>'
)


def address_of(site: Path) -> str:
    """Return the site's own address, as its first page has it."""
    canonical = (site / "index.html").read_text(encoding="utf-8").partition('<link rel="canonical" href="')[2]
    return canonical.partition('"')[0] or ADDRESS


def write_pdf(site: Path, target: Path, browser: Any) -> None:
    """Print the whole book into a file: with an outline, with links, and with tags for screen readers."""
    home = address_of(site)

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
        margin=MARGINS,
        display_header_footer=True,
        header_template="<span></span>",
        footer_template=FOOTER,
    )
    page.close()


def link(site: Path) -> None:
    """Put the link to the PDF, with its size, in the first page and the one page."""
    megabytes = (site / PDF).stat().st_size / 1e6
    for name in ("index.html", NAME):
        path = site / name
        said = f' <a href="{PDF}">The whole book as a PDF</a> ({megabytes:.0f} MB).'
        path.write_text(path.read_text(encoding="utf-8").replace(PLACE, said), encoding="utf-8", newline="\n")


def main(site: Path) -> None:
    """Print the book of a built site, and link to it there."""
    path = next(filter(None, map(shutil.which, BROWSERS)), None)
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

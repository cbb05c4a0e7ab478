"""A real browser for tests: Chromium of this system, driven by Playwright, with nothing allowed to leave the machine.

Debian's chromium-headless-shell is preferred. It has Chromium's engine without windows and profiles, so a test's new
page takes a quarter of the CPU time.

    def test_something(open_page):                     # open_page("file:///..."), and how the reader looks at it:
        page = open_page(url, width=390, dark=True)    # Playwright's Page

When the test is over, every page that it opened must have been silent: no error on the console, no exception, no
request to anywhere but files and this machine. `axe(page)` returns the serious accessibility findings.
"""

import importlib
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import urlsplit

import pytest

from mini_kv.story.figure import script
from mini_kv.tests.browser.fill_once import fill_once

HERE = Path(__file__).parent
PACKED = HERE.parents[2] / "book" / "docs" / "assets" / "kv-lab"
AXE = HERE / "node_modules" / "axe-core" / "axe.min.js"
ARGS = ["--no-sandbox", "--disable-background-networking", "--font-render-hinting=none"]
BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "chrome")
"""Programs that can run the tests. The first one that is installed does.

Without hinting, text is as wide in all of them.
"""

OpenPage = Callable[..., Any]
WriteSite = Callable[..., Path]

ELEMENT_PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<link rel="icon" href="data:,">
<title>{title}</title>
<style>:root {{ color-scheme: light dark }} body {{ margin: 0; background: light-dark(#fff, #121212);
color: light-dark(#111, #eee) }} a {{ color: light-dark(#0a6187, #7cc7ea) }}
pre {{ white-space: pre-wrap; overflow-wrap: anywhere }}</style>
<main><h1 id="{anchor}">{title}</h1>{content}</main>
<script src="assets/kv_story.js"></script>
<script src="assets/kv_page.js"></script>
</html>
"""
"""A page with an element of the book and nothing else."""


def chromium_path() -> str | None:
    """Return where this system has Chromium or Chrome."""
    return next(filter(None, map(shutil.which, BROWSERS)), None)


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Chromium, started once."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        pytest.skip("tests in a browser: Playwright is not installed; `make e2e` gets it")
    path = chromium_path()
    if path is None:
        pytest.skip("tests in a browser: there is no Chromium; install your system's (Debian: apt install chromium)")
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=path, args=ARGS)
        yield chromium
        chromium.close()


@pytest.fixture
def open_page(browser: Any) -> Iterator[OpenPage]:
    """A function that opens pages; whatever any of them complained about fails the test at its end."""
    with silent_pages(browser) as opener:
        yield opener


@contextmanager
def silent_pages(browser: Any) -> Iterator[OpenPage]:
    """A function that opens pages of a browser. Raises `AssertionError` at the end if any of them complained."""
    complaints: list[str] = []
    contexts = []

    def opener(
        url: str, *, width: int = 900, height: int = 900, dark: bool = False, init_script: str = "", **options: Any
    ) -> Any:
        context = browser.new_context(
            viewport={"width": width, "height": height},
            color_scheme="dark" if dark else "light",
            permissions=["clipboard-write"],  # a click has it; chromium-headless-shell asks a person who is not there
            **options,
        )
        contexts.append(context)
        if init_script:
            context.add_init_script(init_script)
        page = context.new_page()
        page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: None if stays_here(request.url) else complaints.append(request.url))
        page.goto(url)
        return page

    yield opener
    for context in contexts:
        context.close()
    assert complaints == []


def stays_here(url: str) -> bool:
    """Return whether a request stays on this machine."""
    parts = urlsplit(url)
    return parts.scheme in ("file", "data", "blob", "about") or parts.hostname in ("127.0.0.1", "localhost")


KEPT_PYTHON = """(() => {
  const Real = Worker, kept = [];  // those that are ready and have answered what they were asked, even before
  globalThis.Worker = class {
    constructor(script, { name, type }) {
      this.name = name;
      const found = kept.findIndex((one) => one.name === name);
      const [old] = found < 0 ? [] : kept.splice(found, 1);
      this.real = old?.real ?? new Real(script, { name, type });
      this.ready = Boolean(old);
      this.numAsked = 0;
      this.real.onmessage = ({ data }) => {
        if (data.type === "ready") this.ready = true;
        else if (data.type === "broken") this.ready = false;
        else if (!["loading", "progress", "begins", "ended"].includes(data.type)) this.numAsked -= 1;
        this.onmessage?.({ data });
      };
      this.real.onerror = (event) => { this.ready = false; this.onerror?.(event); };
      if (old) setTimeout(() => this.onmessage?.({ data: { type: "ready", seconds: 0 } }));
    }
    postMessage(message) {
      this.numAsked += 1;
      this.real.postMessage(message);
    }
    terminate() {
      this.onmessage = this.onerror = null;
      if (this.ready && this.numAsked === 0) kept.push(this);
      else this.real.terminate();
    }
  };
})()"""
"""A page in which an element gets the Python of one that is gone. To start another one takes 7 s of CPU."""

SWAP = """async (name) => {
  localStorage.clear();
  sessionStorage.clear();
  const page = new DOMParser().parseFromString(await (await fetch(name)).text(), "text/html");
  history.replaceState(null, "", name);
  document.documentElement.lang = page.documentElement.lang;
  document.querySelector("main").replaceWith(page.querySelector("main"));
  scrollTo(0, 0);
}"""


class WarmPage:
    """One page for the tests of a file, on which Python is ready. Each test gets the elements of its page anew."""

    def __init__(self, opener: OpenPage, address: str, first: str) -> None:
        self.page = opener(f"{address}/{first}", init_script=KEPT_PYTHON)

    def __call__(self, name: str, *, width: int = 900, height: int = 900, dark: bool = False, **media: Any) -> Any:
        """Show a page of the site as it is when it is opened for the first time, and return it."""
        self.page.set_viewport_size({"width": width, "height": height})
        self.page.emulate_media(
            **{"color_scheme": "dark" if dark else "light", "reduced_motion": "no-preference", **media}
        )
        self.page.evaluate(SWAP, name)
        return self.page


@pytest.fixture(scope="module")
def open_warm(browser: Any) -> Iterator[Callable[[Path, str], WarmPage]]:
    """A function that serves a folder and opens a page of it for all tests of a file."""
    with silent_pages(browser) as opener, serving() as server:
        yield lambda folder, first: WarmPage(opener, server(folder), first)


@pytest.fixture
def serve() -> Iterator[Callable[..., str]]:
    """A function that serves a folder over http, with a handler of the caller's if given, and returns its address."""
    with serving() as server:
        yield server


@contextmanager
def serving() -> Iterator[Callable[..., str]]:
    """A function that serves folders until the end."""
    servers = []

    class Silent(SimpleHTTPRequestHandler):
        def log_message(self, *args: Any) -> None:
            pass

    def server(folder: Path, handler: type[SimpleHTTPRequestHandler] = Silent) -> str:
        http = ThreadingHTTPServer(("127.0.0.1", 0), partial(handler, directory=str(folder)))
        thread = Thread(target=http.serve_forever)
        thread.start()
        servers.append((http, thread))
        return f"http://127.0.0.1:{http.server_port}"

    yield server
    for http, thread in servers:
        http.shutdown()
        thread.join()
        http.server_close()


@pytest.fixture(scope="module")
def write_site(tmp_path_factory: pytest.TempPathFactory) -> WriteSite:
    """A function that writes pages with elements of the book, and the scripts that they load, and returns the folder.

    `write_site("Puzzles", index=HTML, bare=HTML)` writes index.html and bare.html.
    """
    why = "elements of the book's pages: the book's packages are missing; `make site` gets them"
    elements = pytest.importorskip("mini_kv_book.elements", reason=why)
    with_policy = importlib.import_module("mini_kv_book.page_hooks").with_policy  # what the book's pages let run

    def write(title: str, **pages: str) -> Path:
        folder = tmp_path_factory.mktemp("site")
        assets = folder / "assets"
        assets.mkdir()
        if PACKED.is_dir():
            shutil.copytree(PACKED, assets / "kv-lab")
        for name in elements.SCRIPTS:
            shutil.copy(elements.ASSETS / name, assets / name)
        (assets / "kv_story.js").write_text(script(), encoding="utf-8")
        for name, content in pages.items():
            page = ELEMENT_PAGE.format(title=title, anchor=title.lower(), content=content)
            (folder / f"{name}.html").write_text(with_policy(page), encoding="utf-8")
        return folder

    return write


@pytest.fixture(scope="session")
def megabytes() -> int:
    """How many MB of Python an element loads. Without a packed Python the test is skipped."""
    elements = pytest.importorskip(
        "mini_kv_book.elements", reason="Python in the page: `make site` gets the book's packages"
    )
    size = elements.megabytes()
    if size is None:
        pytest.skip("Python in the page: it is not packed; `make test` does it where npm is")
    return int(size)


@pytest.fixture(scope="session")
def once(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, Callable[[Path], None]], Path]:
    """A function that lets the first process of a run fill a folder, and returns it. Others wait for that."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base

    return partial(fill_once, shared)


@pytest.fixture(scope="session")
def site(once: Callable[[str, Callable[[Path], None]], Path]) -> Path:
    """A student's book."""
    pytest.importorskip("mkdocs", reason="the book's packages are missing: make book-test")
    from mini_kv.tests.browser.built_book import PREFIX, build

    def fill(folder: Path) -> None:
        done = build(folder)
        assert done.returncode == 0, done.stderr[-3000:]

    return once(PREFIX.strip("/"), fill)


@pytest.fixture
def book_url(site: Path, serve: Callable[[Path], str]) -> str:
    """The address under which the book is served: below the project's name, as GitHub Pages does it."""
    return f"{serve(site.parent)}/{site.name}/"


@pytest.fixture
def axe() -> Callable[..., list[str]]:
    """A function that returns a page's serious accessibility findings, by all rules or some, each with where it is."""
    if not AXE.is_file():
        pytest.skip("accessibility: axe-core is missing; `make e2e` gets it (or: npm ci in mini_kv/tests/browser)")

    def findings(page: Any, rules: dict[str, Any] | None = None) -> list[str]:
        if not page.evaluate("'axe' in window"):  # through the debugger, which a page's own rules do not bind
            page.evaluate(AXE.read_text(encoding="utf-8"))
        options = {"resultTypes": ["violations"], **(rules or {})}
        violations = page.evaluate("options => axe.run(options).then(result => result.violations)", options)
        return [
            f"{one['id']} ({one['impact']}): {one['help']}: {[node['target'] for node in one['nodes']]}"
            for one in violations
            if one["impact"] in ("serious", "critical")
        ]

    return findings

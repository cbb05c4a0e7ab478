"""A fork that is published as book/docs/teach/publishing.md says, with a bare repository in GitHub's place.

The address is one of GitHub's, and git is told that it is the bare repository: so what the pages and notebooks say is
what runs. Nothing here asks a network.
"""

import json
import os
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path
from urllib.parse import unquote, urldefrag, urljoin, urlsplit

import pytest
from mini_kv_book.places import ROOT

from mini_kv import __version__
from mini_kv.course.labkit.course_settings import PLACEHOLDER
from mini_kv.tests.browser.built_book import build, page_names
from mini_kv.tests.browser.conftest import OpenPage
from mini_kv.tests.browser.test_book_site import Links

pytestmark = [pytest.mark.book, pytest.mark.timeout(900), pytest.mark.xdist_group("fork")]

ADDRESS = "https://github.com/a-school/kv-2027"


class Fork:
    """A clone of the bare repository, and how to run commands in it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.bare = folder / "clone", folder / "kv-2027.git"

    def run(self, *words: str, cwd: Path | None = None) -> str:
        """Run a command and return what it prints; the address is that of the bare repository."""
        environment = {name: value for name, value in os.environ.items() if name not in ("LAB_IMPL", "PYTHONPATH")}
        environment |= {
            "GIT_CONFIG_COUNT": "1",
            "GIT_CONFIG_KEY_0": f"url.{self.bare.as_uri()}.insteadOf",
            "GIT_CONFIG_VALUE_0": ADDRESS,
            **{f"GIT_{who}_{what}": "a@example.org" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")},
        }
        if cwd is None:
            cwd = self.folder
            environment["PYTHONPATH"] = f"{cwd}{os.pathsep}{cwd / 'book'}"
        done = subprocess.run(words, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout


@pytest.fixture(scope="module")
def fork(tmp_path_factory: pytest.TempPathFactory) -> Fork:
    """The page's steps: address, commit, push; then a fresh clone, as the workflow has it."""
    if shutil.which("git") is None:
        pytest.skip("a fork needs git")
    fork = Fork(tmp_path_factory.mktemp("fork"))
    names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout.decode()
    for name in filter(None, names.split("\0")):
        if (ROOT / name).is_file():
            (fork.folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, fork.folder / name)
    fork.run("git", "init", "-q", "-b", "main")
    fork.run("git", "add", "-A")
    fork.run("git", "commit", "-qm", "The course")
    fork.run("git", "init", "-q", "--bare", "-b", "main", str(fork.bare))
    fork.run(sys.executable, "-m", "mini_kv", "class", "address", ADDRESS)
    fork.run("git", "commit", "-qam", "Our address")
    fork.run("git", "push", "-q", ADDRESS, "main")
    shutil.rmtree(fork.folder)
    fork.run("git", "clone", "-q", ADDRESS, str(fork.folder), cwd=fork.bare)
    for made in ("book/.cache", "book/docs/assets/kv-lab"):  # what fences have computed, and the labs' packed Python
        if (ROOT / made).is_dir():
            shutil.copytree(ROOT / made, fork.folder / made)
    return fork


@pytest.fixture(scope="module")
def unpacked(fork: Fork) -> Path:
    """The fork's book, built and checked as the workflow does it, sent as a zip and unpacked in some other folder."""
    assert fork.run(sys.executable, "-m", "mini_kv_book.course").startswith(f"mini_kv: {ADDRESS}, published at ")
    done = build(fork.folder / "book/site", fork.folder)
    assert done.returncode == 0, done.stderr[-3000:]
    fork.run(sys.executable, "-m", "mini_kv_book.leaks", "book/site")
    archive = shutil.make_archive(str(fork.bare.parent / "site"), "zip", fork.folder / "book/site")
    place = fork.bare.parent / "another folder, för kv"
    shutil.unpack_archive(archive, place / "a/b")
    return place


def test_the_first_cell_of_a_notebook_installs_the_fork(fork: Fork, tmp_path: Path) -> None:
    """The very line of the cell. pip builds with what is installed here, so that it asks no registry."""
    pytest.importorskip("setuptools")
    notebook = json.loads((fork.folder / "notebooks/01-blocks-and-waste.ipynb").read_text(encoding="utf-8"))
    line = notebook["cells"][1]["source"][-1].strip()
    assert line == f'%pip install --quiet "mini_kv @ git+{ADDRESS}"'
    offline = ["--no-build-isolation", "--no-deps", "--no-index", "--target", str(tmp_path / "packages")]
    fork.run(sys.executable, "-m", "pip", "install", "--quiet", line.split('"')[1], *offline, cwd=tmp_path)
    code = f"import sys; sys.path.insert(0, {str(tmp_path / 'packages')!r}); import mini_kv; print(mini_kv.__file__)"
    assert Path(fork.run(sys.executable, "-P", "-c", code, cwd=tmp_path).strip()).is_relative_to(tmp_path)
    assert [path.name for path in (tmp_path / "packages").glob("*.dist-info")] == [f"mini_kv-{__version__}.dist-info"]


def test_a_crawler_that_begins_at_the_first_page_meets_no_dead_link(
    unpacked: Path, serve: Callable[[Path], str]
) -> None:
    """Served below /a/b/, which the site was not built for. Every page is reached, and no address is the old one."""
    start = f"{serve(unpacked)}/a/b/"
    ids, wanted, dead = crawl(start)
    assert dead == []
    assert [
        link for link in wanted if urldefrag(link)[1] and unquote(urldefrag(link)[1]) not in ids[urldefrag(link)[0]]
    ] == []
    assert {start + page for page in page_names(unpacked / "a/b")} - set(ids) == set()
    first = (unpacked / "a/b/index.html").read_text(encoding="utf-8")
    assert ("a-school.github.io/kv-2027" in first, PLACEHOLDER in first) == (True, False)


def crawl(start: str) -> tuple[dict[str, set[str]], set[str], list[str]]:
    """Follow every link below an address; return the ids of each page, all links, and those that lead nowhere."""
    ids: dict[str, set[str]] = {}
    wanted, waiting, dead = set[str](), [start], list[str]()
    while waiting:
        address = waiting.pop()
        if address in ids:
            continue
        ids[address] = set()
        try:
            with urllib.request.urlopen(address) as answer:
                content = answer.read().decode() if answer.headers.get_content_type() == "text/html" else ""
        except urllib.error.HTTPError:
            dead.append(address)
            continue
        page = Links(content)
        ids[address] = page.ids
        links = {urljoin(address, link) for link in page.links}
        here = {link for link in links if urlsplit(link).netloc == urlsplit(start).netloc}
        dead += [f"{address}: {link} leaves the site" for link in here if not link.startswith(start)]
        wanted |= here
        waiting += [urldefrag(link)[0] for link in here]
    return ids, wanted, dead


def test_below_any_path_a_figure_is_drawn_and_the_search_finds(
    unpacked: Path, serve: Callable[[Path], str], open_page: OpenPage
) -> None:
    page = open_page(f"{serve(unpacked)}/a/b/chapters/the-free-queue/")
    page.locator("kv-story button:visible").first.wait_for()  # without its script a figure is a still, with none
    page.keyboard.press("/")
    page.keyboard.type("reference count")
    page.locator(".md-search-result__item a").first.wait_for()

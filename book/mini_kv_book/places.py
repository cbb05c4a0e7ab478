"""Addresses and paths: the repository, the pages, links between them, and the file and line of a fence."""

import posixpath
import re
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

from mini_kv.course.labkit.lab import all_labs

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "book" / "docs"
DOCS_PREFIX = "book/docs/"


def repository_url() -> str:
    """Return the repository's address from pyproject.toml, its only source."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    return str(project["project"]["urls"]["Repository"])


def page_of(md: Any) -> str | None:
    """Return the path, below docs, of the page that is being built.

    `None` inside a docstring, which mkdocstrings builds apart.
    """
    return str(md.treeprocessors["relpath"].file.src_uri) if "relpath" in md.treeprocessors else None


def language_of(md: Any) -> str:
    """Return the language of the page that is being built: that of its edition's folder."""
    return "zh" if (page_of(md) or "").startswith("zh/") else "en"


def said(lang: str, words: str) -> str:
    """Return words that the build puts on a page in the page's language: data/zh.toml has the Chinese ones."""
    return words if lang == "en" else str(chinese_edition()["words"][words])


@cache
def chinese_edition() -> dict[str, Any]:
    """Return what data/zh.toml says: words by the English ones, and pages with the English ones that lead to them."""
    return tomllib.loads((ROOT / "book" / "data" / "zh.toml").read_text(encoding="utf-8"))


def anchor_of(title: str) -> str:
    """Return the anchor of a heading: Markdown's own rule, without Markdown.

    >>> anchor_of("Background: a cache, not a pool")
    'background-a-cache-not-a-pool'
    """
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", title).strip().lower())


def _sources_of(md: Any) -> list[Path]:
    """Return the files whose text is on the page: the page itself, and what it includes."""
    page = page_of(md)
    return ([DOCS / page] if page else []) + list(getattr(md, "kv_included", []))


def line_of(body: str, text: str) -> int | None:
    r"""Return the number of the line where `body` begins in `text`, whatever the indentation, or `None`.

    A body that is no whole lines, such as a link, is found inside a line.

    >>> line_of("a = 1\nb = 2", "A list:\n\n    a = 1\n    b = 2")
    3
    """
    wanted = [line.strip() for line in body.strip().splitlines()]
    lines = [line.strip() for line in text.splitlines()]
    for number in range(len(lines) - len(wanted) + 1):
        if lines[number : number + len(wanted)] == wanted:
            return number + 1
    return next((number for number, line in enumerate(lines, 1) if wanted[0] in line), None)


def where(md: Any, body: str, offset: int = 0) -> str:
    """Return `file:line` of the line `offset` of a fence's body."""
    for path in _sources_of(md):
        number = line_of(body, path.read_text(encoding="utf-8"))
        if number is not None:
            return f"{path.relative_to(ROOT).as_posix()}:{number + offset}"
    return str(next(iter(_sources_of(md)), "a docstring"))


def page_about(path: str) -> str | None:
    """Return the page, below docs, that is about a file or folder of the repository, or shows it alive.

    >>> page_about("labs/lab-05/README.md"), page_about("mini_kv/core/block_pool.py"), page_about("Makefile")
    ('labs/lab-05.md', 'api/mini_kv.core.block_pool.md', None)
    """
    if path.startswith(DOCS_PREFIX):
        return path.removeprefix(DOCS_PREFIX)
    if notebook := re.fullmatch(r"notebooks/([\w-]+)\.ipynb", path):
        candidate = f"notebooks/{notebook[1]}.html"  # its live export, where this book has it: make book-whole
    elif path in ("labs", "labs/README.md"):
        candidate = "labs/index.md"
    elif lab := re.fullmatch(r"labs/(lab-\d\d(?:-\w+)?)(/README\.md)?", path):
        candidate = f"labs/{lab[1]}.md"
    else:
        candidate = f"api/{re.sub(r'(/__init__)?[.]py$', '', path).replace('/', '.')}.md"
    return candidate if (DOCS / candidate).is_file() else None


@cache
def _first_parts() -> dict[str, str]:
    """Return the lab on whose page each second part is."""
    return {lab.second_part: lab.lab_id for lab in all_labs(ROOT) if lab.second_part}


def link_to(md: Any, path: str) -> str:
    """Return the link from the page to a file or folder of the repository, for a built site."""
    first = _first_parts().get(posixpath.basename(path.removesuffix("/README.md")))
    about, page = page_about(f"labs/{first}" if first else path), page_of(md)
    if first and about and page:  # a place on the page of the first part, which MkDocs checks
        return posixpath.relpath(about, posixpath.dirname(page) or ".") + "#part-2"
    if about and page:
        here = posixpath.dirname(page) if page.endswith("index.md") else page.removesuffix(".md")
        return posixpath.relpath(about.removesuffix(".md"), here or ".") + "/"
    kind = "tree" if (ROOT / path).is_dir() else "blob"
    return f"{repository_url()}/{kind}/main/{path}"

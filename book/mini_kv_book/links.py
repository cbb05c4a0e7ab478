"""Links into the repository become links to the book's page about the file, or to the repository's address."""

import functools
import posixpath
import re
from typing import Any
from urllib.parse import urlsplit
from xml.etree import ElementTree

from markdown.treeprocessors import Treeprocessor
from mkdocs.exceptions import BuildError

from mini_kv.course.labkit.lab import all_labs
from mini_kv_book.places import DOCS, ROOT, page_of, repository_url, where

_DOCS_PREFIX = "book/docs/"


def _page_about(path: str) -> str | None:
    """Return the page, below docs, that is about a file or folder of the repository, or shows it alive.

    >>> _page_about("labs/lab-05/README.md"), _page_about("mini_kv/core/block_pool.py"), _page_about("Makefile")
    ('labs/lab-05.md', 'api/mini_kv.core.block_pool.md', None)
    """
    if path.startswith(_DOCS_PREFIX):
        return path.removeprefix(_DOCS_PREFIX)
    if notebook := re.fullmatch(r"notebooks/([\w-]+)\.ipynb", path):
        candidate = f"notebooks/{notebook[1]}.html"  # its live export, where this book has it: make book-whole
    elif path in ("labs", "labs/README.md"):
        candidate = "labs/index.md"
    elif lab := re.fullmatch(r"labs/(lab-\d\d(?:-\w+)?)(/README\.md)?", path):
        candidate = f"labs/{lab[1]}.md"
    else:
        candidate = f"api/{re.sub(r'(/__init__)?[.]py$', '', path).replace('/', '.')}.md"
    return candidate if (DOCS / candidate).is_file() else None


@functools.cache
def _first_parts() -> dict[str, str]:
    """Return the lab on whose page each second part is."""
    return {lab.second_part: lab.lab_id for lab in all_labs(ROOT) if lab.second_part}


def link_to(md: Any, path: str) -> str:
    """Return the link from the page to a file or folder of the repository, for a built site."""
    first = _first_parts().get(posixpath.basename(path.removesuffix("/README.md")))
    about, page = _page_about(f"labs/{first}" if first else path), page_of(md)
    if first and about and page:  # a place on the page of the first part, which MkDocs checks
        return posixpath.relpath(about, posixpath.dirname(page) or ".") + "#part-2"
    if about and page:
        here = posixpath.dirname(page) if page.endswith("index.md") else page.removesuffix(".md")
        return posixpath.relpath(about.removesuffix(".md"), here or ".") + "/"
    kind = "tree" if (ROOT / path).is_dir() else "blob"
    return f"{repository_url()}/{kind}/main/{path}"


class RepositoryLinks(Treeprocessor):
    """Rewrites the relative links of a page out of docs, and those of an included README."""

    def run(self, root: ElementTree.Element) -> None:
        """Rewrite each link in place."""
        page = page_of(self.md)
        if page is None:
            return
        included = getattr(self.md, "kv_included", [])
        base = included[0].parent.relative_to(ROOT).as_posix() if included else posixpath.dirname(_DOCS_PREFIX + page)
        for element in root.iter():
            key = {"a": "href", "img": "src"}.get(element.tag)
            if key and (link := element.get(key)):
                element.set(key, self.rewritten(link, base, page))

    def rewritten(self, link: str, base: str, page: str) -> str:
        """Return the link for MkDocs: relative to the page, or an address."""
        parts = urlsplit(link)
        target = posixpath.normpath(posixpath.join(base, parts.path))
        outside = not target.startswith(_DOCS_PREFIX)
        if parts.scheme or parts.netloc or not parts.path or parts.path.startswith("/"):
            return link
        if outside and not (ROOT / target).exists():
            raise BuildError(f"{where(self.md, link)}: the link {link!r} leads to {target}, which does not exist")
        about = _page_about(target)
        if about is None:
            return link_to(self.md, target)
        anchor = f"#{parts.fragment}" if parts.fragment else ""
        return posixpath.relpath(about, posixpath.dirname(page) or ".") + anchor

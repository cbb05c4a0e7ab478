"""The Markdown extension of the book: includes, tables, badges, strips, links, formulas, and the figure's script.

`Drawings` is the extension of mkdocstrings that keeps the columns of drawings in docstrings.
"""

import os
import posixpath
import re
from functools import cache
from typing import Any
from urllib.parse import urlsplit
from xml.etree import ElementTree

import griffe
from latex2mathml.converter import convert_to_element
from markdown import Extension, Markdown
from markdown.inlinepatterns import InlineProcessor
from markdown.preprocessors import Preprocessor
from markdown.treeprocessors import Treeprocessor
from mkdocs.exceptions import BuildError

from mini_kv.course.labkit.lab import load_lab
from mini_kv.course.lessons import instrument
from mini_kv.story.figure import script
from mini_kv_book.course import closed_sentence
from mini_kv_book.curriculum import Lab, chapter, lab, labs_after, notebook_title, notebooks_after, text_of, title_of
from mini_kv_book.elements import ASSETS, SCRIPTS, megabytes, runs_here
from mini_kv_book.generate import publish, write_pages
from mini_kv_book.lab_layout import CHALLENGE, arranged, nothing_to_install, section, variant, with_contract
from mini_kv_book.places import (
    DOCS,
    DOCS_PREFIX,
    ROOT,
    anchor_of,
    chinese_edition,
    language_of,
    link_to,
    page_about,
    page_of,
    said,
    where,
)
from mini_kv_book.source_text import with_drawings
from mini_kv_book.tables import Tables

_CHILDREN = {"mfrac": 2, "mroot": 2, "msub": 2, "msup": 2, "msubsup": 3, "munder": 2, "mover": 2, "munderover": 3}
_DIRECTIVE = re.compile(r"<!-- (include|instructor) (\S+) -->")
_BADGES = {
    "CPU-OK": "runs without a GPU, though you might expect that it needs one",
    "PyTorch": "needs PyTorch; its build for CPUs is enough",
    "Triton": "needs Triton, on Linux",
    "GPU": "needs a GPU",
}
"""The possible requirements of a page. Most pages and labs need only Python, which has no badge."""
_IN_VLLM = re.compile(r"^## (Where (?:vLLM does|mini_kv and vLLM do) it)$", re.MULTILINE)
_TOLD = re.compile(r"\d+ minutes, difficulty \d of 5[.,]\s+(\w)")
"""The beginning of a lab's README, for GitHub. On the page the strip replaces it."""

Links = list[tuple[str, str]]
"""Words, and the target of their link: a path in the repository, or a place on the page."""


class Directives(Preprocessor):
    """Replaces `<!-- include labs/lab-05/README.md -->` by a lab's README and its editor.

    `README.md#the-contract` is only that section. The contract of lab-17 is that of the class.

    In the instructor's book `<!-- instructor lab-05 -->` becomes the solution and the notes, folded. In a student's
    book it becomes nothing. The environment variable MINI_KV_BOOK=instructor selects the instructor's book.
    """

    def run(self, lines: list[str]) -> list[str]:
        """Return the page's lines with each directive replaced."""
        self.md.kv_included = []
        out: list[str] = []
        for line in lines:
            found = _DIRECTIVE.fullmatch(line.strip())
            if found is None:
                out.append(line)
            elif found[1] == "include":
                out += self.included(found[2], line)
            elif os.environ.get("MINI_KV_BOOK") == "instructor":
                out += _for_instructors(found[2])
        return out

    def included(self, name: str, line: str) -> list[str]:
        """Return the lines of a lab's README for the lab's page."""
        file, _, anchor = name.partition("#")
        path = ROOT / file
        if not path.is_file():
            raise BuildError(f"{where(self.md, line)}: there is no {file} to include")
        text = path.read_text(encoding="utf-8")
        lines = (with_contract(text, variant()) if path.parent.name == CHALLENGE else text).splitlines()
        if anchor:
            return section(lines, anchor)
        is_second = len(self.md.kv_included) > 0
        self.md.kv_included.append(path)
        if closed := closed_sentence(path.parent.name):
            return [lines[0], "", closed]
        if runs_here(load_lab(path.parent).needs, megabytes()):
            return arranged(nothing_to_install(lines), path.parent.name, "Solve it here", is_second)
        return arranged(lines, path.parent.name, "Solve it on your machine", is_second)


def _for_instructors(lab: str) -> list[str]:
    """Return a lab's solution and notes, each behind a fold."""
    folder = ROOT / "solutions" / lab
    solution = (folder / "solution.py").read_text(encoding="utf-8")
    _, *notes = (folder / "NOTES.md").read_text(encoding="utf-8").splitlines()
    return [
        *["", "## For the instructor", ""],
        *['??? note "Notes"', *_indented(notes), ""],
        *['??? note "The solution"', *_indented(["```python", *solution.splitlines(), "```"]), ""],
    ]


def _indented(lines: list[str]) -> list[str]:
    """Return the lines as the inside of a fold."""
    return ["    " + line if line else "" for line in lines]


class Badge(InlineProcessor):
    """Draws [CPU-OK], [PyTorch], [Triton] and [GPU] as badges, also if they are written as code."""

    def handleMatch(self, m: re.Match[str], data: str) -> tuple[ElementTree.Element, int, int]:
        """Return the badge, and the replaced part of the text."""
        return badge(m[1]), m.start(0), m.end(0)


class SectionLinks(Treeprocessor):
    """Gives the sign after a heading a title in the page's language."""

    def run(self, root: ElementTree.Element) -> None:
        """Rewrite each title in place."""
        for link in root.iter("a"):
            if link.get("class") == "headerlink":
                link.set("title", said(language_of(self.md), link.get("title", "")))


class InChinese(Treeprocessor):
    """Adds a link to the Chinese page on the same subject, below the heading."""

    def run(self, root: ElementTree.Element) -> None:
        """Insert the link, if the Chinese edition names this page."""
        page = page_of(self.md)
        told = [path for path, pages in chinese_edition()["pages"].items() if page in pages]
        heading = next((number for number, element in enumerate(root) if element.tag == "h1"), None)
        if page is None or not told or heading is None:
            return
        paragraph = ElementTree.Element("p", {"class": "kv-language"})
        paragraph.text = "In Chinese: "  # so that one sees what it is on a system without a font for the title
        href = posixpath.relpath(told[0], posixpath.dirname(page) or ".")
        link = ElementTree.SubElement(paragraph, "a", {"href": href, "hreflang": "zh-Hans", "lang": "zh-Hans"})
        link.text = _title_of(told[0])
        root.insert(heading + 1, paragraph)


def _title_of(page: str) -> str:
    """Return the title in a page's head."""
    found = re.search(r"^title: (.+)$", (DOCS / page).read_text(encoding="utf-8"), re.MULTILINE)
    return found[1] if found else page


class RepositoryLinks(Treeprocessor):
    """Rewrites the relative links of a page out of docs, and those of an included README."""

    def run(self, root: ElementTree.Element) -> None:
        """Rewrite each link in place."""
        page = page_of(self.md)
        if page is None:
            return
        included = getattr(self.md, "kv_included", [])
        base = included[0].parent.relative_to(ROOT).as_posix() if included else posixpath.dirname(DOCS_PREFIX + page)
        for element in root.iter():
            key = {"a": "href", "img": "src"}.get(element.tag)
            if key and (link := element.get(key)):
                element.set(key, self.rewritten(link, base, page))

    def rewritten(self, link: str, base: str, page: str) -> str:
        """Return the link for MkDocs: relative to the page, or an address."""
        parts = urlsplit(link)
        target = posixpath.normpath(posixpath.join(base, parts.path))
        outside = not target.startswith(DOCS_PREFIX)
        if parts.scheme or parts.netloc or not parts.path or parts.path.startswith("/"):
            return link
        if outside and not (ROOT / target).exists():
            raise BuildError(f"{where(self.md, link)}: the link {link!r} leads to {target}, which does not exist")
        about = page_about(target)
        if about is None:
            return link_to(self.md, target)
        anchor = f"#{parts.fragment}" if parts.fragment else ""
        return posixpath.relpath(about, posixpath.dirname(page) or ".") + anchor


# The strip below the title of a chapter or lab ------------------------------------------------------------------------


class Strip(Treeprocessor):
    """Puts the strip on chapters and labs: its time, related pages, the place in vLLM.

    It is made from `book/data/taught.toml`, the lab's own lab.toml, and the links at the chapter's end.
    """

    def run(self, root: ElementTree.Element) -> None:
        """Put the strip below the first heading."""
        folder, _, name = (page_of(self.md) or "").removesuffix(".md").rpartition("/")
        if name == "index" or folder not in ("chapters", "labs") or closed_sentence(name):
            return
        heading = next(number for number, element in enumerate(root) if element.tag == "h1")
        if folder == "labs":
            _shorten(next(p for p in root.iter("p") if _TOLD.match(p.text or "")))
        items = _of_chapter(name) if folder == "chapters" else _of_lab(lab(name))
        # the search leaves it out: a chapter would be found by the names of its labs
        strip = ElementTree.Element("ul", {"class": "kv-strip", "data-search-exclude": ""})
        strip.extend(self.item(*each) for each in items)
        root.insert(heading + 1, strip)

    def item(self, words: str, links: Links) -> ElementTree.Element:
        """Return an item of the list: a badge, or words and links."""
        item = ElementTree.Element("li")
        if words in _BADGES:
            item.append(badge(words))
            return item
        item.text = f"{words} " if words and links else words
        for number, (text, target) in enumerate(links):
            link = ElementTree.SubElement(item, "a", {"href": self.address(target)})
            link.text = text
            link.tail = ", " if number + 1 < len(links) else ""
        return item

    def address(self, target: str) -> str:
        """Return the link for MkDocs."""
        path, _, anchor = target.partition("#")
        if not path:
            return target
        page = page_of(self.md) or ""
        return RepositoryLinks(self.md).rewritten(path, "", page) + (f"#{anchor}" if anchor else "")


def badge(name: str) -> ElementTree.Element:
    """Return the HTML of `[CPU-OK]` and the other badges."""
    element = ElementTree.Element("span", {"class": "kv-badge", "title": _BADGES[name]})
    element.text = name
    return element


def _shorten(paragraph: ElementTree.Element) -> None:
    """Remove the strip's data from a README's first paragraph, and mark the paragraph."""
    paragraph.text = _TOLD.sub(lambda found: found[1].upper(), paragraph.text or "", count=1)
    paragraph.set("class", "kv-needs")


def _of_chapter(name: str) -> list[tuple[str, Links]]:
    """Return the items of a chapter's strip, each with its links."""
    about = chapter(name)
    return [
        (f"{about.minutes} minutes", []),
        *((need, []) for need in about.needs),
        *_with_links("", [(name, f"labs/{name}/README.md") for name in labs_after(name)]),
        *notebooks(name),
        *_in_vllm(name, ""),
        *_with_links("After", [_chapter_link(other) for other in about.after]),
    ]


def _of_lab(about: Lab) -> list[tuple[str, Links]]:
    """Return the items of a lab's strip, each with its links."""
    return [
        (f"{about.minutes} minutes", []),
        (f"Difficulty {about.difficulty} of 5", []),
        *((need, []) for need in about.needs),
        ("Chapter", [_chapter_link(about.chapter)]),
        *notebooks(about.chapter),
        *_in_vllm(about.chapter, _chapter_file(about.chapter)),
    ]


def _with_links(words: str, links: Links) -> list[tuple[str, Links]]:
    """Return an item, or nothing without links."""
    return [(words, links)] if links else []


def notebooks(name: str) -> list[tuple[str, Links]]:
    """Return the item of the notebooks that a chapter leads to."""
    links = [(notebook_title(each), f"notebooks/{each}.ipynb") for each in notebooks_after(name)]
    return _with_links("Notebook" if len(links) == 1 else "Notebooks", links)


def _in_vllm(name: str, page: str) -> list[tuple[str, Links]]:
    """Return the item that leads to a chapter's section on vLLM, from another page if `page` is its file."""
    found = _IN_VLLM.search(text_of(name))
    return [("", [("Where vLLM does it", f"{page}#{anchor_of(found[1])}")])] if found else []


def _chapter_link(name: str) -> tuple[str, str]:
    """Return a chapter's title and file."""
    return title_of(name), _chapter_file(name)


def _chapter_file(name: str) -> str:
    """Return the path of a chapter's file in the repository."""
    return f"book/docs/chapters/{name}.md"


# Formulas and drawings ------------------------------------------------------------------------------------------------


class MathML(Treeprocessor):
    r"""Replaces the formulas marked by arithmatex, `\(...\)` and `\[...\]`, by MathML, which needs no script."""

    def run(self, root: ElementTree.Element) -> None:
        """Replace each formula in place."""
        for element in list(root.iter()):
            if "arithmatex" in element.get("class", "").split() and element.text:
                formula = element.text.strip()[2:-2]
                element.append(self.drawn(formula, "block" if element.tag == "div" else "inline"))
                element.text = ""

    def drawn(self, formula: str, display: str) -> ElementTree.Element:
        """Return the formula as MathML. Raises `BuildError` for one that a browser could not draw."""
        try:
            math: ElementTree.Element = convert_to_element(formula, display=display)
        except Exception as error:  # latex2mathml has no common base class for its errors
            raise BuildError(f"{where(self.md, formula)}: {formula!r} is no formula: {error!r}") from error
        for part in math.iter():  # what latex2mathml lets through
            if (part.text or "").startswith("\\") or len(part) != _CHILDREN.get(part.tag, len(part)):
                name = part.text or part.tag
                raise BuildError(f"{where(self.md, formula)}: {formula!r} is no formula: see {name}")
        return math


class Drawings(griffe.Extension):
    """Indents paragraphs of docstrings that are drawings, so that Markdown treats them as code on the API pages."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Indent the drawings in the docstring of one module, class or function."""
        if obj.docstring:
            obj.docstring.value = with_drawings(obj.docstring.value)


_write_pages_once = cache(write_pages)


class BookExtension(Extension):
    """Registers all parts of this module with Markdown: `mini_kv_book.extension` in mkdocs.yml."""

    def extendMarkdown(self, md: Markdown) -> None:
        """Register the parts. The numbers order them among Markdown's own.

        MkDocs does this once while it reads its configuration, before it looks for pages. So files are written here.
        """
        _write_pages_once()
        publish(script(), DOCS / "assets" / "kv_story.js")
        publish(instrument.script(), DOCS / "assets" / "kv_instrument.js")
        for name in SCRIPTS:
            publish((ASSETS / name).read_text(encoding="utf-8"), DOCS / "assets" / name)
        md.preprocessors.register(Tables(md), "kv_tables", 30)  # before fences, 25, and directives
        md.preprocessors.register(Directives(md), "kv_directives", 29)
        written = rf"`?\[({'|'.join(_BADGES)})\]`?(?![\[(:])"
        md.inlinePatterns.register(Badge(written, md), "kv_badge", 195)  # before code, 190
        md.treeprocessors.register(MathML(md), "kv_mathml", 15)  # after inline, 20
        md.treeprocessors.register(SectionLinks(md), "kv_section_links", 4)  # after toc, 5
        md.treeprocessors.register(Strip(md), "kv_strip", 3.5)  # before the next, whose link stands above it
        md.treeprocessors.register(InChinese(md), "kv_in_chinese", 3)
        md.treeprocessors.register(RepositoryLinks(md), "kv_links", 10)  # before MkDocs' own, 0


def makeExtension(**options: Any) -> BookExtension:
    """Return the extension: how Markdown finds it by the module's name."""
    return BookExtension(**options)

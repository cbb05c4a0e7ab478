"""The Markdown extension of the book: includes, badges, strips, links, formulas, and the figure's script."""

import os
import posixpath
import re
import tomllib
from functools import cache
from typing import Any
from xml.etree import ElementTree

from markdown import Extension, Markdown
from markdown.inlinepatterns import InlineProcessor
from markdown.preprocessors import Preprocessor
from markdown.treeprocessors import Treeprocessor
from mkdocs.exceptions import BuildError

from mini_kv.course.lessons import instrument
from mini_kv.story.figure import script
from mini_kv_book.course import closed_sentence
from mini_kv_book.elements import ASSETS, SCRIPTS, megabytes, runs_here
from mini_kv_book.generate import publish, write_pages
from mini_kv_book.lab_layout import CHALLENGE, arranged, nothing_to_install, section, variant, with_contract
from mini_kv_book.links import RepositoryLinks
from mini_kv_book.maths import MathML
from mini_kv_book.places import DOCS, ROOT, chinese_edition, language_of, page_of, said, where
from mini_kv_book.strip import BADGES, Strip, badge

DIRECTIVE = re.compile(r"<!-- (include|instructor) (\S+) -->")


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
            found = DIRECTIVE.fullmatch(line.strip())
            if found is None:
                out.append(line)
            elif found[1] == "include":
                out += self.included(found[2], line)
            elif os.environ.get("MINI_KV_BOOK") == "instructor":
                out += for_instructors(found[2])
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
        needs = tomllib.loads((path.parent / "lab.toml").read_text(encoding="utf-8"))["needs"]
        if runs_here(needs, megabytes()):
            return arranged(nothing_to_install(lines), path.parent.name, "Solve it here", is_second)
        return arranged(lines, path.parent.name, "Solve it on your machine", is_second)


def for_instructors(lab: str) -> list[str]:
    """Return a lab's solution and notes, each behind a fold."""
    folder = ROOT / "solutions" / lab
    solution = (folder / "solution.py").read_text(encoding="utf-8")
    _, *notes = (folder / "NOTES.md").read_text(encoding="utf-8").splitlines()
    return [
        *["", "## For the instructor", ""],
        *['??? note "Notes"', *indented(notes), ""],
        *['??? note "The solution"', *indented(["```python", *solution.splitlines(), "```"]), ""],
    ]


def indented(lines: list[str]) -> list[str]:
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
        md.preprocessors.register(Directives(md), "kv_directives", 29)  # before fences, 25
        written = rf"`?\[({'|'.join(BADGES)})\]`?(?![\[(:])"
        md.inlinePatterns.register(Badge(written, md), "kv_badge", 195)  # before code, 190
        md.treeprocessors.register(MathML(md), "kv_mathml", 15)  # after inline, 20
        md.treeprocessors.register(SectionLinks(md), "kv_section_links", 4)  # after toc, 5
        md.treeprocessors.register(Strip(md), "kv_strip", 3.5)  # before the next, whose link stands above it
        md.treeprocessors.register(InChinese(md), "kv_in_chinese", 3)
        md.treeprocessors.register(RepositoryLinks(md), "kv_links", 10)  # before MkDocs' own, 0


def makeExtension(**options: Any) -> BookExtension:
    """Return the extension: how Markdown finds it by the module's name."""
    return BookExtension(**options)

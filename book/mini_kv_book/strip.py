"""The strip below the title of a chapter or lab: its time, related pages, the place in vLLM.

It is made from `book/data/taught.toml`, the lab's own lab.toml, and the links at the chapter's end.
"""

import re
from xml.etree import ElementTree

from markdown.treeprocessors import Treeprocessor

from mini_kv_book.course import closed_sentence
from mini_kv_book.links import RepositoryLinks
from mini_kv_book.places import anchor_of, page_of
from mini_kv_book.taught import Lab, chapter, lab, labs_after, notebook_title, notebooks_after, text_of, title_of

BADGES = {
    "CPU-OK": "runs without a GPU, though you might expect that it needs one",
    "PyTorch": "needs PyTorch; its build for CPUs is enough",
    "Triton": "needs Triton, on Linux",
    "GPU": "needs a GPU",
}
"""The possible requirements of a page. Most pages and labs need only Python, which has no badge."""
IN_VLLM = re.compile(r"^## (Where (?:vLLM does|mini_kv and vLLM do) it)$", re.MULTILINE)
TOLD = re.compile(r"\d+ minutes, difficulty \d of 5[.,]\s+(\w)")
"""The beginning of a lab's README, for GitHub. On the page the strip replaces it."""

Links = list[tuple[str, str]]
"""Words, and the target of their link: a path in the repository, or a place on the page."""


class Strip(Treeprocessor):
    """Puts the strip on chapters and labs."""

    def run(self, root: ElementTree.Element) -> None:
        """Put the strip below the first heading."""
        folder, _, name = (page_of(self.md) or "").removesuffix(".md").rpartition("/")
        if name == "index" or folder not in ("chapters", "labs") or closed_sentence(name):
            return
        heading = next(number for number, element in enumerate(root) if element.tag == "h1")
        if folder == "labs":
            shorten(next(p for p in root.iter("p") if TOLD.match(p.text or "")))
        items = of_chapter(name) if folder == "chapters" else of_lab(lab(name))
        # the search leaves it out: a chapter would be found by the names of its labs
        strip = ElementTree.Element("ul", {"class": "kv-strip", "data-search-exclude": ""})
        strip.extend(self.item(*each) for each in items)
        root.insert(heading + 1, strip)

    def item(self, words: str, links: Links) -> ElementTree.Element:
        """Return an item of the list: a badge, or words and links."""
        item = ElementTree.Element("li")
        if words in BADGES:
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
    element = ElementTree.Element("span", {"class": "kv-badge", "title": BADGES[name]})
    element.text = name
    return element


def shorten(paragraph: ElementTree.Element) -> None:
    """Remove the strip's data from a README's first paragraph, and mark the paragraph."""
    paragraph.text = TOLD.sub(lambda found: found[1].upper(), paragraph.text or "", count=1)
    paragraph.set("class", "kv-needs")


def of_chapter(name: str) -> list[tuple[str, Links]]:
    """Return the items of a chapter's strip, each with its links."""
    about = chapter(name)
    return [
        (f"{about.minutes} minutes", []),
        *((need, []) for need in about.needs),
        *with_links("", [(name, f"labs/{name}/README.md") for name in labs_after(name)]),
        *notebooks(name),
        *in_vllm(name, ""),
        *with_links("After", [page_about(other) for other in about.after]),
    ]


def of_lab(about: Lab) -> list[tuple[str, Links]]:
    """Return the items of a lab's strip, each with its links."""
    return [
        (f"{about.minutes} minutes", []),
        (f"Difficulty {about.difficulty} of 5", []),
        *((need, []) for need in about.needs),
        ("Chapter", [page_about(about.chapter)]),
        *notebooks(about.chapter),
        *in_vllm(about.chapter, chapter_file(about.chapter)),
    ]


def with_links(words: str, links: Links) -> list[tuple[str, Links]]:
    """Return an item, or nothing without links."""
    return [(words, links)] if links else []


def notebooks(name: str) -> list[tuple[str, Links]]:
    """Return the item of the notebooks that a chapter leads to."""
    links = [(notebook_title(each), f"notebooks/{each}.ipynb") for each in notebooks_after(name)]
    return with_links("Notebook" if len(links) == 1 else "Notebooks", links)


def in_vllm(name: str, page: str) -> list[tuple[str, Links]]:
    """Return the item that leads to a chapter's section on vLLM, from another page if `page` is its file."""
    found = IN_VLLM.search(text_of(name))
    return [("", [("Where vLLM does it", f"{page}#{anchor_of(found[1])}")])] if found else []


def page_about(name: str) -> tuple[str, str]:
    """Return a chapter's title and file."""
    return title_of(name), chapter_file(name)


def chapter_file(name: str) -> str:
    """Return the path of a chapter's file in the repository."""
    return f"book/docs/chapters/{name}.md"

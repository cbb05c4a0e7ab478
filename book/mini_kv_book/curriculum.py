"""The chapters and labs: what each teaches, from `book/data/taught.toml` and lab.toml, and their cards in the lists."""

import functools
import json
import re
import tomllib
from dataclasses import dataclass
from typing import Any

from mini_kv.course.labkit.lab import load_lab
from mini_kv_book import generate
from mini_kv_book.course import closed_sentence
from mini_kv_book.places import DOCS, ROOT

GLOSSARY = "reference/glossary.md"
TERM = re.compile(r"^(?P<english>[A-Z][^(\n]*?) \((?P<chinese>[^)\n]+)\)\n:   ", re.MULTILINE)
NEEDS = {"C": (), "T": ("PyTorch",), "K": ("CPU-OK", "PyTorch", "Triton")}
"""The badges of a lab, by the requirement in its lab.toml."""


@dataclass(frozen=True, slots=True)
class Chapter:
    """The data of a chapter for its strip and its card in the list of chapters."""

    says: str
    minutes: int
    picture: str
    """The picture: a scenario's name and a step."""
    needs: tuple[str, ...] = ()
    """Badges."""
    after: tuple[str, ...] = ()
    """The chapters to be read before."""


@dataclass(frozen=True, slots=True)
class Lab:
    """The data of a lab for its strip and its card in the list of labs."""

    says: str
    title: str
    minutes: int
    difficulty: int
    chapter: str
    picture: str
    needs: tuple[str, ...]


@functools.cache
def _file() -> dict[str, Any]:
    return tomllib.loads((ROOT / "book" / "data" / "taught.toml").read_text(encoding="utf-8"))


def words() -> dict[str, list[str]]:
    """Return, by a chapter's file, the words that it teaches."""
    found: dict[str, list[str]] = _file()["words"]
    return found


def chapter_of(lab: str) -> str:
    """Return the chapter that a lab belongs to."""
    return load_lab(ROOT / "labs" / lab).chapter


def chapter(name: str) -> Chapter:
    """Return the data of a chapter. Raises `KeyError` for one that is not listed."""
    told = _file()["chapters"][name]
    lists = {key: tuple(told.get(key, ())) for key in ("needs", "after")}
    return Chapter(**{**told, **lists})


def lab(name: str) -> Lab:
    """Return the data of a lab. The picture is its chapter's, unless it has its own."""
    told = load_lab(ROOT / "labs" / name)
    return Lab(
        says=told.says,
        title=told.title,
        minutes=told.minutes,
        difficulty=told.difficulty,
        chapter=told.chapter,
        picture=told.picture or chapter(told.chapter).picture,
        needs=NEEDS[told.needs],
    )


def title_of(chapter: str) -> str:
    """Return a chapter's heading."""
    return generate.title_of(DOCS / "chapters" / f"{chapter}.md")


def text_of(chapter: str) -> str:
    """Return a chapter's text."""
    return (DOCS / "chapters" / f"{chapter}.md").read_text(encoding="utf-8")


def labs_after(chapter: str) -> list[str]:
    """Return the labs linked at a chapter's end."""
    return _led_to(chapter, r"/labs/(lab-[\w-]+)/README\.md")


def notebooks_after(chapter: str) -> list[str]:
    """Return the notebooks linked at a chapter's end, without their suffixes."""
    return _led_to(chapter, r"/notebooks/([\w-]+)\.ipynb")


def _led_to(chapter: str, link: str) -> list[str]:
    return [*dict.fromkeys(re.findall(link, text_of(chapter).partition("\n## Your turn\n")[2]))]


def notebook_title(name: str) -> str:
    """Return a notebook's heading."""
    notebook = json.loads((ROOT / "notebooks" / f"{name}.ipynb").read_text(encoding="utf-8"))
    return str(notebook["cells"][0]["source"][0]).removeprefix("# ").strip()


def glossary() -> dict[str, str]:
    """Return the glossary's words, each with its Chinese one."""
    text = (DOCS / GLOSSARY).read_text(encoding="utf-8")
    return {found["english"]: found["chinese"] for found in TERM.finditer(text)}


# Cards in the lists of chapters and labs ------------------------------------------------------------------------------


def chapters_as_markdown() -> str:
    """Return a card per chapter, under the names of the book's parts."""
    return _parts({part: [_chapter_card(name) for name in names] for part, names in _chapters().items()})


def labs_as_markdown() -> str:
    """Return a card per lab, under the names of the parts that their chapters belong to."""
    return _parts({part: [_lab_card(name) for name in names] for part, names in _labs().items() if names})


def afternoon_as_markdown() -> str:
    """Return the README's way through one afternoon, for the first page."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (way,) = re.findall(r"<!-- afternoon -->\n(.*?)\n<!-- end of afternoon -->", readme, re.DOTALL)
    return str(way).replace("](", "](../../")


def _chapters() -> dict[str, list[str]]:
    """Return each part's chapters, without the endings of their files."""
    return {part: [file.removesuffix(".md") for file in files] for part, files in generate.chapters().items()}


def _labs() -> dict[str, list[str]]:
    """Return each part's labs that are open, in the order of their chapters."""
    every = [name for name in generate.labs() if not closed_sentence(name)]
    return {
        part: [name for its_chapter in names for name in every if lab(name).chapter == its_chapter]
        for part, names in _chapters().items()
    }


def _parts(cards: dict[str, list[str]]) -> str:
    """Return the cards of all parts."""
    return "\n\n".join(
        f'## {part}\n\n<div class="kv-cards" markdown>\n{chr(10).join(its)}\n</div>' for part, its in cards.items()
    )


def _chapter_card(name: str) -> str:
    """Return the card of a chapter."""
    about = chapter(name)
    return _card(f"[{title_of(name)}]({name}.md)", about.picture, about.says, _told(about.minutes, about.needs))


def _lab_card(name: str) -> str:
    """Return the card of a lab."""
    about = lab(name)
    of = f"difficulty {about.difficulty} of 5 · chapter: [{title_of(about.chapter)}](../chapters/{about.chapter}.md)"
    title = f"[{name[4:6]} {about.title}]({name}.md)"
    return _card(title, about.picture, about.says, f"{_told(about.minutes, about.needs)} · {of}")


def _told(minutes: int, needs: tuple[str, ...]) -> str:
    """Return the reading time of a page, and the badges of its requirements."""
    return " ".join([f"{minutes} minutes", *(f"[{need}]" for need in needs)])


def _card(title: str, picture: str, says: str, below: str) -> str:
    """Return a card, as Markdown: a still, a title with a link to the page, a sentence."""
    return f"""<div markdown>
```kv-still
{picture}
```
### {title}
{says}

{below}
{{: .kv-told }}
</div>"""

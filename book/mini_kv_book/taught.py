"""The words that each chapter teaches, from `book/data/taught.toml`, and the chapter of each lab, from its lab.toml."""

import functools
import json
import re
import tomllib
from dataclasses import dataclass
from typing import Any

from mini_kv.course.labkit.lab import load_lab
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
    found = re.search(r"^# (.+)$", text_of(chapter), re.MULTILINE)
    return found[1] if found else chapter


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

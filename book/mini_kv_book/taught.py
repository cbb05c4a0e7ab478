"""What is taught where: which chapter teaches a word or belongs to a lab, from `book/data/taught.toml`."""

import functools
import json
import re
import tomllib
from dataclasses import dataclass
from typing import Any

from mini_kv_book.places import DOCS, ROOT

GLOSSARY = "reference/glossary.md"
TERM = re.compile(r"^(?P<english>[A-Z][^(\n]*?) \((?P<chinese>[^)\n]+)\)\n:   ", re.MULTILINE)
NEEDS = {"C": (), "T": ("PyTorch",), "K": ("CPU-OK", "PyTorch", "Triton")}
"""The badges of a lab, by its lab.toml's word for what it needs."""


@dataclass(frozen=True, slots=True)
class Chapter:
    """What the strip below a chapter's title and its place in the list of chapters say."""

    says: str
    minutes: int
    picture: str
    """A scenario's name and a step."""
    needs: tuple[str, ...] = ()
    """Badges."""
    after: tuple[str, ...] = ()
    """The chapters to be read before."""


@dataclass(frozen=True, slots=True)
class Lab:
    """What the strip below a lab's title and its place in the list of labs say."""

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
    """Return the chapter that a lab belongs to. Raises `KeyError` for a lab that has none."""
    return str(_file()["labs"][lab]["chapter"])


def chapter(name: str) -> Chapter:
    """Return what is told of a chapter. Raises `KeyError` for one that is not listed."""
    told = _file()["chapters"][name]
    lists = {key: tuple(told.get(key, ())) for key in ("needs", "after")}
    return Chapter(**{**told, **lists})


def lab(name: str) -> Lab:
    """Return what is told of a lab, here and in its lab.toml. The picture is its chapter's, unless it has its own."""
    told = _file()["labs"][name]
    toml = tomllib.loads((ROOT / "labs" / name / "lab.toml").read_text(encoding="utf-8"))
    return Lab(
        says=told["says"],
        title=toml["title"],
        minutes=toml["minutes"],
        difficulty=toml["difficulty"],
        chapter=told["chapter"],
        picture=told.get("picture") or chapter(told["chapter"]).picture,
        needs=NEEDS[toml["needs"]],
    )


def title_of(chapter: str) -> str:
    """Return a chapter's heading."""
    found = re.search(r"^# (.+)$", text_of(chapter), re.MULTILINE)
    return found[1] if found else chapter


def text_of(chapter: str) -> str:
    """Return a chapter's text."""
    return (DOCS / "chapters" / f"{chapter}.md").read_text(encoding="utf-8")


def labs_after(chapter: str) -> list[str]:
    """Return the labs that a chapter leads to at its end."""
    return _led_to(chapter, r"/labs/(lab-[\w-]+)/README\.md")


def notebooks_after(chapter: str) -> list[str]:
    """Return the notebooks that a chapter leads to at its end, without their endings."""
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

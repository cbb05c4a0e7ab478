"""What is taught where: which chapter teaches a word or belongs to a lab, from `book/data/taught.toml`."""

import functools
import re
import tomllib
from typing import Any

from mini_kv_book.places import DOCS, ROOT

GLOSSARY = "reference/glossary.md"
TERM = re.compile(r"^(?P<english>[A-Z][^(\n]*?) \((?P<chinese>[^)\n]+)\)\n:   ", re.MULTILINE)


@functools.cache
def _file() -> dict[str, Any]:
    return tomllib.loads((ROOT / "book" / "data" / "taught.toml").read_text(encoding="utf-8"))


def words() -> dict[str, list[str]]:
    """Return, by a chapter's file, the words that it teaches."""
    found: dict[str, list[str]] = _file()["words"]
    return found


def chapter_of(lab: str) -> str:
    """Return the chapter that a lab belongs to. Raises `KeyError` for a lab that has none."""
    return str(_file()["labs"][lab])


def title_of(chapter: str) -> str:
    """Return a chapter's heading."""
    found = re.search(r"^# (.+)$", (DOCS / "chapters" / f"{chapter}.md").read_text(encoding="utf-8"), re.MULTILINE)
    return found[1] if found else chapter


def glossary() -> dict[str, str]:
    """Return the glossary's words, each with its Chinese one."""
    text = (DOCS / GLOSSARY).read_text(encoding="utf-8")
    return {found["english"]: found["chinese"] for found in TERM.finditer(text)}

"""The sections of the errata, and the claims of the page "True or false?" that they prove. Needs no MkDocs."""

import re
from typing import NamedTuple

from mini_kv.course.lessons.predict import Question, parsed
from mini_kv_book.places import DOCS
from mini_kv_book.runs import FenceError

ERRATA = DOCS / "reference" / "errata.md"
CHOICES = {"True", "False"}
_CODE = re.compile(r"^```kv-python\n(.*?)^```", re.MULTILINE | re.DOTALL)


class Section(NamedTuple):
    """A section of the errata."""

    title: str
    proofs: list[str]
    """The code of its fences."""


def questions(body: str) -> list[Question]:
    """Return the claims of a fence. Raises `FenceError` for a claim with other choices than true and false."""
    try:
        claims = list(parsed(body, "kv-claims").values())
    except (ValueError, KeyError) as error:
        raise FenceError(f"{type(error).__name__}: {error}") from error
    for claim in claims:
        if set(claim.choices) != CHOICES:
            raise FenceError(f"{claim.id}: the choices are True and False, not {', '.join(claim.choices)}")
    return claims


def section_of(anchor: str) -> Section:
    """Return a section of the errata. Raises `FenceError` if it does not exist or has no code."""
    section = rf"^### ([^\n]+) \{{ #{re.escape(anchor)} \}}\n(.*?)(?=^###? |\Z)"
    found = re.search(section, ERRATA.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    if found is None:
        raise FenceError(f"{ERRATA.name} has no section #{anchor}")
    proofs = _CODE.findall(found[2])
    if not proofs:
        raise FenceError(f"{ERRATA.name}#{anchor} has no code that proves it")
    return Section(found[1], proofs)

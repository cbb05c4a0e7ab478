"""The coverage index: each idea of the course with its homes, from data/coverage.toml, all checked to exist."""

import re
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from mini_kv_book.generate import title_of
from mini_kv_book.places import DOCS, ROOT
from mini_kv_book.runs import FenceError, source_of

DATA = ROOT / "book" / "data" / "coverage.toml"
_PACKAGES_WITH_PAGES = ("core", "events", "viz", "attention")


class Question(NamedTuple):
    """A question of a new reader that the course must answer."""

    ask: str
    home: str
    """The page, lab or symbol with the answer, one of the row's homes."""
    answer: tuple[str, ...]
    """Phrases that must be there, in one section."""


@dataclass(frozen=True, slots=True)
class Row:
    """One idea: its homes, their required words, and the missing parts."""

    number: int
    idea: str
    homes: tuple[str, ...]
    """Pages below docs (with an anchor), labs, dotted symbols, notebooks."""
    waits_for: str | None
    words: tuple[str, ...]
    """Words that a home must contain. See `mini_kv_book.homes`."""
    question: Question | None


@dataclass(frozen=True, slots=True)
class Group:
    """A group of related rows."""

    title: str
    intro: str
    rows: tuple[Row, ...]


@cache
def groups() -> tuple[Group, ...]:
    """Return the index. Raises `KeyError` for a row with an unnamed missing part."""
    data = _data()
    waiting = {None: None} | data.get("waits_for", {})
    return tuple(
        Group(
            group["title"],
            group["intro"],
            tuple(_row(row, waiting[row.get("waits_for")]) for row in group["row"]),
        )
        for group in data["group"]
    )


@cache
def _data() -> dict[str, Any]:
    return tomllib.loads(DATA.read_text(encoding="utf-8"))


def waited_for() -> dict[str, str]:
    """Return the missing parts of rows, each with its future page, lab or symbol."""
    data = _data()
    keys = {row["waits_for"] for group in data["group"] for row in group["row"] if "waits_for" in row}
    return {data["waits_for"][key]: data["arrives_as"][key] for key in keys}


def _row(row: dict[str, Any], waits_for: str | None) -> Row:
    question = Question(row["ask"], row["at"], tuple(row["answer"])) if "ask" in row else None
    return Row(row["number"], row["idea"], tuple(row["in"]), waits_for, tuple(row["words"]), question)


def rows() -> list[Row]:
    """Return all rows, in the order of the page."""
    return [row for group in groups() for row in group.rows]


def kind_of(home: str) -> str:
    """Return the kind of a home: `page`, `lab`, `notebook` or `symbol`."""
    if home.split("#", maxsplit=1)[0].endswith(".md"):
        return "page"
    if re.fullmatch(r"lab-\d\d(-\w+)?", home):
        return "lab"
    return "notebook" if home.startswith("notebooks/") else "symbol"


def problem_with(home: str) -> str | None:
    """Return the problem with a home, or `None` if it exists."""
    kind = kind_of(home)
    if kind == "lab":
        return None if (ROOT / "labs" / home / "lab.toml").is_file() else "no such lab"
    if kind == "notebook":
        return None if (ROOT / home).is_file() else "no such notebook"
    if kind == "symbol":
        return None if find_symbol(home) else "no such symbol"
    page, _, anchor = home.partition("#")
    if not (DOCS / page).is_file():
        return "no such page"
    return None if not anchor or anchor in _anchors_of(DOCS / page) else "no such anchor"


def find_symbol(symbol: str) -> tuple[str, list[str]] | None:
    """Return the module of a dotted symbol and the names inside it, or `None` if it does not exist. Imports nothing."""
    try:
        module = source_of(symbol).path.removesuffix(".py").replace("/", ".")
    except FenceError:
        return None
    return module, symbol.split(".")[len(module.split(".")) :]


def _anchors_of(page: Path) -> set[str]:
    """Return the anchors of a page: those written as `{ #name }`, and those made from its headings."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    return {anchor_of(heading) for heading in re.findall(r"^#{1,6} (.+)$", text, flags=re.MULTILINE)}


def anchor_of(heading: str) -> str:
    """Return a heading's anchor: the written one, or the one made from its text."""
    named = re.search(r"\{[^}]*#([\w-]+)[^}]*\}\s*$", heading)
    return named[1] if named else _slug(heading)


def _slug(heading: str) -> str:
    """Return the anchor that Python-Markdown makes from a heading.

    >>> _slug("Hits, evictions & `allocate_slots`")
    'hits-evictions-allocate_slots'
    """
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", heading.lower()).strip())


def link_to(home: str) -> str:
    """Return a Markdown link, seen from a page in docs/reference."""
    kind = kind_of(home)
    if kind == "page":
        return f"[{_label_of(home)}](../{home})"
    if kind == "lab":
        return f"[{home}](../labs/{home}.md)"
    if kind == "notebook":
        return f"[{Path(home).stem}](../../../{home})"
    module, names = find_symbol(home) or (home, [])
    text = f"`{'.'.join(names) or module.removeprefix('mini_kv.')}`"
    if module.split(".")[1] not in _PACKAGES_WITH_PAGES:
        return f"[{text}](../../../{module.replace('.', '/')}.py)"
    anchored = names and not names[-1].startswith("_")
    return f"[{text}](../api/{module}.md{'#' + home if anchored else ''})"


def _label_of(page: str) -> str:
    """Return a short name for a page: a chapter's title, `errata E6`, `benefits`.

    >>> _label_of("chapters/07-share-free-revive-evict.md"), _label_of("reference/errata.md#n08"), _label_of("index.md")
    ('Share, free, revive, evict', 'errata N08', 'start')
    """
    path, _, anchor = page.partition("#")
    if path.startswith("chapters/"):
        return title_of(DOCS / path)
    if path == "index.md":
        return "start"
    stem = Path(path).stem.replace("-", " ")
    return f"{stem} {anchor.upper()}" if stem == "errata" else stem


def as_markdown() -> str:
    """Return a section with a table for each group."""
    sections = []
    for group in groups():
        lines = [f"## {group.title}", "", group.intro, "", "| | idea | where |", "|---|---|---|"]
        for row in group.rows:
            where = ", ".join(link_to(home) for home in row.homes)
            waiting = f"*not built yet ({row.waits_for})*" if row.waits_for else ""
            lines.append(f"| {row.number} | {row.idea} | {'<br>'.join(filter(None, (where, waiting)))} |")
        sections.append("\n".join(lines))
    return "\n\n".join(sections)


def questions_as_markdown() -> str:
    """Return a table of the questions, each with the place of its answer."""
    asked = [(row.number, row.question) for row in rows() if row.question]
    lines = [f"| {number} | {question.ask} | {link_to(question.home)} |" for number, question in asked]
    return "\n".join(["| | question | answered in |", "|---|---|---|", *lines])


def waiting_as_markdown() -> str:
    """Return a table of the missing parts and the rows that need them, or a sentence that no part is missing."""
    waiting: dict[str, list[Row]] = {}
    for row in rows():
        if row.waits_for:
            waiting.setdefault(row.waits_for, []).append(row)
    if not waiting:
        return "Today, nothing."
    lines = ["| waits for | rows without a home yet | rows with a part of it |", "|---|---|---|"]
    for what, its_rows in waiting.items():
        bare = ", ".join(str(row.number) for row in its_rows if not row.homes)
        begun = ", ".join(str(row.number) for row in its_rows if row.homes)
        lines.append(f"| {what} | {bare} | {begun} |")
    return "\n".join(lines)


def summary() -> str:
    """Return a sentence with the number of ideas, and of those with a home."""
    whole = [row for row in rows() if not row.waits_for]
    bare = [row for row in rows() if not row.homes]
    begun = len(rows()) - len(whole) - len(bare)
    return (
        f"Of {len(rows())} ideas, {len(whole)} have all of their homes, {begun} have a part and wait for the rest,"
        f" and {len(bare)} have none yet."
    )

"""The book's prose: chapters have titles and an order of reading, no numbers; sources are shown in a column."""

import ast
import re
from itertools import pairwise
from pathlib import Path

import pytest
from mini_kv_book import curriculum, generate
from mini_kv_book.places import DOCS, ROOT
from mini_kv_book.source_text import narrow

NUMBERED = re.compile(r"\bchapters?\s+\[?\d", re.IGNORECASE)
PLACES = (
    *("README.md", "Makefile", "book/docs/**/*.md", "book/theme/*.html", "book/data/*.toml", "book/mini_kv_book/*.py"),
    *("labs/**/*.md", "labs/**/*.py", "labs/**/*.toml", "solutions/*/NOTES.md", "notebooks/*.ipynb"),
    *("mini_kv/**/*.py", "mini_kv/**/*.toml"),
)


def prose_of(path: Path) -> str:
    """Return a file's text with the ends of a notebook's lines taken out."""
    return re.sub(r'\\n",\s*"', "\n", path.read_text(encoding="utf-8"))


def order() -> list[str]:
    """Return the chapters' files, in the order of the navigation."""
    config = generate.CONFIG.read_text(encoding="utf-8")
    return re.findall(r'^ +- "[^"]+": chapters/(.+)$', config, re.MULTILINE)


def chapter(name: str) -> str:
    """Return a chapter's text."""
    return (DOCS / "chapters" / name).read_text(encoding="utf-8")


@pytest.mark.prose
def test_no_page_no_notebook_and_no_docstring_calls_a_chapter_by_a_number():
    """A title stays true when a chapter moves to another place in the book."""
    paths = {path for place in PLACES for path in ROOT.glob(place)} - {Path(__file__)}
    assert len(paths) > 500
    found = {path.relative_to(ROOT).as_posix(): NUMBERED.findall(prose_of(path)) for path in paths}
    assert {name: numbers for name, numbers in found.items() if numbers} == {}


def test_no_wrapped_line_becomes_a_heading():
    """Python-Markdown makes a heading of a line that begins with `#163](https://...`, the second half of a link."""
    pages = [*DOCS.rglob("*.md"), *ROOT.glob("labs/*/README.md")]
    texts = {page: re.sub(r"^ *```.*?^ *```$", "", prose_of(page), flags=re.MULTILINE | re.DOTALL) for page in pages}
    found = {page.parent.name: re.findall(r"^ *#+[^#\s].*", text, re.MULTILINE) for page, text in texts.items()}
    assert {name: lines for name, lines in found.items() if lines} == {}


def test_the_navigation_has_every_chapter_once():
    assert order() == [file for part in generate.chapters().values() for file in part]


@pytest.mark.slow
def test_a_chapter_comes_after_those_that_stand_before_it():
    names = [name.removesuffix(".md") for name in order()]
    needs = {name: curriculum.chapter(name).after for name in names}
    late = {name: [other for other in needs[name] if names.index(other) >= names.index(name)] for name in names}
    assert {name: others for name, others in late.items() if others} == {}
    assert [name for name in names if not needs[name]] == ["why-a-cache"]


@pytest.mark.prose
def test_each_chapter_and_lab_is_told_in_one_short_sentence():
    says = {name: curriculum.chapter(name.removesuffix(".md")).says for name in order()}
    says |= {name: curriculum.lab(name).says for name in generate.labs()}
    assert {name: said for name, said in says.items() if not re.fullmatch(r"[A-Zv][^.]{20,80}\.", said)} == {}


def test_where_a_chapter_speaks_of_the_next_and_the_last_one_they_stand_beside_it():
    names = order()
    for name, following in pairwise(names):
        leads_to = re.findall(r"\[[Tt]he\s+next\s+chapter\]\(([^)#]+)", chapter(name))
        assert set(leads_to) <= {following}, name
        leads_back = re.findall(r"\[[Tt]he\s+last\s+chapter\]\(([^)#]+)", chapter(following))
        assert set(leads_back) <= {name}, following


WIDE = '''def f(first: int, second: int) -> int:
    """Return a sum, in a sentence that is longer than a page's column of eighty-eight characters, and goes
    on.

    Args:
        first: one.
        second: another.
    """
    return first + second  # a comment behind the code that makes the line too long for the page's column
'''

NARROW = '''def f(first: int, second: int) -> int:
    """Return a sum, in a sentence that is longer than a page's column of eighty-eight
    characters, and goes on.

    Args:
        first: one.
        second: another.
    """
    # a comment behind the code that makes the line too long for the page's column
    return first + second'''


def test_source_is_shown_in_lines_that_its_column_holds():
    assert narrow(WIDE) == NARROW


def test_no_docstring_stands_below_another() -> None:
    """Of two in a row the second belongs to something else: it was left behind when a line was put in between."""
    twice = []
    for path in sorted(
        path for folder in ("mini_kv", "book", "labs", "solutions") for path in ROOT.glob(f"{folder}/**/*.py")
    ):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            body = getattr(node, "body", None)
            for one, after in pairwise(body if isinstance(body, list) else []):
                if is_string(one) and is_string(after):
                    twice.append(f"{path.relative_to(ROOT)}:{after.lineno}")
    assert twice == []


def is_string(statement: ast.stmt) -> bool:
    """Return whether a statement is a string and nothing else."""
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )

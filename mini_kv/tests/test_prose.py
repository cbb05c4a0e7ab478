"""The book's prose: chapters have titles and an order of reading, no numbers; they begin with their story."""

import re
from itertools import pairwise
from pathlib import Path

import pytest
from mini_kv_book import generate
from mini_kv_book.narrow import narrow
from mini_kv_book.places import DOCS, ROOT
from mini_kv_book.runs import source_of

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


def without_code(text: str) -> str:
    """Return a page's text without its fences."""
    return re.sub(r"^ *```.*?^ *```", "", text, flags=re.MULTILINE | re.DOTALL)


def needs(text: str) -> list[str]:
    """Return the chapters that a chapter says it comes after."""
    (found,) = re.findall(r"^.*\bminutes\b[^\n]* · (?:comes\s+after|You know)(.*?)\n\n", text, re.MULTILINE | re.DOTALL)
    return re.findall(r"\]\((\d\d-[\w-]+\.md)\)", found)


def test_no_page_no_notebook_and_no_docstring_calls_a_chapter_by_a_number():
    """The number in a chapter's file and address is no place in the book."""
    paths = {path for place in PLACES for path in ROOT.glob(place)} - {Path(__file__)}
    assert len(paths) > 500
    found = {path.relative_to(ROOT).as_posix(): NUMBERED.findall(prose_of(path)) for path in paths}
    assert {name: numbers for name, numbers in found.items() if numbers} == {}


def test_the_navigation_has_every_chapter_once_and_no_number():
    assert sorted(order()) == sorted(path.name for path in (DOCS / "chapters").glob("[0-9][0-9]-*.md"))
    titles = [title for part in generate.chapters().values() for title in part.values()]
    assert [title for title in titles if title[0].isdigit()] == []


def test_a_chapter_comes_after_those_that_stand_before_it():
    names = order()
    late = {
        name: [other for other in needs(chapter(name)) if names.index(other) >= names.index(name)] for name in names
    }
    assert {name: others for name, others in late.items() if others} == {}
    assert [name for name in names[1:] if not needs(chapter(name))] == []


def test_where_a_chapter_speaks_of_the_next_and_the_last_one_they_stand_beside_it():
    names = order()
    for name, following in pairwise(names):
        leads_to = re.findall(r"\[[Tt]he\s+next\s+chapter\]\(([^)#]+)", chapter(name))
        assert set(leads_to) <= {following}, name
        assert following in chapter(name), f"{name} does not lead on to {following}"
        leads_back = re.findall(r"\[[Tt]he\s+last\s+chapter\]\(([^)#]+)", chapter(following))
        assert set(leads_back) <= {name}, following


def test_chapters_begin_with_their_story_and_no_two_alike():
    openings = {}
    for name in order():
        first = chapter(name).split("\n\n")[1]
        openings[name] = tuple(re.findall(r"\w+", first)[:2])
        assert "After this chapter you can" not in chapter(name), name
        assert not re.match(r"In (\w+ )?\d{4} ", first), name
    assert len(set(openings.values())) == len(openings)


def test_a_badge_stands_only_where_it_distinguishes():
    """Every chapter runs on a CPU; the one on the kernel says so, since a reader might expect otherwise."""
    assert [name for name in order() if "[CPU-OK]" in chapter(name)] == ["12-the-kernel.md"]


def test_prose_names_who_acts():
    """Somebody, whoever and nobody hide the request, the block or the scheduler: a few in a chapter are enough."""
    hidden = re.compile(r"\b(some(?:body|one)|whoever|every(?:body|one)|any(?:body|one)|nobody)\b", re.IGNORECASE)
    found = {name: len(hidden.findall(without_code(chapter(name)))) for name in order()}
    assert {name: count for name, count in found.items() if count > 3} == {}


def test_code_in_a_chapter_fits_its_column():
    """88 columns stand beside the navigation without a break; a promise `# prints:` is not shown."""
    for name in order():
        for code in re.findall(r"^```(?:kv-python|kv-chart|python|bash|text)\n(.*?)^```", chapter(name), re.M | re.S):
            shown = [line for line in code.splitlines() if not line.startswith("# prints:")]
            assert [line for line in shown if len(line) > 88] == [], name


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


@pytest.mark.slow
def test_no_source_that_a_chapter_shows_has_a_longer_line_but_for_a_string():
    for name in order():
        for symbol in re.findall(r"^```kv-source\n(.*?)^```", chapter(name), re.MULTILINE | re.DOTALL):
            wide = [line for line in narrow(source_of(symbol).text).splitlines() if len(line) > 88]
            assert [line for line in wide if '"' not in line] == [], symbol

"""Checks that a home teaches its idea: the words that it must contain, and the questions that it must answer.

data/coverage.toml gives each row its words. A home has them all in one place: in one section of a page or of a lab's
README, in a notebook, in a symbol's docstring. Some rows also have a question, and the phrases that answer it.
"""

import ast
import json
import re
from pathlib import Path

from mini_kv_book import coverage
from mini_kv_book.places import DOCS, ROOT
from mini_kv_book.runs import source_of


def missing_words(words: tuple[str, ...], home: str, root: Path = ROOT) -> list[str]:
    """Return the words of a row that its home lacks, or none if one place of the home has them all.

    `a|b` asks for one of the two. Case, line breaks and marks of emphasis do not matter. A symbol implements
    the idea and does not teach it, so one of the words in its name or docstring is enough.
    """
    places = [plain(place) for place in places_of(home, root)]
    lacking = [[word for word in words if not has(place, word)] for place in places]
    fewest = min(lacking, key=len, default=list(words))
    return [] if coverage.kind_of(home) == "symbol" and len(fewest) < len(words) else fewest


def has(text: str, word: str) -> bool:
    """Return whether a plain text has the word, or one of several written `a|b`, at the beginning of a word.

    >>> has("a ring buffer, during", "ring buffer|x"), has("during", "ring")
    (True, False)
    """
    return any(re.search(rf"(?<!\w){re.escape(plain(choice))}", text) for choice in word.split("|"))


def plain(text: str) -> str:
    """Return the text in one line, in lower case, without marks.

    >>> plain("The **null block**, [`id` 0](a.md)")
    'the null block, id 0'
    """
    without_links = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    return re.sub(r"\s+", " ", re.sub(r"[`*]", "", without_links)).strip().lower()


def places_of(home: str, root: Path = ROOT) -> list[str]:
    """Return the texts of a home, each of which may teach the idea: its sections, or the one text that it is."""
    kind = coverage.kind_of(home)
    if kind == "symbol":
        return [_docstring_of(home)]
    if kind == "notebook":
        cells = json.loads((root / home).read_text(encoding="utf-8"))["cells"]
        return ["\n".join("".join(cell["source"]) for cell in cells)]
    path, _, anchor = home.partition("#")
    page = root / "labs" / home / "README.md" if kind == "lab" else root / DOCS.relative_to(ROOT) / path
    text = _with_tables(page.read_text(encoding="utf-8"))
    if terms := re.findall(r"^.+\n:   (?:.+\n|\n(?=    ))+", text, re.MULTILINE):
        return terms  # of a glossary, each by itself
    return [below for name, below in _sections_of(text) if anchor in ("", name)]


def _with_tables(text: str) -> str:
    """Return a page's text with its tables made; the index itself is left out, because it contains all words."""
    from mini_kv_book import tables  # which needs MkDocs

    request = re.compile(r"^ *<!-- table (?!coverage)(.+) -->$", re.MULTILINE)
    return request.sub(lambda match: tables.made(match[1]), text)


def _sections_of(text: str) -> list[tuple[str, str]]:
    """Return the anchor and the text of each section, its subsections included."""
    bare = re.sub(
        r"^```.*?^```", lambda fence: re.sub(r"^#", " ", fence[0], flags=re.MULTILINE), text, flags=re.M | re.S
    )
    headings = list(re.finditer(r"^(#{1,6}) (.+)$", bare, re.MULTILINE))
    found = []
    for number, heading in enumerate(headings):
        level = len(heading[1])
        later = (other.start() for other in headings[number + 1 :] if len(other[1]) <= max(level, 2))
        found.append((coverage.anchor_of(heading[2]), bare[heading.end() : next(later, len(bare))]))
    return found


def _docstring_of(symbol: str) -> str:
    """Return a symbol's name with its docstring. A constant has its value and the comment below it."""
    source = source_of(symbol)
    module = ast.parse(source.text)
    node = module if symbol.replace(".", "/") + ".py" == source.path else module.body[0]
    if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
        return f"{symbol}\n{ast.get_docstring(node) or ''}"
    return f"{symbol}\n{source.text}"

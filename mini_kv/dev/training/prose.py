"""The training text of the small model: the sentences of this repository.

Tables, code, figures and headings are left out, because a model of this size can learn to write sentences or tables,
but not both.
"""

import ast
import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_SOURCES = (
    "README.md",
    "book/docs/**/*.md",
    "labs/*/README.md",
    "labs/*/*.toml",
    "mini_kv/**/*.py",
    "mini_kv/**/*.toml",
    "notebooks/*.ipynb",
)
"""Sources of text: pages, texts of labs and figures, docstrings, the notebooks' text cells. Tests are left out."""

_NOT_PROSE = re.compile(
    r"""
    ^(\ *)(`{3,}|~{3,}).*?^\ *\2\ *$      # a fence, and what is in it
    | <!--.*?-->                          # a comment
    | ^\ *(\$\$|\\\[).*?(\$\$|\\\])\ *$   # a formula on lines of its own
    """,
    re.DOTALL | re.MULTILINE | re.VERBOSE,
)
_LEFT_OUT = ("#", "|", "!!!", "???", "===", ":::", "<", "--8<--", "[^", "*[", ">>>")
"""Beginnings of paragraphs that are headings, tables, titles of boxes, HTML, definitions or examples."""
_MARKUP = [
    (re.compile(r"!?\[([^\]]*)\](\([^)]*\)|\[[^\]]*\])"), r"\1"),  # a link: what it says
    (re.compile(r"\[\^[^\]]*\]|\{[^}]*\}|</?\w+[^>]*>"), ""),  # a footnote's mark, attributes, a tag
    (re.compile(r"\*\*|`|(?<![\w*])[*_](?=\S)|(?<=\S)[*_](?![\w*])"), ""),  # emphasis and code
    (re.compile(r"\\(?=[$*_#`])"), ""),
    (re.compile(r"^\s*([-*+]|\d+\.)\s+"), ""),  # an item's bullet
    (re.compile(r"\s+"), " "),
]
_LETTERS = 0.93
"""Smallest share of letters and spaces in a paragraph of prose. Others are full of numbers and identifiers."""

_ENOUGH = 500
"""Number of characters. A shorter text, such as the docstring of a small class, is joined with the next one."""


def read_prose(root: Path) -> list[str]:
    """Return the texts of a repository, file by file in the order of their paths, each text once."""
    paths = sorted({path for pattern in _SOURCES for path in root.glob(pattern) if not {"tests", "zh"} & {*path.parts}})
    return list(dict.fromkeys(text for path in paths for text in texts_of(path)))


def texts_of(path: Path) -> Iterator[str]:
    """Yield a file's texts: related paragraphs, with a blank line between two."""
    text: list[str] = []
    for part in _parts(path.suffix, path.read_text(encoding="utf-8")):
        text += paragraphs(part)
        if sum(map(len, text)) >= _ENOUGH:
            yield "\n\n".join(text)
            text = []
    if text:
        yield "\n\n".join(text)


def _parts(suffix: str, source: str) -> list[str]:
    """Return a file's sections, cells, strings or docstrings."""
    match suffix:
        case ".md":
            return re.split(r"^#+ .*$", _NOT_PROSE.sub("", source), flags=re.MULTILINE)
        case ".ipynb":
            return ["".join(cell["source"]) for cell in json.loads(source)["cells"] if cell["cell_type"] == "markdown"]
        case ".toml":
            return list(_strings(tomllib.loads(source)))
        case _:
            # Not those of functions: they all begin with what is returned, and so would every second sentence.
            nodes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Module | ast.ClassDef)]
            return [ast.get_docstring(node) or "" for node in nodes]


def _strings(value: Any) -> Iterator[str]:
    """Yield the strings in a table of tables and lists."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _strings(inner)


def paragraphs(page: str) -> list[str]:
    r"""Return the paragraphs of a Markdown page that are prose, one line each.

    >>> paragraphs("# A\n\nA *block* has [a hash](https://a.b),\nas soon as it is full.\n\n| a | table |\n|---|---|\n")
    ['A block has a hash, as soon as it is full.']
    """
    found = []
    for part in re.split(r"\n\s*\n|\n(?=\s*(?:[-*+]|\d+\.)\s)", _NOT_PROSE.sub("", page)):
        text = part.strip()
        if text.startswith(_LEFT_OUT):
            continue
        for pattern, replacement in _MARKUP:
            text = pattern.sub(replacement, text)
        text = text.strip()
        if _is_prose(text):
            found.append(text)
    return found


def _is_prose(text: str) -> bool:
    """Return whether a text is made of sentences."""
    letters = sum(character.isalpha() or character == " " for character in text)
    return len(text.split()) >= 8 and letters >= _LETTERS * len(text) and text[-1] in ".!?:;)" and text.isascii()

"""What the small model reads in order to learn: the sentences of this repository.

Tables, code, figures and headings are left out: a model of this size learns either to write sentences or to draw
tables.
"""

import re
from pathlib import Path

PAGES = ("README.md", "labs/*/README.md", "book/docs/**/*.md")
"""Where the sentences are."""

_NOT_PROSE = re.compile(
    r"""
    ^(\ *)(`{3,}|~{3,}).*?^\ *\2\ *$      # a fence, and what is in it
    | <!--.*?-->                          # a comment
    | ^\ *(\$\$|\\\[).*?(\$\$|\\\])\ *$   # a formula on lines of its own
    """,
    re.DOTALL | re.MULTILINE | re.VERBOSE,
)
_LEFT_OUT = ("#", "|", "!!!", "???", "===", ":::", "<", "--8<--", "[^", "*[")
"""A paragraph that begins like this is a heading, a table, a box's title, HTML, a definition."""
_MARKUP = [
    (re.compile(r"!?\[([^\]]*)\](\([^)]*\)|\[[^\]]*\])"), r"\1"),  # a link: what it says
    (re.compile(r"\[\^[^\]]*\]|\{[^}]*\}|</?\w+[^>]*>"), ""),  # a footnote's mark, attributes, a tag
    (re.compile(r"\*\*|`|(?<![\w*])[*_](?=\S)|(?<=\S)[*_](?![\w*])"), ""),  # emphasis and code
    (re.compile(r"\\(?=[$*_#`])"), ""),
    (re.compile(r"^\s*([-*+]|\d+\.)\s+"), ""),  # an item's bullet
    (re.compile(r"\s+"), " "),
]
_LETTERS = 0.75
"""Of a paragraph's characters, at least so many are letters: the others are lists of numbers."""


def paragraphs(page: str) -> list[str]:
    r"""Return the paragraphs of a Markdown page that are prose, one line each.

    >>> paragraphs("# A title\n\nA *block* has [a name](x.md),\nwhen it is full.\n\n| a | table |\n|---|---|\n")
    ['A block has a name, when it is full.']
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
    letters = sum(character.isalpha() for character in text)
    enough = len(text.split()) >= 6 and letters >= _LETTERS * len(text)
    return enough and text[-1] in ".!?:;)" and text.isascii()


def sections(page: str) -> list[str]:
    """Return what stands between a page's headings: the paragraphs that are prose, with a blank line between two."""
    found = [
        "\n\n".join(paragraphs(part)) for part in re.split(r"^#+ .*$", _NOT_PROSE.sub("", page), flags=re.MULTILINE)
    ]
    return [section for section in found if section]


def read_prose(root: Path) -> list[str]:
    """Return the sections of a repository's pages, page by page in the order of their paths."""
    paths = sorted({path for pattern in PAGES for path in root.glob(pattern)})
    return [section for path in paths for section in sections(path.read_text(encoding="utf-8"))]

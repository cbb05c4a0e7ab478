"""What the messages of all commands share: typed words, lists of names, and lines of a terminal's width.

Standard library only.
"""

import difflib
import re
import shutil
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from typing import TextIO

MOST_NAMES = 8
"""The most names in a message."""
_LABEL = re.compile(r" *(?:\S+(?: \S+)*  +)?")
"""What is left of a line's text: spaces, or a label and the spaces after it."""


def shown(word: str) -> str:
    """Return the typed text, quoted for a message, and cut if it is long."""
    return repr(word) if len(word) <= 60 else f"{word[:60]!r}..."


def did_you_mean(word: str, names: Sequence[str]) -> str:
    """Return a question with a name similar to the typed word, or an empty string."""
    near = difflib.get_close_matches(word[:60], names, n=1)
    return f"did you mean {near[0]}? " if near else ""


def choices(word: str, names: Sequence[str], all_of_them: str = "") -> str:
    """Return the advice for an unknown name: the most similar name as a question, and the existing names.

    A long list begins with the similar names, is cut, and ends with the command that prints all of them.
    """
    return f"{did_you_mean(word, names)}there are: {listed(names, all_of_them, word)}"


def listed(names: Sequence[str], all_of_them: str = "", word: str = "") -> str:
    """Return the names, separated by commas. A long list is cut as in `choices`."""
    if len(names) <= MOST_NAMES:
        return ", ".join(names)
    near = difflib.get_close_matches(word[:60], names, n=3) if word else []
    first = [*near, *(name for name in names if name not in near)][:MOST_NAMES]
    more = f"{len(names) - MOST_NAMES} more"
    return f"{', '.join(first)} ... and {more}{all_of_them and f': {all_of_them}'}"


def wrapped(lines: Iterable[str], out: TextIO) -> Iterator[str]:
    """Yield the lines, on a terminal broken at its width.

    A further line begins below the text of the first one, to the right of its label.
    """
    if not out.isatty():
        yield from lines
        return
    width = max(40, shutil.get_terminal_size().columns - 1)
    for line in lines:
        label = _LABEL.match(line)
        indent = min(len(label[0]) if label else 0, width // 2)
        yield from textwrap.wrap(
            line, width, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False
        ) or [line]

"""Draws growing texts and the blocks of the pool on a terminal. Needs no torch.

    A block is free when no request holds it, and it

    4 of 24 blocks held, step 19
    111oo2..................

The same lines are drawn again after every step: the cursor goes up to where they began, and all below it is cleared.
"""

import textwrap
from collections.abc import Sequence
from typing import TextIO

from mini_kv.core.block_pool import BlockPool

MARKS = ".  free    o  free, still cached    1  held    2, 3 ...  shared by that many"
_MAX_POOL_LINES = 4


def pool_lines(block_pool: BlockPool, width: int) -> list[str]:
    """Return one mark per block, by block id, without the null block."""
    marks = "".join(
        "o" if block.ref_cnt == 0 and block.block_hash else ".123456789"[min(block.ref_cnt, 9)]
        for block in block_pool.blocks
        if not block.is_null
    )
    lines = [marks[i : i + width] for i in range(0, len(marks), width)]
    if len(lines) > _MAX_POOL_LINES:
        num_hidden = len(marks) - width * (_MAX_POOL_LINES - 1)
        lines[_MAX_POOL_LINES - 1 :] = [f"... and {num_hidden} more"[:width]]
    return lines


def text_lines(texts: Sequence[str], width: int) -> list[str]:
    """Return the texts, broken into lines. If there are several, each has its number in front."""
    lines = []
    for number, text in enumerate(texts, start=1):
        prefix = f"[{number}] " if len(texts) > 1 else ""
        for line in (prefix + text).split("\n"):
            lines += textwrap.wrap(line, width) or [""]
    return lines


def printable(text: str) -> str:
    """Return the text without control characters: they become U+FFFD, and a tab becomes a space."""
    return "".join(c if c == "\n" or c.isprintable() else " " if c == "\t" else "\ufffd" for c in text)


class Screen:
    """Lines at the bottom of a terminal, drawn again in place."""

    def __init__(self, out: TextIO) -> None:
        """Start at the cursor."""
        self._out = out
        self._num_lines = 0

    def draw(self, lines: Sequence[str]) -> None:
        """Draw these lines in place of the last ones."""
        self.clear()
        self._out.write("".join(f"{line}\n" for line in lines))
        self._out.flush()
        self._num_lines = len(lines)

    def clear(self) -> None:
        """Remove the lines."""
        if self._num_lines:
            self._out.write(f"\033[{self._num_lines}F\033[J")
        self._num_lines = 0

"""A question about a run of the learner's code, with the calls that led to it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from mini_kv.course.labkit.spelling import plain

BLOCK_SIZE = 4
"""Tokens per block in all questions but those of lab-13. A token is a letter."""
MAX_LINES = 12
"""The most lines of a drawn state."""


class Call(NamedTuple):
    """One call of a run, as plain values. A second computation can repeat the run from its calls."""

    verb: str
    name: str = ""
    tokens: tuple[int, ...] = ()
    """The tokens of a prompt, or block ids."""
    number: int = 0
    other: int = 0


@dataclass(frozen=True, slots=True)
class Question:
    """A question, and its answer by the learner's code."""

    lab_id: str
    kind: str
    """What is asked. No two of five questions have the same kind, if there are enough kinds."""
    ask: str
    state: tuple[str, ...]
    """The state before the call in question, drawn."""
    answer: str
    """One number, block ids or request names in order, `yes`, `no` or `none`."""
    proof: tuple[str, ...]
    """The calls that were made, and their results."""
    calls: tuple[Call, ...]
    """All calls from the start. The last one is the call in question."""
    about: str = ""
    """The block, request or number that is asked about, if the last call does not determine it."""
    merit: int = 1
    """Number of rules that the answer depends on. The questions with the most are chosen first."""


def listed(values: Iterable[object]) -> str:
    """Return block ids or names as an answer lists them."""
    return " ".join(map(str, values)) or "none"


def is_answer(given: str, answer: str) -> bool:
    """Return whether this is the answer, in any spelling. Names and letters may be written without spaces."""
    if all(len(word) == 1 and word.isalpha() for word in answer.split()):
        return plain(given).replace(" ", "") == plain(answer).replace(" ", "")
    return plain(given) == plain(answer)


def letters(tokens: Sequence[int]) -> str:
    """Return the tokens as letters, with a space after each block."""
    text = "".join(map(chr, tokens))
    return " ".join(text[start : start + BLOCK_SIZE] for start in range(0, len(text), BLOCK_SIZE))


def from_letters(text: str) -> tuple[int, ...]:
    """Return a token per letter."""
    return tuple(map(ord, text))

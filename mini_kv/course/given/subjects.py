"""What a learner's check runs on: something that keeps its contract, or breaks one sentence of it."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Correct:
    """A manager, a queue or an admission that keeps the contract."""

    title: str
    """What is different in it, as a learner reads it."""
    make: Callable[..., Any] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Faulty:
    """A queue or an admission that breaks the contract."""

    check: str
    """The function whose part of the contract it breaks."""
    make: Callable[..., Any]
    rule: int
    """The number of the sentence of README's contract that it breaks."""


@dataclass(frozen=True, slots=True)
class Misread:
    """A program that does what a reader expects who has misread a sentence of the contract. No check has to find it."""

    make: Callable[..., Any]
    rule: int
    """The number of this sentence."""

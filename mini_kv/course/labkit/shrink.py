"""Shortens a failing list of steps, so that a learner reads three steps, not thirty."""

from collections.abc import Callable, Sequence
from typing import TypeVar

Step = TypeVar("Step")


def shrink(trace: Sequence[Step], fails: Callable[[list[Step]], bool]) -> list[Step]:
    """Return a part of the steps that still fails and of which no single step can be left out.

    Long runs are dropped first, then shorter ones, down to single steps, until no step can be dropped.
    """
    shortest = list(trace)
    size = max(len(shortest) // 2, 1)
    while True:
        dropped = False
        start = 0
        while start < len(shortest):
            shorter = shortest[:start] + shortest[start + size :]
            if fails(shorter):
                shortest, dropped = shorter, True
            else:
                start += size
        if size == 1 and not dropped:
            return shortest
        size = size if dropped else size // 2

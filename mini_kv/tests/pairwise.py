"""Pairwise covering arrays: few configurations in which every two settings of two dimensions meet at least once.

Most defects need two settings to meet, hardly any needs four: 15 dimensions of two to seven values have millions of
combinations, and fifty well-chosen ones contain all of their pairs.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from typing import Any, TypeAlias

Setting: TypeAlias = tuple[str, Any]
"""A dimension and one of its values."""

NUM_CANDIDATES = 12
"""Rows that are drawn for each one that is kept."""


def pairwise_rows(
    dimensions: Mapping[str, Sequence[Any]],
    seed: int = 0,
    *,
    excluded: Callable[[Setting, Setting], bool] = lambda one, other: False,
) -> list[dict[str, Any]]:
    """Return rows, one value per dimension, that together contain every pair of settings that may meet.

    Greedy: of several random rows, each begun with a pair that is still missing, keep the one that adds most pairs.

    Args:
        dimensions: the values of each dimension; hashable.
        seed: the same seed gives the same rows.
        excluded: whether two settings must not meet, asked in the order of the dimensions. Each dimension needs a
            value that may meet every other setting.
    """
    rng = random.Random(seed)
    position = {name: index for index, name in enumerate(dimensions)}

    def may_meet(one: Setting, other: Setting) -> bool:
        first, second = sorted((one, other), key=lambda setting: position[setting[0]])
        return not excluded(first, second)

    def pairs_of(row: Mapping[str, Any]) -> set[tuple[Setting, Setting]]:
        return set(combinations(((name, row[name]) for name in dimensions), 2))

    missing = [
        ((one, a), (other, b))
        for one, other in combinations(dimensions, 2)
        for a in dimensions[one]
        for b in dimensions[other]
        if may_meet((one, a), (other, b))
    ]
    uncovered = set(missing)

    def candidate() -> dict[str, Any]:
        row: dict[str, Any] = dict(rng.choice(missing))
        for name in rng.sample(list(dimensions), len(dimensions)):
            if name in row:
                continue
            values = [v for v in dimensions[name] if all(may_meet(held, (name, v)) for held in row.items())]
            gains = [sum(_pair((name, v), held, position) in uncovered for held in row.items()) for v in values]
            row[name] = rng.choice([v for v, gain in zip(values, gains, strict=True) if gain == max(gains)])
        return row

    rows = []
    while missing:
        best = max((candidate() for _ in range(NUM_CANDIDATES)), key=lambda row: len(pairs_of(row) & uncovered))
        rows.append({name: best[name] for name in dimensions})
        uncovered -= pairs_of(best)
        missing = [pair for pair in missing if pair in uncovered]
    return rows


def _pair(one: Setting, other: Setting, position: Mapping[str, int]) -> tuple[Setting, Setting]:
    return (one, other) if position[one[0]] < position[other[0]] else (other, one)

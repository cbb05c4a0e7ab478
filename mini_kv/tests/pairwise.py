"""Pairwise covering arrays: few configurations in which every two settings of two dimensions meet at least once.

Most defects need two settings to meet, hardly any needs four: 20 dimensions of two to seven values have billions of
combinations, and forty well-chosen ones contain all of their pairs.
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
        dimensions: the values of each dimension.
        seed: the same seed gives the same rows.
        excluded: whether two settings must not meet, asked in the order of the dimensions. Each dimension needs a
            value that may meet every other setting.
    """
    rng = random.Random(seed)
    settings = [(name, value) for name, values in dimensions.items() for value in values]
    places = {name: [i for i, setting in enumerate(settings) if setting[0] == name] for name in dimensions}
    missing = {
        (i, j)
        for i, j in combinations(range(len(settings)), 2)
        if settings[i][0] != settings[j][0] and not excluded(settings[i], settings[j])
    }
    may_meet: list[set[int]] = [set() for _ in settings]
    for i, j in missing:
        may_meet[i].add(j)
        may_meet[j].add(i)
    still: list[set[int]] = [set(others) for others in may_meet]
    """For each setting, those that it has not met yet."""

    def draw() -> set[int]:
        row = set(rng.choice(sorted(missing)))
        for name in rng.sample(list(dimensions), len(dimensions)):
            if row.isdisjoint(places[name]):
                values = [i for i in places[name] if row <= may_meet[i]]
                most = max(len(still[i] & row) for i in values)
                row.add(rng.choice([i for i in values if len(still[i] & row) == most]))
        return row

    rows = []
    while missing:
        best = max((draw() for _ in range(NUM_CANDIDATES)), key=lambda row: sum(len(still[i] & row) for i in row))
        rows.append(dict(settings[i] for i in sorted(best)))
        for i in best:
            still[i] -= best
        missing -= set(combinations(sorted(best), 2))
    return rows

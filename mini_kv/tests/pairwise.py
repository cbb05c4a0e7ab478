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
    settings = [(name, value) for name, values in dimensions.items() for value in values]
    missing = {
        (i, j)
        for i, j in combinations(range(len(settings)), 2)
        if settings[i][0] != settings[j][0] and not excluded(settings[i], settings[j])
    }
    search = _Search(settings, missing, random.Random(seed))
    rows = []
    while search.missing:
        candidates = [search.draw() for _ in range(NUM_CANDIDATES)]
        best = max(candidates, key=lambda row: sum(len(search.still[i] & row) for i in row))
        search.keep(best)
        rows.append(dict(settings[i] for i in sorted(best)))
    return rows


class _Search:
    """What is known while the rows are drawn; a setting is its index."""

    def __init__(self, settings: list[Setting], missing: set[tuple[int, int]], rng: random.Random) -> None:
        self.rng = rng
        self.missing = missing
        self.places: dict[str, list[int]] = {}
        for i, (name, _) in enumerate(settings):
            self.places.setdefault(name, []).append(i)
        self.may_meet: list[set[int]] = [set() for _ in settings]
        for i, j in missing:
            self.may_meet[i].add(j)
            self.may_meet[j].add(i)
        self.still: list[set[int]] = [set(others) for others in self.may_meet]
        """For each setting, those that it has not met yet."""

    def draw(self) -> set[int]:
        """Return a row that begins with a missing pair; each further value is one that adds most pairs."""
        row = set(self.rng.choice(sorted(self.missing)))
        for name in self.rng.sample(list(self.places), len(self.places)):
            if row.isdisjoint(self.places[name]):
                values = [i for i in self.places[name] if row <= self.may_meet[i]]
                most = max(len(self.still[i] & row) for i in values)
                row.add(self.rng.choice([i for i in values if len(self.still[i] & row) == most]))
        return row

    def keep(self, row: set[int]) -> None:
        """Note that the settings of a row have met."""
        for i in row:
            self.still[i] -= row
        self.missing -= set(combinations(sorted(row), 2))

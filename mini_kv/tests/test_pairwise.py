"""Every two settings meet, and those that must not never do."""

from itertools import combinations

import pytest

from mini_kv.tests.pairwise import Setting, pairwise_rows
from mini_kv.tests.scheduler_driver import DIMENSIONS, cannot_meet

COLOURS = {"wall": ("red", "blue", "white"), "door": (1, 2), "roof": ("flat", "steep"), "lamp": (True, False)}


def not_red_and_steep(one: Setting, other: Setting) -> bool:
    return (one, other) == (("wall", "red"), ("roof", "steep"))


@pytest.mark.parametrize(("dimensions", "excluded"), [(COLOURS, not_red_and_steep), (DIMENSIONS, cannot_meet)])
@pytest.mark.parametrize("seed", range(3))
def test_every_two_settings_meet_unless_they_must_not(dimensions, excluded, seed: int):
    rows = pairwise_rows(dimensions, seed, excluded=excluded)
    met = {pair for row in rows for pair in combinations([(name, row[name]) for name in dimensions], 2)}
    settings = [(name, value) for name, values in dimensions.items() for value in values]
    wanted = {
        (one, other) for one, other in combinations(settings, 2) if one[0] != other[0] and not excluded(one, other)
    }
    assert met == wanted
    assert all(list(row) == list(dimensions) for row in rows)


def test_rows_are_few_and_the_seed_decides_which():
    rows = pairwise_rows(COLOURS, 7)
    assert len(rows) <= 8  # 6 at least: three walls times two doors; all combinations are 24
    assert rows == pairwise_rows(COLOURS, 7) != pairwise_rows(COLOURS, 8)
    assert len(pairwise_rows(DIMENSIONS, excluded=cannot_meet)) < 50

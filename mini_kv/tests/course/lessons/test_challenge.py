"""The notebooks' challenges: open until what they ask for has been brought about, by a reader's presses."""

import pytest

from mini_kv.course.lessons.chain import chain
from mini_kv.course.lessons.challenge import CHALLENGES, Challenge
from mini_kv.course.lessons.lever import Lever
from mini_kv.course.lessons.small_cache import LiveCache

OF_PROMPTS = {"thrown out", "nothing spared"}
"""These need a model: in test_generation.py."""


def pressed(cache, *presses):
    for press in presses:
        verb, _, what = press.partition(" ")
        getattr(cache, verb)(int(what) if verb == "pressure" else what)
    return cache


A, B = "admit 0..15 100..103", "admit 0..15 200..203"
SOLVED_BY = {
    "three rows": (13, ["admit 0..19", "admit 0..19", "admit 0..19"]),
    "half is left": (9, ["admit 0..31", "finish A", "pressure 4", "admit 0..31"]),
    "only what is common": (11, [A, B, "finish A", "finish B", "pressure 6"]),
    "empty grows": (11, ["admit 0..17", "finish A"]),
}


@pytest.mark.parametrize("name", SOLVED_BY)
def test_a_cache_s_challenge_is_met_by_the_last_press_and_not_before(name):
    num_blocks, presses = SOLVED_BY[name]
    met = [CHALLENGES[name].met(pressed(LiveCache(num_blocks, 4), *presses[:n])) for n in range(len(presses) + 1)]
    assert met == [False] * len(presses) + [True]


@pytest.mark.parametrize(
    ("name", "num_blocks", "presses"),
    [
        ("half is left", 9, ["admit 0..31", "finish A", "admit 0..15 500..515"]),  # half of it, but another prompt
        ("half is left", 9, ["admit 0..31", "finish A", "pressure 2", "admit 0..31"]),  # three quarters
        ("only what is common", 11, [A, "finish A", "pressure 6"]),  # one prompt alone
        ("only what is common", 11, [A, B, "finish A", "pressure 5"]),  # one still runs
        ("only what is common", 11, [A, B, "finish A", "finish B", "pressure 5"]),  # B's tail is left
        ("only what is common", 11, [A, B, "finish A", "finish B", "pressure 7"]),  # 12 are left
        ("empty grows", 11, ["admit 0..15", "finish A"]),  # all its blocks are full
    ],
)
def test_a_press_too_few_too_many_or_another_leaves_it_open(name, num_blocks, presses):
    assert not CHALLENGES[name].met(pressed(LiveCache(num_blocks, 4), *presses))


def test_two_chains_with_one_end():
    met = CHALLENGES["same end"].met
    assert met(chain("aaaabbbbcccc0000zzzz", "aaaabbbbcccc1111zzzz", 4))
    assert not met(chain("aaaabbbbcccczzzz", "aaaabbbbcccczzzz", 4))  # one name
    assert not met(chain("aaaabbbbcccc0000", "aaaabbbbcccc1111", 4))  # another end
    assert not met(chain("abc", "abc", 4))


def test_every_challenge_is_solved_in_a_test():
    assert CHALLENGES.keys() == SOLVED_BY.keys() | OF_PROMPTS | {"same end"}


class Picture:
    sentence = "A picture."

    def _repr_html_(self):
        return "<svg></svg>"


def test_a_lever_knows_which_positions_are_right():
    """Worked out when it is made: the page holds a mark at each, and needs no kernel."""
    pictures = {"1": Picture(), "2": Picture(), "3": Picture()}
    lever = Lever("number", pictures, challenge=Challenge("Find the even one.", lambda at: at == "2"))
    assert lever.met == ["2"]
    page = lever._repr_html_()
    assert page.count("data-met") == 1
    assert '<div data-at="2" data-met hidden>' in page
    assert "Find the even one." in page


@pytest.mark.parametrize("right", ["4", "1"])
def test_a_lever_refuses_a_challenge_that_nothing_meets_or_its_first_picture(right):
    with pytest.raises(ValueError, match="must be met by a position, but not by the start"):
        Lever("number", {"1": Picture(), "2": Picture()}, challenge=Challenge("Find it.", lambda at: at == right))

"""What groups hold and find: the numbers of *windows and groups* and of notebook 09."""

import pytest

from mini_kv.core.errors import ConfigError
from mini_kv.course.lessons.windows import (
    find_with_holes,
    held_at_each_token,
    held_while_computing,
    hits_of_the_second_round,
    shares_found_again,
)

NOTE = ("full", "window 32", "window 32")
"""The groups of the design note's example: 10 full and 20 window layers."""


def test_the_notes_example_one_token_at_a_time():
    """111 tokens, and then two more: 7 + 2 + 2 is the least that it ever is, and lasts a step."""
    held = held_while_computing(NOTE, 111, 111, num_more=2)
    assert [(step.num_tokens, step.blocks) for step in held] == [(111, (7, 7, 7)), (112, (7, 2, 2)), (113, (8, 3, 3))]


@pytest.mark.parametrize(
    ("chunk", "want"),
    [
        (112, [(7, 7, 7), (8, 3, 3)]),
        (64, [(4, 4, 4), (7, 5, 5), (8, 3, 3)]),
        (32, [(2, 2, 2), (4, 4, 4), (6, 4, 4), (7, 3, 3), (8, 3, 3)]),
        (16, [(1, 1, 1), (2, 2, 2), (3, 3, 3), (4, 3, 3), (5, 3, 3), (6, 3, 3), (7, 3, 3), (8, 3, 3)]),
    ],
)
def test_what_is_held_on_the_way(chunk, want):
    """The peak of a window is the window and a step's tokens, not the prompt."""
    assert [step.blocks for step in held_while_computing(NOTE, 112, chunk, num_more=1)] == want


def test_a_value_a_token():
    held = held_while_computing(("full", "window 4"), 10, 4, block_size=2)
    assert [step.blocks for step in held] == [(2, 2), (4, 4), (5, 3)]
    assert held_at_each_token(held, 0) == [2] * 4 + [4] * 4 + [5] * 2
    assert held_at_each_token(held, 1) == [2] * 4 + [4] * 4 + [3] * 2


def test_a_window_needs_what_the_next_token_reads_and_no_more():
    """A window of 48 needs three blocks before a hit's end; what is missing left of them does not matter."""
    assert find_with_holes(("window 48",), 161, {}).table == ((0, 0, 0, 0, 0, 0, 0, 8, 9, 10),)
    assert find_with_holes(("window 48",), 161, {0: [0, 3, 6]}).num_tokens == 160
    assert find_with_holes(("full",), 161, {0: [0, 3, 6]}).num_tokens == 0
    assert find_with_holes(("window 48",), 161, {0: [9]}).num_tokens == 144


def test_groups_are_asked_in_turn_until_none_shortens_the_hit():
    """Alone they would say 128, 160 and 160; two agree on 80, and all three on 16."""
    full, wide, narrow = ("full", [8]), ("window 48", [1, 5]), ("window 32", [4])

    def found(*kinds):
        holes = {group: missing for group, (_, missing) in enumerate(kinds)}
        return find_with_holes([name for name, _ in kinds], 161, holes).num_tokens

    assert [found(full), found(wide), found(narrow)] == [128, 160, 160]
    assert found(full, wide) == 80
    assert found(full, wide, narrow) == found(narrow, full, wide) == 16


def test_all_or_nothing():
    """Four conversations find all of themselves and five find nothing, in a pool that could remember fourteen."""
    groups = ("full", *["window 1024"] * 5)
    assert hits_of_the_second_round(12_000, groups, 4) == [8192] * 4
    assert hits_of_the_second_round(12_000, groups, 5) == [0] * 5
    assert shares_found_again(12_000, groups, range(1, 9)) == [1.0] * 4 + [0.0] * 4
    written, of_use = 6 * 512, 512 + 5 * 64
    assert (11_999 // written, 11_999 // of_use) == (3, 14)


def test_what_makes_no_sense_is_refused():
    with pytest.raises(ConfigError, match="chunk is 0"):
        held_while_computing(NOTE, 10, 0)
    with pytest.raises(ConfigError, match="too small for request '0, turn 0' of 64 tokens"):
        hits_of_the_second_round(4, ("full",), 1, num_tokens=64)

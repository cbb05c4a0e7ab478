"""Recompute or reload: prices, the crossover, and what the connector does with them."""

import random

import pytest

from mini_kv.core.errors import ConfigError
from mini_kv.tests.tiers.test_connector import House
from mini_kv.tests.tiers.tiers_driver import FakeServer
from mini_kv.tiers.reload_cost import LearnedCost, ReloadCost, line_through


def test_short_prefixes_are_computed_and_long_ones_reloaded() -> None:
    """A token costs 10 to compute and 2 to bring (4 bytes of 0.5); bringing anything costs 80: 10 tokens are even."""
    cost = ReloadCost(seconds_per_token=10.0, seconds_per_byte=0.5, seconds_at_once=80.0)
    assert [cost.is_worth_it(tokens, 4 * tokens) for tokens in (1, 9, 10, 11, 100)] == [False] * 3 + [True] * 2
    assert cost.crossover_tokens(bytes_per_token=4) == 11
    assert cost.crossover_tokens(bytes_per_token=20) is None  # each token costs as much to bring as to compute


def test_a_line_is_found_again() -> None:
    """Through exact points, and between two that disagree."""
    assert line_through([(16, 3 + 2 * 16), (32, 3 + 2 * 32), (64, 3 + 2 * 64)]) == pytest.approx((3.0, 2.0))
    assert line_through([(0, 0.0), (0, 2.0), (4, 5.0)]) == pytest.approx((1.0, 1.0))
    with pytest.raises(ConfigError, match="a line needs measurements at two lengths at least"):
        line_through([(16, 1.0), (16, 2.0)])


def test_prices_are_learned_from_steps_and_copies() -> None:
    """A step: 5, and 2 per token. A copy: 30, and 1 per token of 8 bytes: 31 tokens are worth it, 30 are not."""
    cost = LearnedCost(one_in=4)
    assert cost.is_worth_it(1, 8)
    for num_tokens in (1, 16, 64, 1):
        cost.computed(num_tokens, 5.0 + 2.0 * num_tokens)
    cost.copied(128, 46.0)
    assert cost.is_worth_it(1, 8)  # one length is no line
    cost.copied(256, 62.0)
    prices = cost.prices
    assert prices is not None
    learned = [prices.seconds_per_token, prices.seconds_per_byte, prices.seconds_at_once]
    assert learned == pytest.approx([2.0, 0.125, 30.0])
    assert [cost.is_worth_it(tokens, 8 * tokens) for tokens in (40, 20, 20, 31, 20, 20, 20, 20, 20)] == [
        *(True, False, False, True),
        *(False, False, False, True, False),  # of four short ones in a row, the last one is reloaded: to see
    ]


def test_steps_that_get_no_longer_with_their_tokens_teach_nothing() -> None:
    """As on a machine that is busy with something else."""
    cost = LearnedCost()
    for num_tokens, seconds in ((1, 3.0), (64, 2.0)):
        cost.computed(num_tokens, seconds)
        cost.copied(num_tokens, seconds)
    assert cost.prices is None and cost.is_worth_it(1, 1)


@pytest.mark.parametrize(("per_token", "per_byte", "at_once"), [(0.0, 1.0, 0.0), (1.0, -1.0, 0.0), (1.0, 1.0, -1.0)])
def test_prices_that_cannot_be(per_token: float, per_byte: float, at_once: float) -> None:
    """Nothing is computed in no time."""
    with pytest.raises(ConfigError):
        ReloadCost(per_token, per_byte, at_once)


def test_the_connector_computes_what_is_cheaper_to_compute() -> None:
    """After a preemption, too: what was evicted is reloaded or computed, by its length."""
    house = House(num_blocks=5, server=FakeServer(random.Random(0)))
    house.connector.is_worth_it = ReloadCost(1.0, 0.0, seconds_at_once=9.0).is_worth_it
    house.send("A", "ab")
    house.send("B", "xyz")
    assert house.send("A again", "ab") == 9  # 8 tokens would have been found, and bringing them costs 9
    assert house.connector.counts["not worth it"] == 1
    house.send("C", "abc")
    house.send("D", "xyz")
    assert house.send("C again", "abc") == 1

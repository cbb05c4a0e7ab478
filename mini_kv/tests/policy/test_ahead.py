"""Evicting ahead of need, with one tier of memory: hits that might have come are lost, and nothing is won."""

import pytest

from mini_kv.core.errors import ConfigError
from mini_kv.policy.ahead import evicting_ahead
from mini_kv.tools.traces.replay import replay
from mini_kv.tools.traces.synthetic import generate

AHEAD = [0, 25, 50, 75, 100]


def test_blocks_that_lose_their_hash_early_cost_hits_like_a_smaller_pool():
    trace = generate(7, 300)
    ahead = [replay(trace, 150, parts=evicting_ahead(n)).hit_blocks for n in AHEAD]
    smaller = [replay(trace, 150 - n).hit_blocks for n in AHEAD]
    assert ahead == [1548, 1460, 1349, 1139, 964]
    assert smaller == [1548, 1458, 1336, 1135, 956]


def test_none_ahead_is_the_pool_as_it_was():
    trace = generate(3, 100)
    assert replay(trace, 80, parts=evicting_ahead(0)).evictions == replay(trace, 80).evictions


def test_a_negative_number_is_refused():
    with pytest.raises(ConfigError, match="num_ahead is -1, it must not be negative"):
        replay(generate(1, 5), 80, parts=evicting_ahead(-1))

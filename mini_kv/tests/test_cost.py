"""A step and a request in seconds: sums that can be done by hand, on a card with round numbers."""

import math

import pytest

from mini_kv.core.errors import ConfigError
from mini_kv.tools.planning.cost import (
    H200,
    Card,
    Served,
    decode_step,
    largest_batch,
    request_cost,
    served,
    tokens_per_second,
)

CARD = Card("round", flops=1000, bandwidth=100, memory=1000)
MODEL = Served("small", num_parameters=50, kv_bytes_per_token=10, attention_flops_per_token=4)


def test_weights_are_read_once_per_step_and_each_request_s_cache_besides():
    """100 bytes of weights are a second; 2 requests of 5 tokens have 100 bytes of KV."""
    one, two = decode_step(MODEL, CARD, 1, 5), decode_step(MODEL, CARD, 2, 5)
    assert (one.weights, one.kv, one.arithmetic) == (1, 0.5, 0.12)
    assert (two.weights, two.kv, two.arithmetic) == (1, 1, 0.24)
    assert (one.seconds, two.seconds) == (1.5, 2)


def test_with_enough_company_arithmetic_is_the_limit():
    assert decode_step(MODEL, CARD, 20, 0).seconds == 2  # 20 x 100 operations
    assert tokens_per_second(MODEL, CARD, 10, 0) == tokens_per_second(MODEL, CARD, 20, 0) == 10


def test_a_batch_that_has_no_room_has_no_speed():
    """900 bytes beside the weights: 18 requests of 5 tokens."""
    assert largest_batch(MODEL, CARD, 5) == 18
    assert tokens_per_second(MODEL, CARD, 18, 5) == 18 / 10
    assert math.isnan(tokens_per_second(MODEL, CARD, 19, 5))


def test_a_request_pays_its_prompt_and_its_part_of_the_steps():
    """3 tokens of prompt: 3 x 100 operations, and 1 + 2 + 3 looks back of 4. 4 steps at length 5, shared by two."""
    cost = request_cost(MODEL, CARD, 3, 4, batch=2)
    assert cost.prompt == pytest.approx(0.324)
    assert cost.answer == 4
    assert cost.price(3600) == pytest.approx(4.324)


def test_what_was_found_is_not_computed_but_looked_back_on():
    """One token is new: 100 operations, and 3 looks back."""
    assert request_cost(MODEL, CARD, 3, 4, batch=2, cached_tokens=2).prompt == pytest.approx(0.112)


def test_a_real_model_has_its_cache_from_the_table_of_models():
    model = served("llama-3-8b", 8.03e9, num_heads=32)
    assert model.kv_bytes_per_token == 131_072
    assert model.attention_flops_per_token == 4 * 32 * 32 * 128
    assert largest_batch(model, H200, 8192) == 116


def test_a_model_with_windows_is_refused():
    with pytest.raises(ConfigError, match="layers without full attention"):
        served("gemma-3-27b", 27e9, 32)


def test_a_model_that_reads_what_an_indexer_chose_is_refused():
    with pytest.raises(ConfigError, match="sparse layers with an indexer"):
        served("deepseek-v3.2", 671e9, 128)

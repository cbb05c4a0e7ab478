"""From logits to tokens: the stretches of the lot, and what cuts them off."""

import math

import pytest
import torch

from mini_kv.engine.sampling import SamplingParams, draw, sample_tokens

PROBABILITIES = [0.1, 0.5, 0.15, 0.25]
"""Of tokens 0 to 3: by rank they are 1, 3, 2, 0, and their stretches end at 0.5, 0.75, 0.9 and 1."""
LOGITS = torch.tensor([[math.log(p) for p in PROBABILITIES]])


def drawn_at(draws, **params):
    """Return the token for each number."""
    return sample_tokens(LOGITS.expand(len(draws), -1), [SamplingParams(**params)] * len(draws), draws)


@pytest.mark.parametrize(
    ("params", "draws", "tokens"),
    [
        ({}, [0.0, 0.49, 0.51, 0.74, 0.76, 0.89, 0.91, 1 - 2**-53], [1, 1, 3, 3, 2, 2, 0, 0]),
        ({"temperature": 0}, [0.0, 0.99], [1, 1]),
        ({"top_k": 1}, [0.0, 0.99], [1, 1]),
        ({"top_k": 2}, [0.0, 0.66, 0.67, 0.99], [1, 1, 3, 3]),
        ({"top_p": 0.5}, [0.0, 0.99], [1, 1]),
        ({"top_p": 0.6}, [0.66, 0.67, 0.99], [1, 3, 3]),
        ({"top_p": 1e-9}, [0.99], [1]),
        ({"top_k": 3, "top_p": 0.8}, [0.66, 0.67, 0.99], [1, 3, 3]),
        ({"temperature": 1e-6}, [0.0, 0.99], [1, 1]),
        ({"temperature": 1e-310}, [0.0, 0.99], [1, 1]),
        ({"temperature": 1e6}, [0.1, 0.3, 0.6, 0.9], [1, 3, 2, 0]),
        ({"temperature": 0.5}, [0.72, 0.73], [1, 3]),
    ],
)
def test_a_number_falls_into_a_stretch(params, draws, tokens):
    """At temperature 0.5 probabilities are squared: 0.25 of 0.345 is 0.7246."""
    assert drawn_at(draws, **params) == tokens


def test_a_number_is_as_exact_as_it_is_made():
    """Two equal stretches: just below their border, which rounded to 32 bits would be the border, and on it."""
    two, draws = torch.zeros(2, 2), [0.5 - 2**-40, 0.5]
    assert sample_tokens(two, [SamplingParams()] * 2, draws) == [0, 1]
    assert sample_tokens(two, [SamplingParams(top_p=0.5)] * 2, draws) == [0, 0]  # the first alone is enough


def test_tokens_that_are_equally_likely_stand_in_the_order_of_their_ids():
    draws = [(token + 0.5) / 40 for token in range(40)]
    assert sample_tokens(torch.zeros(40, 40), [SamplingParams()] * 40, draws) == list(range(40))


def test_each_row_has_its_own_parameters():
    choices = [
        SamplingParams(temperature=0),
        SamplingParams(),
        SamplingParams(top_k=2),
        SamplingParams(temperature=1e6),
    ]
    assert sample_tokens(LOGITS.expand(4, -1), choices, [0.99] * 4) == [1, 0, 3, 0]


def test_tokens_come_as_often_as_their_probabilities_say():
    """4,000 numbers of one seed; a share is off by 0.024 (three deviations) at most."""
    tokens = drawn_at([draw(7, 0, position) for position in range(4000)])
    shares = [tokens.count(token) / 4000 for token in range(4)]
    assert all(abs(share - p) < 0.024 for share, p in zip(shares, PROBABILITIES, strict=True))


def test_a_number_depends_on_seed_sample_and_place():
    numbers = {draw(seed, index, place) for seed in (1, 2) for index in (0, 1) for place in (0, 1, 11)}
    assert len(numbers) == 12
    assert draw(1, 11, 1) != draw(1, 1, 11) != draw(11, 1, 1)


def test_a_token_that_cannot_be_is_never_drawn():
    logits = torch.tensor([[0.0, -math.inf, -math.inf]])
    assert sample_tokens(logits, [SamplingParams()], [1 - 2**-53]) == [0]

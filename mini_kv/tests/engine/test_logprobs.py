"""Log probabilities, min-p and min-tokens, each beside a slow twin that is written from vLLM's definition."""

import math
import random
import re

import pytest
import torch

from mini_kv.core.errors import ConfigError
from mini_kv.engine.contiguous import NoCache
from mini_kv.engine.logprobs import Logprob, gather_logprobs
from mini_kv.engine.sampling import SamplingParams, draw, sample_tokens
from mini_kv.tests.engine.small_models import VOCAB_SIZE, first_samples
from mini_kv.tests.engine.test_detokenizer import Letters
from mini_kv.tests.engine.test_llm_engine import MODEL, PROMPT, SAID, engine, greedy, only

LOGITS = torch.tensor([math.log(p) for p in (0.1, 0.5, 0.15, 0.25)], dtype=torch.float64)


def slow_logprobs(logits: list[float]) -> list[float]:
    """Return the logarithm of each token's probability, by the formula alone."""
    total = math.fsum(math.exp(value - max(logits)) for value in logits)
    return [value - max(logits) - math.log(total) for value in logits]


def slow_distribution(logits: list[float], params: SamplingParams, forbidden: set[int]) -> dict[int, float]:
    """Return the probability of each token that may be drawn, best first: one rule after the other, as vLLM does it.

    `MinTokensLogitsProcessor`, `Sampler.apply_temperature`, `MinPLogitsProcessor`, top-k, top-p.
    """
    kept = {token: value / params.temperature for token, value in enumerate(logits) if token not in forbidden}
    shares = normalised(kept)
    kept = {token: kept[token] for token in kept if shares[token] >= params.min_p * max(shares.values())}
    best_first = sorted(kept, key=lambda token: (-kept[token], token))
    shares, result, before = normalised({t: kept[t] for t in best_first[: params.top_k or len(kept)]}), {}, 0.0
    for token, share in shares.items():
        if before < params.top_p:
            result[token] = share
        before += share
    total = sum(result.values())
    return {token: share / total for token, share in result.items()}


def normalised(values: dict[int, float]) -> dict[int, float]:
    largest = max(values.values())
    total = math.fsum(math.exp(value - largest) for value in values.values())
    return {token: math.exp(value - largest) / total for token, value in values.items()}


def slow_token(distribution: dict[int, float], number: float) -> int:
    """Return the token in whose stretch the number falls."""
    end, tokens = 0.0, list(distribution)
    for token in tokens:
        end += distribution[token]
        if number < end:
            return token
    return tokens[-1]


def test_four_hundred_draws_under_every_mixture_of_rules_are_those_of_the_slow_twin():
    rng = random.Random(5)
    for case in range(400):
        logits = [rng.gauss(0, 2) for _ in range(30)]
        params = SamplingParams(
            temperature=rng.choice([0.3, 1.0, 2.0]),
            min_p=rng.choice([0.0, 0.05, 0.3]),
            top_k=rng.choice([0, 1, 5]),
            top_p=rng.choice([0.4, 0.9, 1.0]),
        )
        forbidden = set(rng.sample(range(30), rng.choice([0, 3])))
        number = draw(9, 0, case)
        row = torch.tensor([logits], dtype=torch.float64)
        right = slow_token(slow_distribution(logits, params, forbidden), number)
        assert sample_tokens(row, [params], [number], [forbidden]) == [right]


@pytest.mark.parametrize(
    ("min_p", "tokens"),
    [(0.0, [1, 1, 3, 2, 0]), (0.25, [1, 1, 3, 3, 2]), (0.4, [1, 1, 3, 3, 3]), (0.6, [1] * 5), (1.0, [1] * 5)],
)
def test_min_p_keeps_what_is_at_least_that_share_of_the_likeliest(min_p, tokens):
    """Shares of the likeliest: token 3 has 0.5, token 2 0.3, token 0 0.2."""
    draws = [0.0, 0.4, 0.7, 0.8, 0.99]
    assert sample_tokens(LOGITS.expand(5, -1), [SamplingParams(min_p=min_p)] * 5, draws) == tokens


def test_min_p_looks_at_probabilities_after_temperature_and_never_changes_the_likeliest():
    at_two = [SamplingParams(min_p=0.6, temperature=2.0)] * 2  # half as likely is 0.71 as likely, at temperature 2
    assert sample_tokens(LOGITS.expand(2, -1), at_two, [0.5, 0.99]) == [1, 3]
    assert sample_tokens(LOGITS[None], [SamplingParams(min_p=1.0, temperature=0)], [0.0]) == [1]


def test_a_forbidden_token_is_neither_drawn_nor_the_likeliest_and_the_logits_stay_as_they_were():
    rows = LOGITS.expand(3, -1).contiguous()
    choices = [SamplingParams(temperature=0), SamplingParams(), SamplingParams()]
    assert sample_tokens(rows, choices, [0.0, 0.0, 0.0], [{1, 99, -1}, {1, 3}, ()]) == [3, 2, 1]
    assert rows.tolist() == [LOGITS.tolist()] * 3


def test_logprobs_are_those_of_the_formula():
    """The promise is 1e-5 in float64; this close they come out."""
    rng = random.Random(3)
    rows = [[rng.gauss(0, 8) for _ in range(50)] for _ in range(20)]
    told = gather_logprobs(torch.tensor(rows, dtype=torch.float64), [50] * 20, [7] * 20, None)
    for row, entries in zip(rows, told, strict=True):
        slow = slow_logprobs(row)
        assert entries is not None
        assert all(abs(entry.logprob - slow[token]) < 1e-12 for token, entry in entries.items())
        by_rank = sorted(entries, key=lambda token: -slow[token])
        assert [entries[token].rank for token in by_rank] == list(range(1, 51))


def test_the_chosen_token_comes_first_and_then_the_likeliest():
    told = gather_logprobs(LOGITS.expand(4, -1), [2, 2, 0, None], [0, 3, 2, 1], Letters())
    first, second, third, none = told
    assert first is not None and second is not None and third is not None and none is None
    assert [(token, entry.rank, entry.decoded_token) for token, entry in first.items()] == [
        (0, 4, "a"), (1, 1, "b"), (3, 2, "d")
    ]  # fmt: skip
    assert [round(math.exp(entry.logprob), 12) for entry in first.values()] == [0.1, 0.5, 0.25]
    assert [[(token, entry.rank) for token, entry in each.items()] for each in (second, third)] == [
        [(3, 2), (1, 1)], [(2, 3)]
    ]  # fmt: skip


@pytest.mark.parametrize("num", [-1, 4, 1000])
def test_minus_one_asks_for_all_and_more_than_there_are_is_all(num):
    (told,) = gather_logprobs(LOGITS[None], [num], [1], None)
    assert told is not None
    assert [(token, entry.rank, entry.decoded_token) for token, entry in told.items()] == [
        (1, 1, None), (3, 2, None), (2, 3, None), (0, 4, None)
    ]  # fmt: skip


def test_of_tokens_that_are_equally_likely_the_chosen_one_ranks_behind_all_of_them():
    (told,) = gather_logprobs(torch.zeros(1, 8), [0], [2], None)
    assert told == {2: Logprob(-math.log(8), 8, None)}


def test_an_output_tells_each_tokens_logprob_and_their_sum():
    """Against a model that reads the whole text again; temperature and min-p change the choice and not what is told."""
    params = SamplingParams(max_tokens=6, temperature=3.0, min_p=0.01, seed=4, logprobs=2)
    (output,) = engine().generate([PROMPT], params, n=2)
    assert output.finished
    assert output.outputs[0].token_ids != output.outputs[1].token_ids
    for sample in output.outputs:
        assert sample.logprobs is not None
        told = [next(iter(entries.items())) for entries in sample.logprobs]
        assert [token for token, _ in told] == sample.token_ids
        right = logprobs_of(sample.token_ids)
        assert all(abs(entry.logprob - value) < 1e-5 for (_, entry), value in zip(told, right, strict=True))
        assert sample.cumulative_logprob == pytest.approx(math.fsum(right), abs=1e-5)


def logprobs_of(answer: list[int]) -> list[float]:
    """Return how likely each token of an answer was; for each, the model reads all that stands before it."""
    result = []
    for place, token in enumerate(answer):
        text = torch.tensor(PROMPT + answer[:place])
        logits = MODEL.forward(text, torch.arange(len(text)), NoCache(), torch.tensor([len(text) - 1]))
        result.append(slow_logprobs(logits[0].tolist())[token])
    return result


def test_logprobs_of_one_request_change_nothing_for_the_others():
    mixed = engine().generate([PROMPT, PROMPT], [greedy(5, logprobs=0), greedy(5)])
    assert first_samples(mixed) == [SAID[:5]] * 2
    assert [len(output.outputs[0].logprobs or ()) for output in mixed] == [5, 0]
    assert mixed[1].outputs[0].logprobs is None and mixed[1].outputs[0].cumulative_logprob is None


def test_before_min_tokens_the_token_that_would_end_it_is_not_chosen():
    """It would say token 2 of `SAID` at the third place; told not to end there, it says another, and goes on."""
    stop = (SAID[2],)
    assert only(engine().generate([PROMPT], greedy(5, stop_token_ids=stop))) == (SAID[:3], "", "stop")
    assert only(engine().generate([PROMPT], greedy(5, stop_token_ids=stop, min_tokens=2))) == (SAID[:3], "", "stop")
    tokens, _, reason = only(engine().generate([PROMPT], greedy(5, stop_token_ids=stop, min_tokens=5)))
    assert (tokens[:2], SAID[2] in tokens, len(tokens), reason) == (SAID[:2], False, 5, "length")


def test_before_min_tokens_the_models_own_end_is_not_chosen_even_where_it_would_not_end():
    """As in vLLM, `SamplingParams.update_from_generation_config`: the end token is forbidden, ignored or not."""
    ends = Letters(eos_token_id=SAID[2])
    ignored, _, _ = only(engine(ends).generate([PROMPT], greedy(5, ignore_eos=True)))
    held, _, reason = only(engine(ends).generate([PROMPT], greedy(5, ignore_eos=True, min_tokens=5)))
    assert (ignored, held[:2], SAID[2] in held, reason) == (SAID[:5], SAID[:2], False, "length")


def test_a_model_that_would_end_at_once_is_held_to_min_tokens_by_every_sample():
    everything_but_one = tuple(range(1, VOCAB_SIZE))
    params = SamplingParams(max_tokens=4, min_tokens=2, stop_token_ids=everything_but_one, seed=1)
    (output,) = engine().generate([PROMPT], params, n=3)
    assert [sample.token_ids[:2] for sample in output.outputs] == [[0, 0]] * 3


def test_before_min_tokens_a_text_in_stop_is_text():
    """The second letter is to end it: with one token as the minimum it does, with two it has come too early."""
    text = Letters.text(SAID[:4])
    assert text.count(text[1]) == 1
    answers = [
        only(engine(Letters()).generate([PROMPT], greedy(4, stop=(text[1],), min_tokens=number)))
        for number in (0, 1, 2)
    ]
    assert answers == [(SAID[:2], text[:1], "stop"), (SAID[:2], text[:1], "stop"), (SAID[:4], text, "length")]


def test_a_seed_draws_what_it_drew_before_there_were_these_rules():
    params = [SamplingParams(max_tokens=6, temperature=1.5, seed=seed) for seed in (1, 2, 3)]
    assert [only(engine().generate([PROMPT], choice))[0] for choice in params] == [
        [36, 30, 22, 23, 5, 32], [20, 8, 18, 15, 38, 17], [29, 27, 34, 29, 6, 6]
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("params", "said"),
    [
        ({"min_p": -0.1}, "min_p is -0.1, it must be from 0.0 to 1.0"),
        ({"min_p": math.nan}, "min_p is nan, it must be from 0.0 to 1.0"),
        ({"min_tokens": -1}, "min_tokens is -1, it must be from 0 to max_tokens, 16"),
        ({"min_tokens": 17}, "min_tokens is 17, it must be from 0 to max_tokens, 16"),
        ({"logprobs": -2}, "logprobs is -2, it must be at least 0, or -1 for all tokens"),
    ],
)
def test_what_means_nothing_is_refused(params, said):
    with pytest.raises(ConfigError, match=re.escape(said)):
        SamplingParams(**params)

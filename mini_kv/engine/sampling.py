"""From logits to a token: the most likely one, or one drawn at random.

One number between 0 and 1 is drawn. The token is the one whose interval contains it:

    likeliest first     0          the          .52    a   .70  his .81 ...  1
    drawn: 0.64                                  ^ a

Temperature makes the intervals more or less equal. Min-p, top-k and top-p cut off the tail. The number depends only on
the seed, the sample and the place in the text. It does not depend on the batch or on preemptions.

Source: vLLM 0.33, `SamplingParams` (sampling_params.py), `Sampler.forward` and `Sampler.sample` (v1/sample/sampler.py),
whose order this is: forbidden tokens, temperature, min-p, top-k, top-p.
"""

import math
import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mini_kv.core.errors import ConfigError


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Rules for choosing a request's tokens and for its end. Names are those of vLLM `SamplingParams`."""

    max_tokens: int = 16
    """Number of output tokens after which it ends, with reason "length"."""
    temperature: float = 1.0
    """Divisor of the logits. 0: always the most likely token."""
    top_k: int = 0
    """Sample from the k most likely tokens. 0 disables the limit."""
    top_p: float = 1.0
    """Sample from the most likely tokens that together have this probability. 1.0 disables the limit."""
    min_p: float = 0.0
    """Sample from the tokens that have at least this share of the likeliest token's probability, after temperature. 0.0
    disables the limit. Source: vLLM `MinPLogitsProcessor`."""
    seed: int | None = None
    """Seed of the draws: the same seed gives the same text. `None`: the engine gives each request its own."""
    stop: tuple[str, ...] = ()
    """Texts that end it, with reason "stop". They are not part of the output."""
    stop_token_ids: tuple[int, ...] = ()
    """Tokens that end it, with reason "stop"."""
    ignore_eos: bool = False
    """Whether the request continues after the token that ends a text."""
    min_tokens: int = 0
    """Number of output tokens before which the request cannot end. Until then the tokens that end a text are not
    chosen, even with `ignore_eos`, and the texts in `stop` do not count.
    Source: vLLM `MinTokensLogitsProcessor`, `BaseIncrementalDetokenizer.update`."""
    logprobs: int | None = None
    """Number of the likeliest tokens whose log probabilities are returned at each position, in addition to the chosen
    token's. -1: all tokens. `None`: no log probabilities. See `mini_kv.engine.logprobs`."""

    def __post_init__(self) -> None:
        if self.max_tokens < 1:
            raise ConfigError(f"max_tokens is {self.max_tokens}, it must be at least 1")
        if not 0 <= self.temperature < math.inf:
            raise ConfigError(f"temperature is {self.temperature}, it must be 0 or a positive number")
        if self.top_k < 0:
            raise ConfigError(f"top_k is {self.top_k}, it must be at least 1, or 0 for all tokens")
        if not 0 < self.top_p <= 1:
            raise ConfigError(f"top_p is {self.top_p}, it must be above 0.0 and at most 1.0")
        if not 0 <= self.min_p <= 1:
            raise ConfigError(f"min_p is {self.min_p}, it must be from 0.0 to 1.0")
        if not 0 <= self.min_tokens <= self.max_tokens:
            raise ConfigError(f"min_tokens is {self.min_tokens}, it must be from 0 to max_tokens, {self.max_tokens}")
        if self.logprobs is not None and self.logprobs < -1:
            raise ConfigError(f"logprobs is {self.logprobs}, it must be at least 0, or -1 for all tokens")
        stop: object = self.stop  # a string alone would be a row of letters, each of which ends the request
        if isinstance(stop, str):
            raise ConfigError(f"stop is a string: write ({self.stop!r},)")
        if "" in self.stop:
            raise ConfigError("a text in stop is empty: it would end every request before its first token")


def draw(seed: object, index: int, position: int) -> float:
    """Return the random number of a sample's token, `0 <= number < 1`. Equal arguments give equal numbers.

    >>> draw(7, 0, 3) == draw(7, 0, 3) != draw(7, 1, 3)
    True
    """
    return random.Random(f"{seed}/{index}/{position}").random()


def sample_tokens(
    logits: Tensor,
    params: Sequence[SamplingParams],
    draws: Sequence[float],
    forbidden: Sequence[Collection[int]] = (),
) -> list[int]:
    """Return a token for each row.

    Args:
        logits: `[n, vocab_size]`. They are not changed.
        params: the parameters of each row.
        draws: a number per row, from `draw`. Rows with temperature 0 do not use it.
        forbidden: token ids per row that must not be chosen. Empty: none in any row.
    """
    if any(forbidden):
        logits = _without(logits, forbidden)
    token_ids: list[int] = logits.argmax(dim=-1).tolist()
    drawn = [row for row, choice in enumerate(params) if choice.temperature > 0]
    if drawn:
        rows = _draw_rows(logits[drawn], [params[row] for row in drawn], [draws[row] for row in drawn])
        for row, token_id in zip(drawn, rows, strict=True):
            token_ids[row] = token_id
    return token_ids


def _without(logits: Tensor, forbidden: Sequence[Collection[int]]) -> Tensor:
    """Return the logits, with minus infinity for forbidden tokens. Ids that the model does not have are ignored."""
    logits = logits.clone()
    for row, token_ids in enumerate(forbidden):
        logits[row, [token_id for token_id in token_ids if 0 <= token_id < logits.shape[1]]] = -torch.inf
    return logits


def _draw_rows(logits: Tensor, params: Sequence[SamplingParams], draws: Sequence[float]) -> list[int]:
    """Return the tokens whose intervals contain the numbers."""

    def column(values: Sequence[float]) -> Tensor:
        return torch.tensor(values, dtype=torch.float64, device=logits.device).unsqueeze(1)

    vocab_size = logits.shape[1]
    by_rank, order = logits.sort(dim=-1, descending=True, stable=True)
    ranks = torch.arange(vocab_size, device=logits.device)
    is_below_top_k = ranks >= column([choice.top_k or vocab_size for choice in params])
    by_rank = by_rank.double().masked_fill(is_below_top_k, -torch.inf)
    # The largest logit is taken off first: divided by a tiny temperature it would be infinite.
    by_rank = (by_rank - by_rank[:, :1]) / column([choice.temperature for choice in params])
    # The likeliest stands at 0 now, so this is a token's probability as a share of the likeliest one's.
    by_rank = by_rank.masked_fill(by_rank.exp() < column([choice.min_p for choice in params]), -torch.inf)
    probabilities = torch.softmax(by_rank, dim=-1)
    before = probabilities.cumsum(dim=-1) - probabilities
    is_tail = (before >= column([choice.top_p for choice in params])) | (probabilities == 0)
    is_tail[:, 0] = False
    ends = probabilities.masked_fill(is_tail, 0.0).cumsum(dim=-1)
    drawn = torch.searchsorted(ends, column(draws) * ends[:, -1:], right=True)
    # A product that was rounded up to the end of the last stretch still falls into it.
    last = (~is_tail).sum(dim=-1, keepdim=True) - 1
    tokens: list[int] = order.gather(1, torch.minimum(drawn, last)).squeeze(1).tolist()
    return tokens

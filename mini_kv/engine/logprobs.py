"""Log probabilities of the chosen token, and of the most likely tokens.

    "A block is"     " free" -0.6 rank 1     " held" -1.2 rank 2          chosen: " old" -4.1 rank 17

They are computed from the model's own logits, before temperature, forbidden tokens and the cut of the tail.
So they describe the model, not the sampling.

Source: vLLM 0.33, `Sampler.gather_logprobs` (v1/sample/sampler.py) in the mode `raw_logprobs`, its default, and
`append_logprobs_for_next_position` (logprobs.py). Here they are computed in float64, in vLLM in float32.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mini_kv.engine.detokenizer import TextTokenizer


@dataclass(frozen=True, slots=True)
class Logprob:
    """One token at one place. Source: vLLM `Logprob` (logprobs.py)."""

    logprob: float
    """Natural logarithm of its probability: 0.0 is certain."""
    rank: int
    """1 is the most likely token. If the chosen token is not listed: the number of tokens at least as likely."""
    decoded_token: str | None
    """Its text, with U+FFFD for a part of a character, or `None` without a tokenizer."""


LogprobsOnePosition = dict[int, Logprob]
"""By token id: the chosen token first, then the most likely ones, best first. Each token is listed once."""


def gather_logprobs(
    logits: Tensor, nums: Sequence[int | None], token_ids: Sequence[int], tokenizer: TextTokenizer | None
) -> list[LogprobsOnePosition | None]:
    """Return the log probabilities of each row, `None` for a row without `nums`. Costs O(vocab_size) per row.

    Args:
        logits: `[n, vocab_size]`, as the model gave them.
        nums: number of most likely tokens per row. -1: all. `None`: no log probabilities at all.
        token_ids: the chosen token of each row.
        tokenizer: gives the tokens' texts.
    """
    result: list[LogprobsOnePosition | None] = []
    for row, (num, chosen) in enumerate(zip(nums, token_ids, strict=True)):
        result.append(None if num is None else _gather_row(logits[row], num, chosen, tokenizer))
    return result


def _gather_row(logits: Tensor, num: int, chosen: int, tokenizer: TextTokenizer | None) -> LogprobsOnePosition:
    logprobs = torch.log_softmax(logits.double(), dim=-1)
    num = len(logprobs) if num == -1 else min(num, len(logprobs))
    top = logprobs.topk(num)
    ranks = {chosen: int((logprobs >= logprobs[chosen]).sum())}
    ranks |= {token_id: rank for rank, token_id in enumerate(top.indices.tolist(), start=1)}
    values: list[float] = logprobs[list(ranks)].tolist()
    return {
        token_id: Logprob(value, rank, _spelled(token_id, tokenizer))
        for (token_id, rank), value in zip(ranks.items(), values, strict=True)
    }


def _spelled(token_id: int, tokenizer: TextTokenizer | None) -> str | None:
    return None if tokenizer is None else tokenizer.decode_bytes([token_id]).decode("utf-8", errors="replace")

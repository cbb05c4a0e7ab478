"""Speculative decoding: guess several tokens, compute all of them in one step, keep those that are right.

A step of decoding reads all weights to compute one token of a request. Computing five tokens costs hardly more, but the
five are not known. So they are guessed, and the step checks them:

    text             ... the cat sat on the mat . the cat        its end occurs earlier in the text
    drafts                                          sat  on  the  the tokens that followed there
    one step on      cat  sat  on  the                            four rows of logits, from the last token on
    the model        sat  on   a   hat                            two drafts are right, the third is wrong
    kept             sat  on   a                                  the drafts that were right, and one token more

A draft is kept if the model chooses the same token at its place, by the same rule and the same draw as without
drafts. So the text is the same, and only the number of steps differs. KV of wrong drafts is overwritten.

Here drafts do not come from a second model but from the text itself (prompt lookup). That works well for texts that
repeat themselves, such as code, quotations and lists, and hardly ever elsewhere.

Source: vLLM `NgramProposer` (v1/spec_decode/ngram_proposer.py), `SpeculativeConfig` (config/speculative.py).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from mini_kv.core.errors import ConfigError

MOST_DRAFTS = 64


@dataclass(frozen=True, slots=True)
class SpeculativeConfig:
    """The number of proposed tokens and the method. Names and defaults are those of vLLM `SpeculativeConfig`."""

    num_speculative_tokens: int
    """The most drafts per request and step."""
    method: str = "ngram"
    """The only method: the tokens that followed the same last tokens earlier in the text."""
    prompt_lookup_max: int = 5
    """The most tokens of the text's end to search for."""
    prompt_lookup_min: int = 5
    """The fewest tokens of the text's end to search for: a shorter match does not count."""

    def __post_init__(self) -> None:
        if self.method != "ngram":
            raise ConfigError(f"method is {self.method!r}: it must be 'ngram', which takes drafts from the text itself")
        if not 1 <= self.num_speculative_tokens <= MOST_DRAFTS:
            number = self.num_speculative_tokens
            raise ConfigError(f"num_speculative_tokens is {number}, it must be from 1 to {MOST_DRAFTS}")
        if not 1 <= self.prompt_lookup_min <= self.prompt_lookup_max:
            raise ConfigError(
                f"prompt_lookup_min is {self.prompt_lookup_min} and prompt_lookup_max {self.prompt_lookup_max}: "
                "they must be at least 1, and the first no larger than the second"
            )


class NgramProposer:
    """Proposes the tokens that followed the same tokens earlier in the text. Source: vLLM, same name."""

    def __init__(self, config: SpeculativeConfig) -> None:
        """Take the lengths to search for."""
        self.config = config

    def propose(self, token_ids: Sequence[int], max_drafts: int) -> list[int]:
        """Return at most `max_drafts` tokens, or none if the text's end occurs nowhere else.

        The longest match counts, at its first position. Costs O(prompt_lookup_max * tokens). vLLM finds the same match
        in one pass over the text (Knuth, Morris and Pratt), which is faster and harder to read.

        >>> NgramProposer(SpeculativeConfig(3, prompt_lookup_min=2)).propose([1, 2, 3, 4, 5, 1, 2], max_drafts=8)
        [3, 4, 5]
        """
        most = min(self.config.num_speculative_tokens, max_drafts)
        tokens = list(token_ids)
        for length in range(self.config.prompt_lookup_max, self.config.prompt_lookup_min - 1, -1):
            end = tokens[-length:]
            for start in range(len(tokens) - length):
                if tokens[start : start + length] == end:
                    behind = start + length
                    return tokens[behind : behind + max(most, 0)]
        return []


def num_right(drafts: Sequence[int], token_ids: Sequence[int]) -> int:
    """Return the number of first drafts that are equal to the model's tokens.

    >>> num_right([7, 8, 9], [7, 8, 5, 9])
    2
    """
    right = 0
    while right < len(drafts) and drafts[right] == token_ids[right]:
        right += 1
    return right

"""A model without the engine, one text at a time: without a cache, and with the simplest cache, one growing tensor.

    tokens            The   cat   sat   on   the   mat
    no cache          the whole row again for every token
    contiguous        one token per step; its key and value are appended to a tensor that has room for all

Both are correct. The first is slow because it computes everything again. The second reserves the memory of the longest
text for every text. Tests compare the paged engine with them: it must generate the same tokens.
"""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from mini_kv.attention.linear import linear_attention
from mini_kv.attention.options import AttentionOptions
from mini_kv.core.errors import ConfigError
from mini_kv.core.kv_cache_interface import AttentionSpec
from mini_kv.engine.interface import CausalLM
from mini_kv.engine.threads import is_small, one_thread


class Past(Protocol):
    """An `Attend` for one text. It counts the tokens that need not be computed again."""

    num_tokens: int
    """Tokens whose keys and values are kept."""

    def __call__(self, layer: int, query: Tensor, key: Tensor, value: Tensor, options: AttentionOptions) -> Tensor:
        """See `Attend`."""

    def end_step(self, num_new_tokens: int) -> None:
        """Count the new tokens, after all layers have processed them."""


class NoCache:
    """Keeps no KV: every step computes the whole text."""

    num_tokens = 0

    def __call__(self, layer: int, query: Tensor, key: Tensor, value: Tensor, options: AttentionOptions) -> Tensor:
        """Attend to the tokens of this step only."""
        if options.decay is not None:
            nothing = query.new_zeros(*query.shape[1:], query.shape[-1])
            return linear_attention(query, key, value, options.decay, nothing)[0]
        return _look_back(query, key, value, options)

    def end_step(self, num_new_tokens: int) -> None:
        """Do nothing: no key or value is kept."""


class ContiguousCache:
    """A tensor of keys and a tensor of values per layer, `[max_num_tokens, num_kv_heads, head_size]`.

    All layers of a step begin at the same place. So the count changes once per step, not in every layer.
    """

    def __init__(self, model: CausalLM, max_num_tokens: int) -> None:
        """Allocate memory for the longest text."""
        self.num_tokens = 0
        self.max_num_tokens = max_num_tokens
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []
        for name, spec in model.get_kv_cache_spec(block_size=1).items():
            if not isinstance(spec, AttentionSpec):
                raise ConfigError(f"{name} keeps no keys and values, but {type(spec).__name__}")
            shape = (max_num_tokens, spec.num_kv_heads, spec.head_size)
            self.keys.append(torch.zeros(shape, dtype=model.dtype, device=model.device))
            self.values.append(torch.zeros(shape, dtype=model.dtype, device=model.device))

    def __call__(self, layer: int, query: Tensor, key: Tensor, value: Tensor, options: AttentionOptions) -> Tensor:
        """Append the new keys and values to the old ones, and attend to all."""
        end = self.num_tokens + len(key)
        if end > self.max_num_tokens:
            raise ConfigError(f"the cache has room for {self.max_num_tokens} tokens; this would be token {end}")
        self.keys[layer][self.num_tokens : end] = key
        self.values[layer][self.num_tokens : end] = value
        return _look_back(query, self.keys[layer][:end], self.values[layer][:end], options)

    def end_step(self, num_new_tokens: int) -> None:
        """Count the new tokens, now that all layers have their keys and values."""
        self.num_tokens += num_new_tokens


def generate_alone(model: CausalLM, token_ids: Sequence[int], max_tokens: int, past: Past | None = None) -> list[int]:
    """Return the `max_tokens` tokens after these, always the most likely one: the simplest loop.

    Args:
        model: any model.
        token_ids: the prompt, at least one token.
        max_tokens: number of tokens to generate.
        past: a new `ContiguousCache`, or `NoCache`. `None` is no cache.
    """
    past = past or NoCache()
    tokens = list(token_ids)
    with torch.inference_mode(), one_thread(is_small(model)):
        for _ in range(max_tokens):
            new = torch.tensor(tokens[past.num_tokens :], device=model.device)
            positions = torch.arange(past.num_tokens, len(tokens), device=model.device)
            last = torch.tensor([len(new) - 1], device=model.device)
            logits = model.forward(new, positions, past, last)
            past.end_step(len(new))
            tokens.append(int(logits[0].argmax()))
    return tokens[len(token_ids) :]


def _look_back(query: Tensor, keys: Tensor, values: Tensor, options: AttentionOptions) -> Tensor:
    """Return the attention of a text's last tokens over the text, `[num_queries, num_heads, head_size]`.

        keys        0 1 2 3 4 5 6
        queries             4 5 6        the queries are the last tokens of the text

    Args:
        query: `[num_queries, num_heads, head_size]`.
        keys: `[num_tokens, num_kv_heads, head_size]`, the queries' own included.
        values: the same shape.
        options: the visible tokens, and the changes of the scores.
    """
    group = query.shape[1] // keys.shape[1]
    keys, values = keys.repeat_interleave(group, dim=1), values.repeat_interleave(group, dim=1)
    wide = torch.promote_types(query.dtype, torch.float32)
    scores = torch.einsum("qhd,khd->hqk", query.to(wide), keys.to(wide)) * options.scale_for(query.shape[2])
    if options.logits_soft_cap is not None:
        scores = options.logits_soft_cap * torch.tanh(scores / options.logits_soft_cap)
    positions = torch.arange(len(keys))
    own = positions[len(keys) - len(query) :]
    first = torch.tensor([options.first_visible(position) for position in own.tolist()])
    hidden = (positions > own[:, None]) | (positions < first[:, None])
    scores = scores.masked_fill(hidden.to(scores.device), -torch.inf)
    if options.sinks is not None:
        sinks = options.sinks.to(wide)[:, None, None].expand(-1, len(query), 1)
        scores = torch.cat((scores, sinks), dim=-1)
    weights = torch.softmax(scores, dim=-1)[..., : len(keys)]
    return torch.einsum("hqk,khd->qhd", weights, values.to(wide)).to(query.dtype)

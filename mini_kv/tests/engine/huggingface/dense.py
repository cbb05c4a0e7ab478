"""The shortest `Attend` that remembers: all keys of one request, a mask for what it may see, and a softmax."""

import torch
from torch import Tensor

from mini_kv.attention.options import AttentionOptions
from mini_kv.engine.interface import CausalLM


class DensePast:
    """One request's past: what came, layer by layer. Written for the tests, with nothing of the engine in it."""

    def __init__(self) -> None:
        self.keys: dict[int, Tensor] = {}
        self.values: dict[int, Tensor] = {}
        self.options: dict[int, AttentionOptions] = {}
        self.last_layer = 0

    def __call__(self, layer: int, query: Tensor, key: Tensor, value: Tensor, options: AttentionOptions) -> Tensor:
        self.options[layer] = options
        empty = key[:0]
        if 0 < layer <= self.last_layer:  # it shares what that layer has kept in this step
            key = value = empty
        self.last_layer = layer
        keys = self.keys[layer] = torch.cat((self.keys.get(layer, empty), key))
        values = self.values[layer] = torch.cat((self.values.get(layer, empty), value))
        per_head = query.shape[1] // key.shape[1]
        keys, values = keys.repeat_interleave(per_head, dim=1), values.repeat_interleave(per_head, dim=1)
        scores = torch.einsum("qhd,khd->hqk", query, keys) * options.scale_for(query.shape[-1])
        if options.decay is not None:
            scores = torch.einsum("qhd,khd->hqk", query, keys)
            ages = torch.arange(len(keys) - len(query), len(keys))[:, None] - torch.arange(len(keys))
            faded = options.decay[:, None, None] ** ages.clamp(min=0) * (ages >= 0)
            return torch.einsum("hqk,khd->qhd", scores * faded, values)
        if options.logits_soft_cap is not None:
            scores = options.logits_soft_cap * torch.tanh(scores / options.logits_soft_cap)
        scores = scores.masked_fill(~visible(len(query), len(keys), options), -torch.inf)
        if options.sinks is not None:
            sinks = options.sinks[:, None, None].expand(-1, len(query), 1)
            weights = torch.cat((scores, sinks), dim=-1).softmax(dim=-1)[..., :-1]
        else:
            weights = scores.softmax(dim=-1)
        return torch.einsum("hqk,khd->qhd", weights, values)


def visible(num_queries: int, num_keys: int, options: AttentionOptions) -> Tensor:
    """Return `[num_queries, num_keys]`: whether a query sees a key; the last query stands at the last key."""
    positions = range(num_keys - num_queries, num_keys)
    return torch.tensor([[options.first_visible(p) <= k <= p for k in range(num_keys)] for p in positions])


def answer(model: CausalLM, prompt: list[int], num_tokens: int, past: DensePast | None = None) -> list[int]:
    """Return what the model says, greedily, one token at a time."""
    attend = past or DensePast()
    tokens, computed = list(prompt), 0
    for _ in range(num_tokens):
        new = torch.tensor(tokens[computed:])
        logits = model.forward(new, torch.arange(computed, len(tokens)), attend, torch.tensor([len(new) - 1]))
        computed = len(tokens)
        tokens.append(int(logits[0].argmax()))
    return tokens[len(prompt) :]

"""The seam between a model and its past.

A model turns tokens into keys, values and queries, layer by layer, and does not know where the past is kept. It hands
all three to an `Attend` and gets back what the queries found. The `Attend` decides what a cache is:

    the whole past again, every time       no cache
    one growing tensor per request         a contiguous cache
    blocks anywhere in one large pool      a paged cache

The same model runs on all of them, and must say the same.
"""

from collections.abc import Iterator
from typing import Protocol

import torch
from torch import Tensor

from mini_kv.attention.options import AttentionOptions
from mini_kv.core.kv_cache_interface import KVCacheSpec


class Attend(Protocol):
    """Attention over one layer's past: keep the new keys and values, return what the queries see."""

    def __call__(self, layer: int, query: Tensor, key: Tensor, value: Tensor, options: AttentionOptions) -> Tensor:
        """Return `[num_tokens, num_heads, head_size]`: what each query makes of all that it may see.

        Args:
            layer: which one, counted from 0. Layers that share keys and values call by the same number, with the same
                keys and values: to keep these again changes nothing.
            query: `[num_tokens, num_heads, head_size]`, rotated: the step's new tokens, one request after the other.
            key: `[num_tokens, num_kv_heads, head_size]`, rotated.
            value: the same shape.
            options: window, scale, soft cap, sinks.
        """


class CausalLM(Protocol):
    """A language model whose keys and values are kept outside of it, by an `Attend`."""

    @property
    def vocab_size(self) -> int:
        """Number of tokens in the vocabulary."""

    @property
    def max_position_embeddings(self) -> int:
        """Tokens of the longest text that it has learned to read, prompt and answer."""

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of keys and values."""

    @property
    def device(self) -> torch.device:
        """The device on which the model computes and its KV lies."""

    @property
    def settings(self) -> str:
        """All that decides what the model computes, beside weights and dtype: architecture, sizes, constants."""

    def named_parameters(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the weights with their names. Source: `torch.nn.Module`."""

    def get_kv_cache_spec(self, block_size: int) -> dict[str, KVCacheSpec]:
        """Return the shape of each layer's KV by the layer's name, in order. Source: vLLM `GPUModelRunner`."""

    def forward(self, token_ids: Tensor, positions: Tensor, attend: Attend, logits_indices: Tensor) -> Tensor:
        """Return the logits of the token after each of those, `[len(logits_indices), vocab_size]`.

        Args:
            token_ids: `[num_tokens]`, int64: new tokens of any number of requests, one request after the other.
            positions: `[num_tokens]`, int64: each token's place in its own request.
            attend: called once per layer, in order.
            logits_indices: `[n]`, int64: rows whose next token is needed; in a long prompt, only the last.
        """

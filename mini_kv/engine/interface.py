"""The interface between a model and its KV.

A model turns tokens into keys, values and queries, layer by layer. It does not know where earlier KV is stored. It
passes all three to an `Attend` and gets back the attention of the queries. The `Attend` decides the kind of cache:

    the whole past again, every time       no cache
    one growing tensor per request         a contiguous cache
    blocks anywhere in one large pool      a paged cache

The same model runs on all of them, and must generate the same tokens.
"""

from collections.abc import Iterator
from typing import Protocol

import torch
from torch import Tensor

from mini_kv.attention.options import AttentionOptions
from mini_kv.core.kv_cache_interface import KVCacheSpec


class Attend(Protocol):
    """Attention of one layer: stores the new keys and values, and returns the queries' attention."""

    def __call__(self, layer: int, query: Tensor, key: Tensor, value: Tensor, options: AttentionOptions) -> Tensor:
        """Return `[num_tokens, num_heads, head_size]`: each query's attention over all tokens that it may see.

        Args:
            layer: number of the layer, from 0. Layers that share keys and values use the same number, with the same
                keys and values. Storing these again changes nothing.
            query: `[num_tokens, num_heads, head_size]`, rotated: the step's new tokens, one request after the other.
            key: `[num_tokens, num_kv_heads, head_size]`, rotated.
            value: the same shape.
            options: window, scale, soft cap, sinks.
        """


class CausalLM(Protocol):
    """A language model that leaves its keys and values to an `Attend`."""

    @property
    def vocab_size(self) -> int:
        """Number of tokens in the vocabulary."""

    @property
    def max_position_embeddings(self) -> int:
        """Tokens of the longest text that it was trained for, prompt and answer."""

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of keys and values."""

    @property
    def device(self) -> torch.device:
        """The device of the model and its KV."""

    @property
    def settings(self) -> str:
        """All properties that decide the model's results, besides weights and dtype: architecture, sizes, constants."""

    def named_parameters(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the weights with their names. Source: `torch.nn.Module`."""

    def get_kv_cache_spec(self, block_size: int) -> dict[str, KVCacheSpec]:
        """Return the shape of each layer's KV by the layer's name, in order. Source: vLLM `GPUModelRunner`."""

    def forward(self, token_ids: Tensor, positions: Tensor, attend: Attend, logits_indices: Tensor) -> Tensor:
        """Return the logits for the token after each row of `logits_indices`, `[len(logits_indices), vocab_size]`.

        Args:
            token_ids: `[num_tokens]`, int64: new tokens of any number of requests, one request after the other.
            positions: `[num_tokens]`, int64: each token's place in its own request.
            attend: called once per layer, in order.
            logits_indices: `[n]`, int64: rows with a next token to compute. In a long prompt it is only the last row.
        """

"""Linear attention: a layer that keeps one running state per request in place of keys and values.

    state after token t     S[t] = decay * S[t - 1] + k[t] v[t]         one square matrix per head, for any t
    result of query t       q[t] S[t]

Without a softmax, a sum over all keys can be kept in place of the keys: `(q k1) v1 + (q k2) v2` is `q (k1 v1 + k2 v2)`.
The disadvantage: no token can be removed from the sum again.

Source: MiniMax-01 (arXiv:2501.08313), section 2.2; vLLM `MiniMaxText01LinearAttention`.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from mini_kv.attention.metadata import AttentionMetadata


@dataclass(frozen=True, slots=True)
class StateCache:
    """One layer's states in blocks: each block has the state after the last token that was written to it."""

    data: Tensor
    """`[num_blocks, num_heads, head_size, head_size]`."""
    block_size: int
    """Tokens from one block's end to the next."""


def linear_attention(query: Tensor, key: Tensor, value: Tensor, decay: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """Return the outputs of the queries of one request, `[num_tokens, num_heads, head_size]`, and the new state.

    Args:
        query: `[num_tokens, num_heads, head_size]`.
        key: the same shape.
        value: the same shape.
        decay: `[num_heads]`: factor of a state at each further token.
        state: `[num_heads, head_size, head_size]`, after the tokens before these, or zeros if there are none.
    """
    found = torch.empty_like(query)
    for token in range(len(query)):
        state = decay[:, None, None] * state + key[token, :, :, None] * value[token, :, None, :]
        found[token] = (query[token, :, None, :] @ state)[:, 0]
    return found, state


def paged_linear_attention(
    query: Tensor, key: Tensor, value: Tensor, decay: Tensor, cache: StateCache, metadata: AttentionMetadata
) -> Tensor:
    """Return the outputs for the queries of a step. Each request's state is read from one block and written to one.

        blocks of 16, 20 tokens before, 15 new      [ s16 ]  [ s20 ]  [ s35 ]
                                                             read     written

    Args:
        query: `[num_tokens, num_heads, head_size]`, the requests one after the other.
        key: the same shape.
        value: the same shape.
        decay: `[num_heads]`.
        cache: the layer's.
        metadata: of the step. Its block tables are those of the layer's group.
    """
    found = torch.empty_like(query)
    starts: list[int] = metadata.query_start_loc.tolist()
    seq_lens: list[int] = metadata.seq_lens.tolist()
    for request, seq_len in enumerate(seq_lens):
        new = slice(starts[request], starts[request + 1])
        num_before = seq_len - (new.stop - new.start)
        table = metadata.block_tables[request]
        state = torch.zeros_like(cache.data[0])
        if num_before:
            state = cache.data[table[(num_before - 1) // cache.block_size]]
        found[new], state = linear_attention(query[new], key[new], value[new], decay, state)
        cache.data[table[(seq_len - 1) // cache.block_size]] = state
    return found

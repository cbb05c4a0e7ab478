"""lab-09, another way: what the engine has is handed on to it; the online softmax is a merge of two parts."""

import torch
from torch import Tensor

from mini_kv.attention.backends import paged_attention
from mini_kv.attention.kv_cache import PagedKVCache
from mini_kv.attention.merge import merge_attn_states as merge
from mini_kv.attention.metadata import build_metadata
from mini_kv.attention.options import AttentionOptions


def online_softmax_update(
    m: Tensor,
    l: Tensor,  # noqa: E741
    acc: Tensor,
    scores: Tensor,
    v: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Take a few more keys into a softmax that is under way: attend to them alone, then merge."""
    new_m = torch.maximum(m, scores.amax(dim=-1))
    lse = torch.logsumexp(scores, dim=-1)
    weights = torch.exp(scores - lse.masked_fill(lse == -torch.inf, 0).unsqueeze(-1))
    tile = (weights.unsqueeze(1) @ v).squeeze(1)
    so_far = acc / l.masked_fill(l == 0, 1).unsqueeze(-1)
    out, lse = merge(so_far, m + torch.log(l), tile, lse)
    new_l = torch.exp(lse - new_m.masked_fill(new_m == -torch.inf, 0))
    return new_m, new_l, out * new_l.unsqueeze(-1)


def paged_attention_ref(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, block_table: Tensor, seq_lens: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    """Return the result of one query for each request, and its log-sum-exp."""
    out, lse = torch.zeros_like(q), q.new_full(q.shape[:2], -torch.inf)
    some = seq_lens > 0  # to the engine, a request without tokens has no query either
    out[some], lse[some] = attend(
        q[some], k_cache, v_cache, block_table[some], [1] * int(some.sum()), seq_lens[some], scale
    )
    return out, lse


def merge_attn_states(o1: Tensor, lse1: Tensor, o2: Tensor, lse2: Tensor) -> tuple[Tensor, Tensor]:
    """Put two parts of one attention together."""
    return merge(o1, lse1, o2, lse2)


def paged_prefill_ref(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, block_table: Tensor, seq_len: int, scale: float
) -> tuple[Tensor, Tensor]:
    """Return the results of one request's new tokens, and their log-sum-exp."""
    return attend(q, k_cache, v_cache, block_table.unsqueeze(0), [len(q)], torch.tensor([seq_len]), scale)


def attend(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, table: Tensor, query_lens: list[int], seq_lens: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    """Call the engine's reference backend."""
    kv_cache = PagedKVCache(torch.stack([k_cache, v_cache], dim=1))
    metadata = build_metadata(query_lens, seq_lens.tolist(), table, k_cache.shape[1])
    return paged_attention(q, kv_cache, metadata, AttentionOptions(scale=scale), backend="reference")

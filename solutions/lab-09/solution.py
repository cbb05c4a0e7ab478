"""lab-09: the reference solution."""

import torch
from torch import Tensor


def online_softmax_update(
    m: Tensor,
    l: Tensor,  # noqa: E741
    acc: Tensor,
    scores: Tensor,
    v: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Take a few more keys into a softmax that is under way."""
    new_m = torch.maximum(m, scores.amax(dim=-1))
    shift = new_m.masked_fill(new_m == -torch.inf, 0)  # no key so far: nothing to subtract
    alpha = torch.exp(m - shift)
    p = torch.exp(scores - shift.unsqueeze(-1))
    new_l = alpha * l + p.sum(dim=-1)
    new_acc = alpha.unsqueeze(-1) * acc + (p.unsqueeze(1) @ v).squeeze(1)
    return new_m, new_l, new_acc


def paged_attention_ref(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, block_table: Tensor, seq_lens: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    """Return the result of one query for each request, and its log-sum-exp."""
    num_heads = q.shape[1]
    block_size, num_kv_heads = k_cache.shape[1:3]
    group = num_heads // num_kv_heads
    out, lse = torch.zeros_like(q), q.new_full(q.shape[:2], -torch.inf)
    for s, seq_len in enumerate(seq_lens.tolist()):
        m, l, acc = lse[s], q.new_zeros(num_heads), out[s]  # noqa: E741
        for start in range(0, seq_len, block_size):
            block = int(block_table[s, start // block_size])
            num_keys = min(block_size, seq_len - start)
            k = k_cache[block, :num_keys].repeat_interleave(group, dim=1).transpose(0, 1)
            v = v_cache[block, :num_keys].repeat_interleave(group, dim=1).transpose(0, 1)
            scores = (k @ q[s].unsqueeze(-1)).squeeze(-1) * scale
            m, l, acc = online_softmax_update(m, l, acc, scores, v)  # noqa: E741
        if seq_len > 0:
            out[s], lse[s] = acc / l.unsqueeze(-1), m + torch.log(l)
    return out, lse


def merge_attn_states(o1: Tensor, lse1: Tensor, o2: Tensor, lse2: Tensor) -> tuple[Tensor, Tensor]:
    """Put two parts of one attention together."""
    largest = torch.maximum(lse1, lse2)
    shift = largest.masked_fill(largest == -torch.inf, 0)
    w1, w2 = torch.exp(lse1 - shift).unsqueeze(-1), torch.exp(lse2 - shift).unsqueeze(-1)
    total = w1 + w2
    o1, o2 = o1.masked_fill(w1 == 0, 0), o2.masked_fill(w2 == 0, 0)  # 0 times NaN would be NaN
    o = (w1 * o1 + w2 * o2) / total.masked_fill(total == 0, 1)
    return o, torch.log(total.squeeze(-1)) + shift


def paged_prefill_ref(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, block_table: Tensor, seq_len: int, scale: float
) -> tuple[Tensor, Tensor]:
    """Return the results of one request's new tokens, and their log-sum-exp."""
    rows = block_table.expand(len(q), -1)
    lens = torch.arange(seq_len - len(q) + 1, seq_len + 1)
    return paged_attention_ref(q, k_cache, v_cache, rows, lens, scale)

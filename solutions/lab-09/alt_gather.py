"""lab-09, another way: put a request's keys together first, and let PyTorch take the softmax."""

import torch
from torch import Tensor


def online_softmax_update(
    m: Tensor,
    l: Tensor,  # noqa: E741
    acc: Tensor,
    scores: Tensor,
    v: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Take a few more keys into a softmax that is under way: with what there was as one more key among them."""
    scores = torch.cat([(m + torch.log(l)).unsqueeze(-1), scores], dim=-1)  # log(0) is minus infinity: no key
    mean_so_far = acc / l.clamp(min=1e-30).unsqueeze(-1)
    v = torch.cat([mean_so_far.unsqueeze(1), v], dim=1)
    seen = scores.amax(dim=-1) > -torch.inf
    new_m = torch.maximum(m, scores[:, 1:].amax(dim=-1))
    p = torch.where(seen.unsqueeze(-1), torch.exp(scores - new_m.unsqueeze(-1)), 0.0)
    return new_m, p.sum(dim=-1), torch.einsum("hk,hkd->hd", p, v)


def paged_attention_ref(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, block_table: Tensor, seq_lens: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    """Return the result of one query for each request, and its log-sum-exp."""
    results = []
    num_kv_heads, head_size = k_cache.shape[2:]
    for query, row, length in zip(q, block_table, seq_lens.tolist(), strict=True):
        blocks = row[: -(-length // k_cache.shape[1])]
        keys, values = (cache[blocks].flatten(0, 1)[:length] for cache in (k_cache, v_cache))
        grouped = query.view(num_kv_heads, -1, head_size)  # neighbours share, so nothing needs to be repeated
        scores = torch.einsum("kgd,tkd->kgt", grouped, keys) * scale
        lse = torch.logsumexp(scores, dim=-1)
        weights = torch.softmax(scores, dim=-1) if length > 0 else scores
        results.append((torch.einsum("kgt,tkd->kgd", weights, values).flatten(0, 1), lse.flatten()))
    return torch.stack([out for out, _ in results]), torch.stack([lse for _, lse in results])


def merge_attn_states(o1: Tensor, lse1: Tensor, o2: Tensor, lse2: Tensor) -> tuple[Tensor, Tensor]:
    """Put two parts of one attention together."""
    lse = torch.logaddexp(lse1, lse2)
    merged = torch.zeros_like(o1)
    for out, part in ((o1, lse1), (o2, lse2)):
        share = torch.exp(part - lse).unsqueeze(-1)
        merged += torch.where(part.unsqueeze(-1) > -torch.inf, share * out, 0.0)
    return merged, lse


def paged_prefill_ref(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, block_table: Tensor, seq_len: int, scale: float
) -> tuple[Tensor, Tensor]:
    """Return the results of one request's new tokens, and their log-sum-exp: with a mask, as in a textbook."""
    block_size, num_kv_heads, head_size = k_cache.shape[1:]
    blocks = block_table[: -(-seq_len // block_size)]
    keys, values = (cache[blocks].flatten(0, 1)[:seq_len] for cache in (k_cache, v_cache))
    grouped = q.view(len(q), num_kv_heads, -1, head_size)
    scores = torch.einsum("qkgd,tkd->qkgt", grouped, keys) * scale
    own = torch.arange(seq_len - len(q), seq_len).view(-1, 1, 1, 1)
    scores = scores.masked_fill(torch.arange(seq_len) > own, -torch.inf)
    out = torch.einsum("qkgt,tkd->qkgd", torch.softmax(scores, dim=-1), values)
    return out.flatten(1, 2), torch.logsumexp(scores, dim=-1).flatten(1)

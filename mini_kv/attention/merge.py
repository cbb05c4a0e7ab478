"""Combines two parts of one attention.

Softmax over a long row needs two values of each part, not the part itself: its result, and the logarithm of its sum of
exponentials. So a row can be computed in pieces, in any order, on different machines.
"""

import torch
from torch import Tensor


def merge_attn_states(out_a: Tensor, lse_a: Tensor, out_b: Tensor, lse_b: Tensor) -> tuple[Tensor, Tensor]:
    """Return attention over the union of two disjoint sets of keys, and its log-sum-exp.

        lse = log(e^lse_a + e^lse_b)
        out = out_a * e^(lse_a - lse) + out_b * e^(lse_b - lse)

    A part without keys has `lse` minus infinity and adds nothing, for any `out`. Two such parts give zeros.

    Args:
        out_a: `[num_tokens, num_heads, head_size]`.
        lse_a: `[num_tokens, num_heads]`, natural logarithm.
        out_b: like `out_a`.
        lse_b: like `lse_a`.

    Source: FlashInfer's `merge_state`; vLLM `merge_attn_states` (v1/attention/ops).
    """
    largest = torch.maximum(lse_a, lse_b)
    largest = torch.where(largest == -torch.inf, torch.zeros_like(largest), largest)  # else inf - inf, which is NaN
    weight_a, weight_b = torch.exp(lse_a - largest), torch.exp(lse_b - largest)
    total = weight_a + weight_b
    lse = torch.log(total) + largest
    divisor = torch.where(total == 0, torch.ones_like(total), total)
    share_a, share_b = (weight_a / divisor).unsqueeze(-1), (weight_b / divisor).unsqueeze(-1)
    out = _weighted(out_a, share_a) + _weighted(out_b, share_b)
    return out, lse


def _weighted(out: Tensor, share: Tensor) -> Tensor:
    return torch.where(share == 0, torch.zeros_like(out), out * share.to(out.dtype))

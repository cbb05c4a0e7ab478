"""Multi-head latent attention: a layer that keeps one short vector per token instead of keys and values of each head.

    a token's hidden state  ->  latent c, rotated part r      kept: [c | r], once for any number of heads
    key of head h               [U_h c | r]                    U_h and V_h are matrices of the layer
    value of head h             V_h c

No keys and values are computed from the kept vectors. A matrix between two vectors can be applied to either of them:

    score     (U_h c) . q  +  r . q_r   =   c . (U_h^T q)  +  r . q_r   =   [c | r] . [U_h^T q | q_r]
    result    sum of p V_h c            =   V_h (sum of p c)

So each head has a longer query. All heads read the same vector, as key and as value. Their result is multiplied
with `V_h` once. For the cache it is attention with one KV head, and its key is also its value: `MLAAttentionSpec`.

Source: DeepSeek-V2 (arXiv:2405.04434), section 2.1.2 and appendix C; vLLM `MLACommonImpl`, the path of decoding.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mini_kv.attention.options import AttentionOptions
from mini_kv.core.errors import ConfigError
from mini_kv.engine.interface import Attend


@dataclass(slots=True)
class Latents:
    """Replaces the cache of a layer of transformers: it records the new latent vectors and keeps no others.

    A layer passes its latent vectors to its cache, then makes keys and values of them, then computes attention.
    """

    layer: int = -1
    """The last layer."""
    kept: Tensor | None = None
    """`[num_tokens, 1, latent and rotated part]`: the layer's vector of each new token."""

    def update(self, latent: Tensor, rotated: Tensor, layer: int, *_: Any) -> tuple[Tensor, Tensor]:
        """Record both and return them. Source: transformers `Cache.update`.

        Args:
            latent: `[1, 1, num_tokens, kv_lora_rank]`.
            rotated: `[1, 1, num_tokens, qk_rope_head_dim]`.
            layer: its number, from 0.
        """
        self.layer, self.kept = layer, torch.cat((latent, rotated), dim=-1)[0].transpose(0, 1)
        return latent, rotated


def attend_to_latents(
    module: Any, query: Tensor, latents: Latents, attend: Attend, options: AttentionOptions
) -> Tensor:
    """Return `[num_tokens, num_heads, v_head_dim]`: each query's attention over the kept vectors.

    Args:
        module: the layer's attention, from transformers' DeepSeek.
        query: `[num_tokens, num_heads, qk_nope_head_dim + qk_rope_head_dim]`, the last part rotated.
        latents: has recorded this layer's vectors.
        attend: the step's.
        options: with the layer's own scale, which does not follow from the size of the kept vectors.

    Raises `ConfigError` for a layer that has passed no latent vectors, or has other matrices.
    """
    layer, rank = module.layer_idx, module.kv_lora_rank
    if latents.kept is None or latents.layer != layer or module.kv_b_proj.bias is not None:
        raise ConfigError(f"layer {layer} of {type(module).__name__} keeps its latent vectors in a way unknown here")
    matrices = module.kv_b_proj.weight.view(query.shape[1], -1, rank)
    up_keys, up_values = matrices.split([module.qk_nope_head_dim, module.v_head_dim], dim=1)
    plain, rotated = query.split([module.qk_nope_head_dim, module.qk_rope_head_dim], dim=-1)
    query = torch.cat((torch.einsum("thk,hkr->thr", plain, up_keys), rotated), dim=-1)
    found = attend(layer, query, latents.kept, latents.kept, options)[..., :rank]
    return torch.einsum("thr,hvr->thv", found, up_values)

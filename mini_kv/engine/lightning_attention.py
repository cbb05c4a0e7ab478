"""The linear layers of a MiniMax, computed by transformers, with states kept by the engine.

transformers runs such a layer over one text at a time, with the state in a cache of its own. A step has new tokens
of several requests in one row. So the layer's `forward` is replaced by one that does the same with the `Attend`.
"""

from functools import partial
from typing import Any

import torch
from torch import Tensor

from mini_kv.attention.options import AttentionOptions
from mini_kv.core.errors import ConfigError
from mini_kv.engine.interface import Attend

LAYER = "MiniMaxLightningAttention"
"""Its class in transformers."""


def leave_states_to_attend(model: torch.nn.Module) -> None:
    """Replace the `forward` of each linear layer of the model."""
    for module in model.modules():
        if type(module).__name__ == LAYER:
            module.forward = partial(_forward, module)


def _forward(module: Any, hidden_states: Tensor, mini_kv_attend: Attend | None = None, **_: Any) -> tuple[Tensor, None]:
    """Return the layer's output, `[1, num_tokens, hidden_size]`. Source: transformers, the class's `forward`."""
    if mini_kv_attend is None:
        raise ConfigError("this model's attention belongs to mini_kv: call HuggingFaceModel.forward")
    rows = module.act_fn(module.qkv_proj(hidden_states))[0]
    query, key, value = rows.unflatten(-1, (module.num_attention_heads, -1)).split(module.head_dim, dim=-1)
    options = AttentionOptions(decay=torch.exp(-module.slope_rate[:, 0, 0]))
    found = module.norm(mini_kv_attend(module.layer_idx, query, key, value, options).flatten(1))
    return module.out_proj(torch.sigmoid(module.output_gate(hidden_states)) * found), None

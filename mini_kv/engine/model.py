"""A small Llama: the same layers, with the same names, as in published checkpoints.

    token -> embedding -> [ norm -> attention -> + -> norm -> feed-forward -> + ] x layers -> norm -> logits

Every arrow but one treats each token by itself. Only attention reads other tokens, and of these only keys
and values. So a cache of these is all that a model needs of earlier tokens.
"""

from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor, nn

from mini_kv.attention.options import AttentionOptions
from mini_kv.core.errors import ConfigError
from mini_kv.core.kv_cache_interface import FullAttentionSpec, KVCacheSpec, SlidingWindowSpec
from mini_kv.engine.interface import Attend


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Sizes of the model. Names are those of a Llama checkpoint's `config.json`."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    max_position_embeddings: int = 2048
    """Tokens of the longest text that the model has learned to read."""
    rope_theta: float = 10_000.0
    rms_norm_eps: float = 1e-5
    sliding_window: int | None = None
    """Tokens that a windowed layer sees, its own included."""
    window_layers: tuple[int, ...] = ()
    """Layers with that window. The others see all tokens."""

    def __post_init__(self) -> None:
        at_least_one = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_key_value_heads")
        for name in (*at_least_one, "max_position_embeddings"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}, it must be at least 1")
        if self.num_attention_heads < 1 or self.num_attention_heads % self.num_key_value_heads:
            heads = f"num_attention_heads is {self.num_attention_heads}"
            raise ConfigError(f"{heads}, it must be a multiple of num_key_value_heads, {self.num_key_value_heads}")
        if self.head_dim < 2 or self.head_dim % 2:
            raise ConfigError(f"head_dim is {self.head_dim}, it must be even: RoPE turns pairs")
        if self.window_layers and self.sliding_window is None:
            raise ConfigError(f"layers {list(self.window_layers)} have a window, but sliding_window has no size")

    def window_of(self, layer: int) -> int | None:
        """Return the number of tokens that one layer sees. `None`: all."""
        return self.sliding_window if layer in self.window_layers else None


class TinyLlama(nn.Module):
    """Llama with grouped queries, RoPE, RMSNorm, SwiGLU, and one matrix for both embedding and logits.

    Its `state_dict` has the names of Hugging Face's `LlamaForCausalLM`, so that one reads the other's checkpoint.
    """

    def __init__(self, config: ModelConfig) -> None:
        """Make the model with random weights. `load_state_dict` replaces them."""
        super().__init__()
        self.config = config
        self.model = _Decoder(config)

    @property
    def vocab_size(self) -> int:
        """Number of tokens in the vocabulary."""
        return self.config.vocab_size

    @property
    def max_position_embeddings(self) -> int:
        """Tokens of the longest text that the model has learned to read."""
        return self.config.max_position_embeddings

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the weights, the keys and the values."""
        return self.model.embed_tokens.weight.dtype

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return self.model.embed_tokens.weight.device

    @property
    def settings(self) -> str:
        """All properties that decide the model's results, besides weights and dtype."""
        return f"TinyLlama {self.config}"

    def get_kv_cache_spec(self, block_size: int) -> dict[str, KVCacheSpec]:
        """Return the shape of each layer's KV by the layer's name, in order."""
        config, specs = self.config, dict[str, KVCacheSpec]()
        for layer in range(config.num_hidden_layers):
            shape = (block_size, config.num_key_value_heads, config.head_dim, self.dtype.itemsize)
            window = config.window_of(layer)
            if window is None:
                specs[f"layers.{layer}"] = FullAttentionSpec(*shape)
            else:
                specs[f"layers.{layer}"] = SlidingWindowSpec(*shape, sliding_window=window)
        return specs

    def forward(self, token_ids: Tensor, positions: Tensor, attend: Attend, logits_indices: Tensor) -> Tensor:
        """Return the logits for the token after each of those rows, `[len(logits_indices), vocab_size]`."""
        hidden = self.model(token_ids, positions, attend)
        return nn.functional.linear(hidden[logits_indices], self.model.embed_tokens.weight)


class _Decoder(nn.Module):
    """Embedding, layers, and the last norm."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(_Layer(config, layer) for layer in range(config.num_hidden_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(self, token_ids: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        hidden: Tensor = self.embed_tokens(token_ids)
        cos, sin = _rotary_angles(positions, self.config.head_dim, self.config.rope_theta, hidden.dtype)
        for layer in self.layers:
            hidden = layer(hidden, cos, sin, attend)
        normed: Tensor = self.norm(hidden)
        return normed


class _Layer(nn.Module):
    """Attention, then the feed-forward network. Each adds its result to its input."""

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = _Attention(config, layer)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = _FeedForward(config)

    def forward(self, hidden: Tensor, cos: Tensor, sin: Tensor, attend: Attend) -> Tensor:
        hidden = hidden + self.self_attn(self.input_layernorm(hidden), cos, sin, attend)
        result: Tensor = hidden + self.mlp(self.post_attention_layernorm(hidden))
        return result


class _Attention(nn.Module):
    """Queries, keys and values of the new tokens. `attend` keeps those of earlier tokens."""

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        self.layer = layer
        self.head_dim = config.head_dim
        self.options = AttentionOptions(sliding_window=config.window_of(layer))
        query_size, kv_size = (n * config.head_dim for n in (config.num_attention_heads, config.num_key_value_heads))
        self.q_proj = nn.Linear(config.hidden_size, query_size, bias=False)
        self.k_proj = nn.Linear(config.hidden_size, kv_size, bias=False)
        self.v_proj = nn.Linear(config.hidden_size, kv_size, bias=False)
        self.o_proj = nn.Linear(query_size, config.hidden_size, bias=False)

    def forward(self, hidden: Tensor, cos: Tensor, sin: Tensor, attend: Attend) -> Tensor:
        query, key, value = (
            project(hidden).unflatten(-1, (-1, self.head_dim)) for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        # A key is rotated before it is kept: it never has to be touched again, wherever its request ends.
        found = attend(self.layer, rotate(query, cos, sin), rotate(key, cos, sin), value, self.options)
        result: Tensor = self.o_proj(found.flatten(1))
        return result


class _FeedForward(nn.Module):
    """SwiGLU: one projection decides how much of the other passes."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, hidden: Tensor) -> Tensor:
        result: Tensor = self.down_proj(nn.functional.silu(self.gate_proj(hidden)) * self.up_proj(hidden))
        return result


class RMSNorm(nn.Module):
    """Scale each token's vector so that the mean of its squares is one, then multiply by learned weights."""

    def __init__(self, size: int, eps: float) -> None:
        """Start with weights of one."""
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, hidden: Tensor) -> Tensor:
        """Return the scaled vectors, `[..., size]`, in the dtype of the input. Squares are added in float32 or better.

        The result is `weight * hidden / sqrt(mean(hidden ** 2) + eps)`, in one call instead of eight. With one token, a
        call costs more time than its computation.
        """
        return nn.functional.rms_norm(hidden, self.weight.shape, self.weight, self.eps)


def _rotary_angles(positions: Tensor, head_dim: int, theta: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return cosine and signed sine of each position's angles, `[num_tokens, 1, head_dim]`, for `rotate`.

    Pair i turns by `position / theta ** (2 * i / head_dim)`: the first pairs fast, the last ones slowly.
    """
    wide = torch.promote_types(dtype, torch.float32)
    angles = positions[:, None, None] * _rotary_speeds(head_dim, theta, wide, positions.device)
    cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)
    return torch.cat((cos, cos), dim=-1), torch.cat((-sin, sin), dim=-1)


@cache
def _rotary_speeds(head_dim: int, theta: float, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return the angle by which each pair turns from one position to the next."""
    with torch.inference_mode(False):  # else training could not use what inference made
        pairs = torch.arange(0, head_dim, 2, dtype=dtype, device=device) / head_dim
        return theta**-pairs


def rotate(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Return the heads, `[num_tokens, n, head_dim]`, with element i and element i + head_dim / 2 turned as a pair.

        first * cos - second * sin        second * cos + first * sin        the minus is in `sin`

    So the product of a query and a key depends only on the distance of their positions.
    """
    return heads * cos + heads.roll(heads.shape[-1] // 2, dims=-1) * sin

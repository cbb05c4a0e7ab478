"""A checkpoint of Llama, Qwen, Mistral, Gemma, Phi and others as a `CausalLM`: transformers computes, we keep the past.

    transformers' layers          q, k, v, rotated           our Attend
    norm, projections, RoPE   ------------------------->   keeps k and v, attends
    feed-forward, logits      <-------------------------   the results of the queries

The layers of transformers look up their attention by name, in a registry that accepts additions. We add one name. Its
function computes nothing, but passes queries, keys and values to the `Attend` of the step. Source: transformers
`AttentionInterface` (modeling_utils.py), 5.17 and 5.23.

The batch is packed, one request after the other in one row, `[1, num_tokens]`. Outside attention a layer treats each
token by itself. In attention the `Attend` knows the request of each token, so no padding and no mask are needed.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from mini_kv.attention.options import AttentionOptions
from mini_kv.core.errors import ConfigError
from mini_kv.core.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheSpec,
    MambaSpec,
    MLAAttentionSpec,
    SlidingWindowSpec,
)
from mini_kv.engine.checkpoint import SIZES
from mini_kv.engine.contiguous import NoCache
from mini_kv.engine.interface import Attend
from mini_kv.engine.latent_attention import Latents, attend_to_latents
from mini_kv.engine.lightning_attention import leave_states_to_attend

if TYPE_CHECKING:
    from transformers import PreTrainedModel

INTERFACE = "mini_kv"
"""Our name in transformers' registry of attention functions."""

SUPPORTED = (
    "llama",
    "qwen2",
    "qwen3",
    "mistral",
    "gemma",
    "gemma2",
    "gemma3_text",
    "gemma3",
    "gpt_oss",
    "mixtral",
    "qwen3_moe",
    "olmo2",
    "smollm3",
    "phi3",
    "gpt2",
    "deepseek_v2",
    "deepseek_v3",
    "gemma3n_text",
    "minimax",
)
"""Values of `model_type`: the architectures that the tests compare with transformers' own `generate`.

The tests use small checkpoints with random weights, not published ones. "gemma3" are the large models, which also read
pictures. Here they read text only. "gemma3n_text" is the part of Gemma 3n that reads text. Its last layers have no keys
and values. They read those of another layer. "minimax" has layers that keep a state.
"""

DTYPES = ("float64", "float32", "float16", "bfloat16")
"""Names of the dtypes that a model may compute in."""

NUM_WITNESSED = 24
"""Tokens for which an untested model is compared with itself."""
MOST_OFF = {torch.float64: 1e-5, torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 1e-1}
"""By dtype: the largest allowed difference of logits that were summed in another order, as a share of the largest."""

_BATCH_DEPENDENT_ROPE = ("dynamic", "longrope")
"""Kinds of RoPE whose angles change with the longest text of the batch, so that a kept key would be wrong later."""


class HuggingFaceModel:
    """A model of transformers that leaves its past to an `Attend`. See `CausalLM`."""

    def __init__(self, model: "PreTrainedModel", *, untested: bool = False) -> None:
        """Replace the model's attention by ours. Its own `generate` then refuses to run.

        Costs one forward of one token, which shows the KV of each layer. An untested architecture costs two more, of a
        few tokens: the logits with its own attention and with ours must be equal.

        Raises:
            ConfigError: the architecture is not in `SUPPORTED`, and `untested` is false. Or its layers keep more than
                keys and values. Or it is untested, and its logits with our attention differ from those with its own.
        """
        check_config(model.config.to_dict(), untested=untested)
        _register()
        right = _logits_of_its_own(model.eval()) if untested else None
        config = model.config.get_text_config()
        leave_states_to_attend(model)
        model.set_attn_implementation(INTERFACE if config is model.config else {"text_config": INTERFACE})
        self._model = model.eval().requires_grad_(False)
        self.vocab_size: int = config.vocab_size
        self.max_position_embeddings: int = config.max_position_embeddings
        """Tokens of the longest text that the model has learned to read."""
        self.dtype: torch.dtype = model.dtype
        self.device: torch.device = model.device
        self.eos_token_ids = _eos_token_ids(model)
        """Tokens that end a text, from generation_config.json. A chat model may have several."""
        self._has_latents = bool(getattr(config, "kv_lora_rank", None))
        self._layers = self._ask_layers(config.num_hidden_layers)
        if right is not None:
            self._check_against(right)

    @property
    def settings(self) -> str:
        """All settings that decide the model's results, besides weights and dtype: its config without the folder."""
        config = self._model.config.to_dict()
        config.pop("_name_or_path", None)
        return json.dumps(config, sort_keys=True, default=str)

    def named_parameters(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the weights with their names."""
        weights: Iterator[tuple[str, Tensor]] = self._model.named_parameters()
        return weights

    def get_kv_cache_spec(self, block_size: int) -> dict[str, KVCacheSpec]:
        """Return the shape of each layer's KV by the layer's name, in order."""
        specs = dict[str, KVCacheSpec]()
        for layer, seen in enumerate(self._layers):
            shape = (block_size, seen.num_kv_heads, seen.head_size, self.dtype.itemsize)
            if seen.is_state:
                square = (seen.num_kv_heads, seen.head_size, seen.head_size)
                specs[f"layers.{layer}"] = MambaSpec(block_size, shapes=(square,), dtypes_bytes=(self.dtype.itemsize,))
            elif seen.is_latent:
                specs[f"layers.{layer}"] = MLAAttentionSpec(*shape)
            elif seen.sliding_window is None:
                specs[f"layers.{layer}"] = FullAttentionSpec(*shape)
            else:
                specs[f"layers.{layer}"] = SlidingWindowSpec(*shape, sliding_window=seen.sliding_window)
        return specs

    def forward(self, token_ids: Tensor, positions: Tensor, attend: Attend, logits_indices: Tensor) -> Tensor:
        """Return the logits for the token after each of those rows, `[len(logits_indices), vocab_size]`."""
        more = {"past_key_values": Latents()} if self._has_latents else {}
        output = self._model(
            input_ids=token_ids[None],
            position_ids=positions[None],
            use_cache=False,
            logits_to_keep=logits_indices,
            mini_kv_attend=attend,
            mini_kv_latents=more.get("past_key_values"),
            **more,
        )
        logits: Tensor = output.logits[0]
        return logits

    def _ask_layers(self, num_layers: int) -> "list[_Layer]":
        """Return the spec of each layer, found by running one token: its behaviour counts, not the config."""
        witness = _Witness()
        zero = torch.zeros(1, dtype=torch.int64, device=self.device)
        self.forward(zero, zero, witness, zero)
        owners = {layer.number: layer for layer in reversed(witness.layers)}
        if len(witness.layers) != num_layers or sorted(owners) != list(range(len(owners))):
            raise ConfigError(
                f"{type(self._model).__name__} has {num_layers} layers, and {[each.number for each in witness.layers]} "
                "used attention: the others keep something else than keys and values, which mini_kv cannot store"
            )
        return [owners[number] for number in range(len(owners))]

    def _check_against(self, right: Tensor) -> None:
        """Raise `ConfigError` unless the logits equal `right`, and the layers with a window are those of the config."""
        tokens = torch.arange(len(right), device=self.device)
        ours = self.forward(tokens % self.vocab_size, tokens, NoCache(), tokens)
        off = float((ours - right).abs().max() / right.abs().max())
        if not off < MOST_OFF[self.dtype]:
            raise ConfigError(
                f"{type(self._model).__name__} is untested, and its attention does more than it states: with ours the "
                f"logits of {len(right)} tokens are off by {off:.1g} of the largest"
            )
        kinds = self._model.config.get_text_config().to_dict().get("layer_types") or ()
        windows = [layer.sliding_window is not None for layer in self._layers]
        if kinds and windows != [kind == "sliding_attention" for kind in kinds]:
            raise ConfigError(
                f"{type(self._model).__name__} is untested, and its layers say {windows} when asked for a window, "
                f"where layer_types is {list(kinds)}"
            )


def _logits_of_its_own(model: "PreTrainedModel") -> Tensor:
    """Return the logits of the first few token ids as a text, `[num_tokens, vocab_size]`, with its own attention."""
    num_tokens = min(NUM_WITNESSED, model.config.get_text_config().max_position_embeddings)
    tokens = torch.arange(num_tokens, device=model.device) % model.config.get_text_config().vocab_size
    with torch.inference_mode():
        logits: Tensor = model(input_ids=tokens[None], use_cache=False).logits[0]
    return logits


def _eos_token_ids(model: "PreTrainedModel") -> tuple[int, ...]:
    ids: Any = model.generation_config.eos_token_id if model.generation_config else None
    ids = [] if ids is None else ids if isinstance(ids, list) else [ids]
    for token_id in ids:
        if type(token_id) is not int:
            raise ConfigError(f"eos_token_id is {token_id!r}, it must be a whole number, or a list of them")
    return tuple(ids)


def check_config(config: dict[str, Any], *, untested: bool = False) -> None:
    """Refuse what cannot work, as soon as `config.json` is known.

    Raises:
        ConfigError: the architecture is not in `SUPPORTED`, unless it may be `untested` and no obstacle is known. Or it
            has invalid sizes, attention to later tokens, RoPE that depends on the batch, or quantised weights.
    """
    model_type = config.get("model_type")
    why = _reason(config)
    if model_type not in SUPPORTED and (why or not untested):
        advice = "" if why else ". With --untested (LLM: untested=True) it is tried, and compared with itself"
        raise ConfigError(
            f"model_type {model_type!r} is not supported{why and ': ' + why}{advice}. Those that work: "
            f"{', '.join(SUPPORTED)}"
        )
    text: dict[str, Any] = _object(config, "text_config") or config
    _check_sizes(text)
    if text.get("use_bidirectional_attention") or text.get("is_causal") is False:
        raise ConfigError(f"this {model_type} reads in both directions; a cache of the past needs a causal model")
    if _object(config, "quantization_config"):
        method = config["quantization_config"].get("quant_method")
        raise ConfigError(f"quantised weights ({method}) are not supported; load a checkpoint in bf16, fp16 or fp32")
    for rope in _rope_types(_object(text, "rope_parameters") or _object(text, "rope_scaling")):
        if rope in _BATCH_DEPENDENT_ROPE:
            raise ConfigError(
                f"RoPE of the kind {rope!r} turns a key by an angle that depends on the longest text of the batch; "
                "a key that is kept would be wrong when the batch changes"
            )


def _check_sizes(text: dict[str, Any]) -> None:
    """Raise `ConfigError` for a size that is not a positive whole number, and for an unknown dtype."""
    for name in SIZES:
        value = text.get(name)
        per_layer = value if name == "intermediate_size" and isinstance(value, list) else [value]  # as in Gemma 3n
        if value is not None and any(type(each) is not int or each < 1 for each in per_layer):
            raise ConfigError(f"{name} is {value!r}, it must be a whole number from 1 on")
    dtype = text.get("dtype", text.get("torch_dtype"))
    if dtype is not None and str(dtype).removeprefix("torch.") not in DTYPES:
        raise ConfigError(f"dtype is {dtype!r}, and weights are computed with in one of {', '.join(DTYPES)}")


def _object(config: dict[str, Any], name: str) -> dict[str, Any]:
    """Return a setting that is an object, or an empty dict if it is left out or null."""
    value = config.get(name)
    if value is not None and not isinstance(value, dict):
        raise ConfigError(f"{name} is {value!r}, it must be an object")
    return value or {}


def _reason(config: dict[str, Any]) -> str:
    """Return the known obstacle of this kind of model, or an empty string."""
    if config.get("is_encoder_decoder") or config.get("cross_attention_layers"):
        return "cross attention reads an encoder's keys, which are not in the KV cache"
    if config.get("state_size") or config.get("mamba_d_state") or "linear_attention" in config.get("layer_types", ()):
        kept = "a state-space or linear-attention layer keeps a running state, not keys and values"
        return f"{kept}, and the only such layers that mini_kv computes are MiniMax's"
    if "chunked_attention" in config.get("layer_types", ()) or config.get("attention_chunk_size"):
        return "a layer with chunked attention declares it by a mask only, which mini_kv does not support"
    if config.get("alibi") or str(config.get("position_embedding_type", "")) == "alibi":
        return "ALiBi adds a number to each score by the distance, which mini_kv's attention does not support"
    return ""


def _rope_types(parameters: dict[str, Any]) -> list[str]:
    """Return the kinds of RoPE. A hybrid model has parameters for each kind of layer."""
    nested = [value for value in parameters.values() if isinstance(value, dict)]
    return [str(each.get("rope_type") or each.get("type")) for each in nested or [parameters]]


@dataclass(frozen=True, slots=True)
class _Layer:
    """The shape of one layer's KV, as its first call shows it."""

    number: int
    num_kv_heads: int
    head_size: int
    sliding_window: int | None
    is_latent: bool
    """Whether the key is also the value."""
    is_state: bool
    """Whether it keeps a state, a square matrix per head."""


@dataclass(slots=True)
class _Witness:
    """An `Attend` that keeps nothing and returns zeros, but records the calling layers and their head sizes."""

    layers: list[_Layer] = field(default_factory=list)

    def __call__(self, layer: int, query: Tensor, key: Tensor, value: Tensor, options: AttentionOptions) -> Tensor:
        if not query.shape[-1] == key.shape[-1] == value.shape[-1]:
            sizes = f"{query.shape[-1]}, {key.shape[-1]} and {value.shape[-1]}"
            raise ConfigError(f"layer {layer}: heads of queries, keys and values differ in size: {sizes}")
        is_state = options.decay is not None
        self.layers.append(_Layer(layer, key.shape[1], key.shape[2], options.sliding_window, key is value, is_state))
        return torch.zeros_like(query)


def owning_layer(module: Any) -> int:
    """Return the number of the layer whose keys and values this layer reads. Usually it is the layer itself.

    A layer that shares KV reads the last layer of its kind that owns KV, and is passed the same keys and values. So all
    these layers share one allocation. Source: transformers `Gemma3nTextConfig.kv_sharing_modes`; vLLM
    `add_kv_sharing_layers_to_kv_cache_groups` (v1/worker/utils.py).
    """
    if not getattr(module, "is_kv_shared_layer", False):
        return int(module.layer_idx)
    if not hasattr(module.config, "kv_sharing_modes"):  # 5.17 has none
        raise ConfigError("its layers share keys and values, which needs a newer transformers: 5.23 is tested")
    modes = zip(module.config.kv_sharing_modes, module.config.layer_types, strict=True)
    return max(layer for layer, mode in enumerate(modes) if mode == ("store", module.layer_type))


def _register() -> None:
    """Add our function to transformers' registry. A second call changes nothing. Other names are unchanged."""
    from transformers import AttentionInterface

    AttentionInterface.register(INTERFACE, _attention_function)


def _attention_function(
    module: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **more: Any
) -> tuple[Tensor, None]:
    """Pass one layer's queries, keys and values to the step's `Attend`. The signature is transformers'.

    Args:
        module: the layer's attention. Its number is `layer_idx`.
        query: `[1, num_heads, num_tokens, head_size]`, rotated.
        key: `[1, num_kv_heads, num_tokens, head_size]`, rotated.
        value: the same shape.
        attention_mask: always `None`: for a name without a mask function transformers builds none.
        more: `scaling`, `sliding_window` (the token's own included), `softcap` as in Gemma 2, `s_aux` (the sinks of
            GPT-OSS), each only if the architecture has it. Also `mini_kv_attend` and `mini_kv_latents`, which
            `HuggingFaceModel.forward` passes, and dropout, which is 0 outside training.
    """
    attend: Attend | None = more.get("mini_kv_attend")
    if attend is None:
        raise ConfigError(
            "this model's attention belongs to mini_kv: call HuggingFaceModel.forward, or load a second one to call "
            "generate on. If it was forward, this architecture's layers do not hand on what forward sends along"
        )
    options = AttentionOptions(
        scale=more.get("scaling"),
        sliding_window=more.get("sliding_window"),
        logits_soft_cap=more.get("softcap"),
        sinks=more.get("s_aux"),
    )
    layer = owning_layer(module)
    query, key, value = (heads[0].transpose(0, 1) for heads in (query, key, value))
    latents: Latents | None = more.get("mini_kv_latents")
    if latents is not None:
        return attend_to_latents(module, query, latents, attend, options)[None], None
    return attend(layer, query, key, value, options)[None], None

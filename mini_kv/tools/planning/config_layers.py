"""The kind of each layer, as a config.json gives it: a list of names, a pattern, an interval, or what the type implies.

gemma2, sliding_window 4096, no layer_types       window full window full ..    every second layer
nemotron_h, hybrid_override_pattern "M-M*"        state none state full
jamba, attn_layer_period 8, attn_layer_offset 4   state state state state full state state state ..
mimo_v2_flash, hybrid_layer_pattern [0, 1, 1]     full window window
nemotron-nas, block_configs                       full none full full none ..       no_op: none
kimi_linear, kda_layers [1, 2, 3]                 state state state full
glm_moe_dsa, index_topk_freq 4                    indexers in layers 0, 1, 5, 9 ..
deepseek_v4, compress_ratios [0, 4, 128]          what each layer keeps: compressed.py
falcon_h1                                         full state full state ..      both in every layer
"""

from collections.abc import Callable
from re import fullmatch
from typing import Any

from mini_kv.tools.planning import compressed
from mini_kv.tools.planning.config_file import Config, short

MAX_LAYERS = 1_000
KINDS = {"full_attention": "full", "sliding_attention": "window", "chunked_attention": "chunks"}
STATE_KINDS = {
    "attention": "full",
    "linear_attention": "state",
    "mamba": "state",
    "conv": "state",
    "mlp": "none",
    "moe": "none",
}
"""Other names in the lists of models whose layers with a state are known."""
LETTERS = {"M": "state", "*": "full", "-": "none", "E": "none"}


def read_layers(config: Config) -> list[str]:
    """Return the kind of each layer: full, window, chunks or state, or none for a layer without KV."""
    if config.states:
        return _layers_with_states(config)
    num_layers = config.integer("num_hidden_layers", at_most=MAX_LAYERS)
    own = OWN_FIELDS.keys() & config.implied.keys()
    if own:
        return OWN_FIELDS[own.pop()](config)
    types = config.get("layer_types")
    if types is not None:
        return _listed_layers(config, types, num_layers)
    if config.get("attention_chunk_size"):
        return _chunked_layers(config, num_layers)
    if not config.get("sliding_window") or config.get("use_sliding_window") is False:
        return ["full"] * num_layers
    if config.get("use_sliding_window"):
        raise config.error("use_sliding_window is true: plan does not know yet which layers then keep a window")
    every = _full_every(config)
    if every is None and not config.model_type:
        raise config.error("it has sliding_window, but neither model_type nor layer_types to say which layers keep one")
    if every is None:
        return ["window"] * num_layers
    kinds = ["full" if index % every == 0 else "window" for index in range(1, num_layers + 1)]
    if config.model_type == "gemma4_text":
        kinds[-1] = "full"
    return kinds


def _full_every(config: Config) -> int | None:
    """Return n if every n-th layer has full attention and the others a window, or `None` if all layers are alike."""
    if "full_every" in config.implied:
        return int(config.implied["full_every"])
    pattern = config.get("sliding_window_pattern")
    if not pattern:
        return None
    if isinstance(pattern, str) and fullmatch("L{1,31}G", pattern):  # EXAONE 4 spells it LLLG
        return len(pattern)
    return config.integer("sliding_window_pattern", at_most=MAX_LAYERS)


def _listed_layers(config: Config, types: object, num_layers: int) -> list[str]:
    if not isinstance(types, list) or not all(isinstance(kind, str) for kind in types):
        raise config.error(f"layer_types is {short(types)}, it must be a list of names")
    if len(types) != num_layers:
        raise config.error(f"layer_types has {len(types)} entries for {num_layers} layers")
    known = KINDS | STATE_KINDS if config.states else KINDS
    if "index_head_dim" in config.implied:
        known = known | {"indexed_attention": "full", "deepseek_sparse_attention": "full"}
    for kind in types:
        if kind not in known:
            raise config.error(f"layer_types names {kind[:40]!r}, a kind of layer that plan does not model yet")
    kinds = [known[kind] for kind in types]
    if len(set(kinds)) > 1 and not (config.mixes_layers or config.states):
        raise config.error(f"layer_types names several kinds, and {config.model_type} has one")
    if "window" in kinds and not config.get("sliding_window"):
        raise config.error("layer_types names sliding_attention, but sliding_window has no size")
    if "window" in kinds and config.get("use_sliding_window") is False:
        raise config.error("layer_types names sliding_attention, but use_sliding_window is false")
    if "chunks" in kinds and not config.get("attention_chunk_size"):
        raise config.error("layer_types names chunked_attention, but attention_chunk_size has no size")
    return kinds


def _flagged_layers(config: Config) -> list[str]:
    """Return the kinds of MiMo's layers. Its list has 1 for a window, 0 for full attention."""
    num_layers = config.integer("num_hidden_layers", at_most=MAX_LAYERS)
    flags = config.get("hybrid_layer_pattern")
    if flags is None:
        raise config.error("it does not say which layers keep a window: hybrid_layer_pattern is missing")
    if not isinstance(flags, list) or len(flags) != num_layers or not set(map(str, flags)) <= {"0", "1"}:
        raise config.error(f"hybrid_layer_pattern is {short(flags)}, it must be {num_layers} times 0 or 1")
    return ["window" if flag else "full" for flag in flags]


def _block_layers(config: Config) -> list[str]:
    """Return Nemotron NAS's layers."""
    return ["none" if attention["no_op"] else "full" for attention in attention_of_blocks(config)]


def _compressed_layers(config: Config) -> list[str]:
    """Return the kinds of DeepSeek-V4's layers. Its list of ratios also has the layers that draft."""
    num_layers = config.integer("num_hidden_layers", at_most=MAX_LAYERS)
    ratios = config.get("compress_ratios")
    if not isinstance(ratios, list) or len(ratios) < num_layers or not all(type(r) is int for r in ratios):
        raise config.error(f"compress_ratios is {short(ratios)}, it must be a list of {num_layers} numbers")
    if not {*ratios} <= compressed.KINDS.keys():
        raise config.error(f"compress_ratios has other numbers than {', '.join(map(str, compressed.KINDS))}")
    if 4 not in ratios[:num_layers]:
        raise config.error("compress_ratios has no 4: plan does not model yet how vLLM then groups the layers")
    return compressed.kinds_of_layers(ratios[:num_layers])


OWN_FIELDS: dict[str, Callable[[Config], list[str]]] = {
    "swa_num_key_value_heads": _flagged_layers,
    "block_configs": _block_layers,
    "compress_ratios": _compressed_layers,
}
"""The function that reads the layers, by a field that the type implies."""
_NOT_MODELLED = ("replace_with_linear", "window_length", "sparsify", "num_sink_tokens")


def attention_of_blocks(config: Config) -> list[dict[str, Any]]:
    """Return Nemotron NAS's attention in each layer: `no_op`, or the query heads per KV head, `n_heads_in_group`.

    Source: vLLM 0.33, `DeciLMDecoderLayer` (models/nemotron_nas.py).
    """
    num_layers = config.integer("num_hidden_layers", at_most=MAX_LAYERS)
    num_heads = config.integer("num_attention_heads")
    blocks = config.get("block_configs")
    if not isinstance(blocks, list) or len(blocks) != num_layers:
        raise config.error(f"block_configs is {short(blocks)}, it must be a list of {num_layers} layers")
    found = []
    for number, block in enumerate(blocks):
        attention = block.get("attention") if isinstance(block, dict) else None
        if not isinstance(attention, dict):
            raise config.error(f"block_configs[{number}] is {short(block)}, it must have attention")
        for field in _NOT_MODELLED:
            if attention.get(field):
                raise config.error(f"block_configs[{number}] has {field}, which plan does not model yet")
        group = attention.get("n_heads_in_group")
        if not attention.get("no_op") and (type(group) is not int or group < 1 or num_heads % group):
            raise config.error(f"block_configs[{number}] has n_heads_in_group {short(group)} for {num_heads} heads")
        found.append({"no_op": bool(attention.get("no_op")), "n_heads_in_group": group})
    return found


def _chunked_layers(config: Config, num_layers: int) -> list[str]:
    """Return Llama 4's layers: chunks where positions are rotated, full attention where they are not."""
    rotated = config.get("no_rope_layers")
    if rotated:
        if not isinstance(rotated, list) or len(rotated) != num_layers or not set(map(str, rotated)) <= {"0", "1"}:
            raise config.error(f"no_rope_layers is {short(rotated)}, it must be {num_layers} times 0 or 1")
        return ["chunks" if rotates else "full" for rotates in rotated]
    every = config.integer("no_rope_layer_interval", at_most=MAX_LAYERS)
    return ["full" if index % every == 0 else "chunks" for index in range(1, num_layers + 1)]


def _layers_with_states(config: Config) -> list[str]:
    """Return the kinds of the layers of a model with states in some or all."""
    layout = config.states.get("layout")
    if layout is not None:
        kinds = ["full", "state"] if layout == "in every layer" else ["state"]
        return kinds * config.integer("num_hidden_layers", at_most=MAX_LAYERS)
    pattern = config.get("hybrid_override_pattern")
    if pattern is not None:
        if not isinstance(pattern, str) or not set(pattern) <= set(LETTERS):
            raise config.error(f"hybrid_override_pattern is {short(pattern)}, it must be made of M, *, - and E")
        return [LETTERS[letter] for letter in pattern]
    if "kv_lora_rank" in config.implied:
        return _kimi_layers(config)
    types = config.get("layers_block_type") or config.get("layer_types")
    if types is not None:
        is_said = config.get("num_hidden_layers") is not None or not isinstance(types, list)
        length = config.integer("num_hidden_layers", at_most=MAX_LAYERS) if is_said else len(types)
        return _listed_layers(config, types, length)
    num_layers = config.integer("num_hidden_layers", at_most=MAX_LAYERS)
    if config.get("full_attn_idxs") is not None:
        return _indexed_layers(config, config.get("full_attn_idxs"), num_layers)
    if config.get("attn_layer_period"):
        period = config.integer("attn_layer_period", at_most=MAX_LAYERS)
        offset = config.get("attn_layer_offset")
        if type(offset) is not int or not 0 <= offset < period:
            raise config.error(f"attn_layer_offset is {short(offset)}, it must be from 0 to {period - 1}")
        return ["full" if index % period == offset else "state" for index in range(num_layers)]
    if config.get("full_attention_interval") is None:
        raise config.error("it does not say which layers keep a state: layer_types is missing")
    every = config.integer("full_attention_interval", at_most=MAX_LAYERS)
    return ["full" if index % every == 0 else "state" for index in range(1, num_layers + 1)]


def _kimi_layers(config: Config) -> list[str]:
    """Return Kimi's layers. They are counted from 1, and each is in one of two lists."""
    num_layers = config.integer("num_hidden_layers", at_most=MAX_LAYERS)
    kinds: dict[int, str] = {}
    for field, kind in (("kda_layers", "state"), ("full_attn_layers", "full")):
        numbers = config.get(f"linear_attn_config.{field}")
        if not isinstance(numbers, list) or not all(type(number) is int for number in numbers):
            raise config.error(f"linear_attn_config.{field} is {short(numbers)}, it must be a list of layers from 1 on")
        kinds |= dict.fromkeys(numbers, kind)
    if sorted(kinds) != list(range(1, num_layers + 1)):
        raise config.error(f"linear_attn_config names other layers than 1 to {num_layers}")
    return [kinds[number] for number in range(1, num_layers + 1)]


def _indexed_layers(config: Config, indices: object, num_layers: int) -> list[str]:
    if not isinstance(indices, list) or not all(type(index) is int and 0 <= index < num_layers for index in indices):
        raise config.error(
            f"full_attn_idxs is {short(indices)}, it must be a list of layers from 0 to {num_layers - 1}"
        )
    return ["full" if index in indices else "state" for index in range(num_layers)]


def read_indexers(config: Config, num_layers: int) -> list[bool]:
    """Return whether each sparse layer has an indexer. A layer without one uses the choice of an earlier layer.

    Source: vLLM 0.33, `DeepseekV2MLAAttention` (models/deepseek_v2.py). It does not read `indexer_types`.
    """
    pattern = config.get("index_topk_pattern")
    if pattern is not None:
        if not isinstance(pattern, str) or not set(pattern) <= {"F", "S"} or len(pattern) != num_layers:
            raise config.error(f"index_topk_pattern is {short(pattern)}, it must be {num_layers} times F or S")
        found = [letter == "F" for letter in pattern]
    else:
        every = config.integer("index_topk_freq", at_most=MAX_LAYERS)
        offset = config.integer("index_skip_topk_offset", at_most=MAX_LAYERS)
        found = [max(layer - offset + 1, 0) % every == 0 for layer in range(num_layers)]
    types = config.get("indexer_types")
    if types is not None and types != ["full" if has_one else "shared" for has_one in found]:
        raise config.error(
            "indexer_types differs from what index_topk_freq or index_topk_pattern says, which vLLM reads"
        )
    return found

"""The parameters of a model, counted from its config.json.

    embeddings      vocabulary x hidden size, twice if input and output are not tied
    attention       queries, keys, values and output; with latent vectors: their projections
    states          the projections of a gated delta net, and its convolution
    feed-forward    three matrices per layer, or two; with experts: three for each expert, and a router

Biases and norms are left out. A test compares the counts with transformers' models.
Only the types in `[weights]` of `config_fields.toml` are counted.
"""

from typing import Any, NamedTuple

from mini_kv.tools.planning.config_file import Config, short

COUNTED = {"full", "window", "chunks", "latent", "state"}
"""The kinds of layers that mix tokens, whose weights are counted."""


class Parameters(NamedTuple):
    """The parameters of a model."""

    total: int
    active: int
    """Parameters that one token uses."""
    without: tuple[str, ...] = ()
    """Parts of the file whose parameters are not counted: of images and sounds."""


def count_parameters(config: Config, sizes: dict[str, Any]) -> Parameters:
    """Return the parameters of the decoder.

    Args:
        config: the file.
        sizes: its layers, heads and elements per head, as `read_config` has them.

    Raises `ConfigError` with the reason if they cannot be counted.
    """
    rule = _rule(config)
    hidden = config.integer("hidden_size")
    tables = 1 if _is_tied(config, rule) else 2
    shared = tables * _number(config, "vocab_size", rule) * hidden
    shared += sum(_attention(config, kind, sizes, rule) for kind in sizes["layers"])
    num_layers = len(sizes["layers"])
    if "experts" not in rule:
        matrices = rule.get("matrices", 3)
        total = shared + num_layers * matrices * hidden * config.integer("intermediate_size")
        return Parameters(total, total, config.other_parts)
    with_experts = _layers_with_experts(config, num_layers)
    dense = num_layers - with_experts
    if dense:
        shared += dense * 3 * hidden * config.integer("intermediate_size")
    number = _number_of_experts(config)
    expert = 3 * hidden * config.integer(rule.get("width", "moe_intermediate_size"))
    shared += with_experts * (number * hidden + 3 * hidden * _shared_width(config))
    return Parameters(
        shared + with_experts * number * expert,
        shared + with_experts * config.integer("num_experts_per_tok", at_most=number) * expert,
        config.other_parts,
    )


def _rule(config: Config) -> dict[str, Any]:
    """Return the rule of the file's `model_type`. Raises `ConfigError` if there is none, or not for this file."""
    rule: dict[str, Any] | None = config.weights
    if rule is None:
        raise config.error(f"plan does not count the weights of model_type {config.model_type!r}")
    if config.quantization:
        method = config.quantization.get("quant_method") or config.quantization.get("quant_algo")
        raise config.error(f"its weights are quantized{f' ({method})' if isinstance(method, str) else ''}")
    others = [name for name, value in config.values.items() if "expert" in name and isinstance(value, int) and value]
    if others and "experts" not in rule:
        raise config.error(f"it has {others[0][:60]}, and plan counts no experts for model_type {config.model_type!r}")
    if config.get("moe_layer_freq") not in (None, 1):
        raise config.error("it has moe_layer_freq, and plan does not know which layers then have experts")
    if config.get("attn_output_gate") is False:
        raise config.error("attn_output_gate is false, and plan counts the weights of a gate")
    return rule


def _is_tied(config: Config, rule: dict[str, Any]) -> bool:
    """Return whether input and output share one table."""
    said = {values["tie_word_embeddings"] for values in config.levels if "tie_word_embeddings" in values}
    if not said and "tied" in rule:
        said = {rule["tied"]}
    if len(said) != 1 or not isinstance(tied := said.pop(), bool):
        raise config.error("it does not say clearly whether tie_word_embeddings is true")
    return tied


def _number(config: Config, name: str, rule: dict[str, Any]) -> int:
    """Return a number of the file, or the one that the rule has for files that leave it out."""
    if name not in config.values and name in rule:
        return int(rule[name])
    return config.integer(name)


def _attention(config: Config, kind: str, sizes: dict[str, Any], rule: dict[str, Any]) -> int:
    """Return the parameters of a layer that mixes tokens."""
    hidden, heads = config.integer("hidden_size"), sizes["num_heads"]
    if kind not in COUNTED:
        raise config.error("plan does not count the weights of all its kinds of layers")
    if kind == "state":
        keys = config.integer("linear_num_key_heads") * config.integer("linear_key_head_dim")
        value_heads = config.integer("linear_num_value_heads")
        values = value_heads * config.integer("linear_value_head_dim")
        kernel = config.integer("linear_conv_kernel_dim")
        return hidden * (2 * keys + 3 * values + 2 * value_heads) + kernel * (2 * keys + values)
    if kind == "latent":
        rank, rotated = config.integer("kv_lora_rank"), config.integer("qk_rope_head_dim")
        plain, value = config.integer("qk_nope_head_dim"), config.integer("v_head_dim")
        queries = heads * (plain + rotated)
        if config.get("q_lora_rank"):
            query_rank = config.integer("q_lora_rank")
            queries = query_rank * (hidden + queries)
        else:
            queries *= hidden
        return int(queries + hidden * (rank + rotated) + rank * heads * (plain + value) + heads * value * hidden)
    queries = heads * sizes["head_size"]
    gate = queries if rule.get("gate") else 0
    return int(hidden * (2 * queries + gate + 2 * sizes["num_kv_heads"] * sizes["head_size"]))


def _layers_with_experts(config: Config, num_layers: int) -> int:
    """Return how many layers have experts: not the first few, not those listed, and every n-th of the others."""
    types = config.get("mlp_layer_types")
    if types is not None:
        if not isinstance(types, list) or len(types) != num_layers or not set(map(str, types)) <= {"dense", "sparse"}:
            raise config.error(f"mlp_layer_types is {short(types)}, it must be {num_layers} times dense or sparse")
        return types.count("sparse")
    first = config.get("first_k_dense_replace") or 0
    every = config.get("decoder_sparse_step") or 1
    dense = config.get("mlp_only_layers") or []
    if type(first) is not int or type(every) is not int or not isinstance(dense, list):
        raise config.error("it does not say clearly which layers have experts")
    return sum(layer >= first and layer not in dense and (layer + 1) % every == 0 for layer in range(num_layers))


def _number_of_experts(config: Config) -> int:
    """Return the number of experts per layer, which has several names."""
    names = [name for name in ("num_experts", "num_local_experts", "n_routed_experts") if config.get(name) is not None]
    numbers = {config.integer(name) for name in names}
    if len(numbers) != 1:
        raise config.error("it does not say clearly how many experts a layer has")
    return numbers.pop()


def _shared_width(config: Config) -> int:
    """Return the width of the experts that every token uses."""
    for name in ("shared_expert_intermediate_size", "shared_intermediate_size"):
        if config.get(name):
            return config.integer(name)
    if config.get("n_shared_experts"):
        return config.integer("n_shared_experts") * config.integer("moe_intermediate_size")
    return 0

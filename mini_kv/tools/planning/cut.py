"""One card's share of a cache that is cut over several cards. `mini_kv.engine.tensor_parallel` runs a model so."""

from collections.abc import Mapping
from dataclasses import replace

from mini_kv.core.errors import ConfigError
from mini_kv.core.kv_cache_interface import AttentionSpec, KVCacheSpec


def on_one_card(specs: Mapping[str, KVCacheSpec], tensor_parallel_size: int) -> dict[str, KVCacheSpec]:
    """Return one card's share of each layer if the model is cut over several: its KV heads, at least one.

    Raises `ConfigError` for heads that cannot be divided evenly. `states` has the rule for states.
    Source: vLLM `ModelConfig.get_num_kv_heads`.
    """
    if tensor_parallel_size < 1:
        raise ConfigError(f"tensor_parallel_size is {tensor_parallel_size}, it must be at least 1")
    found: dict[str, KVCacheSpec] = {}
    for name, spec in specs.items():
        if isinstance(spec, AttentionSpec):
            heads = spec.num_kv_heads
            if heads % tensor_parallel_size and tensor_parallel_size % heads:
                raise ConfigError(f"{name} has {heads} KV heads: {tensor_parallel_size} cards cannot share them evenly")
            spec = replace(spec, num_kv_heads=max(1, heads // tensor_parallel_size))
        found[name] = spec
    return found

"""The configuration of an engine: sizes, limits, the attention backend."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Self

from mini_kv.core.errors import ConfigError
from mini_kv.core.kv_cache_planning import CACHE_DTYPES
from mini_kv.core.sched.config import SchedulerConfig
from mini_kv.engine.drafts import SpeculativeConfig
from mini_kv.tiers.tier_config import TierConfig

DEFAULT_KV_CACHE_MEMORY = 64 << 20
"""Bytes of KV memory if neither blocks nor bytes are given."""

NOT_HERE = {
    "gpu_memory_utilization": "no forward is measured to see what it leaves free; give kv_cache_memory_bytes",
    "tensor_parallel_size": "the engine is one process on one device",
    "pipeline_parallel_size": "the engine is one process on one device",
    "data_parallel_size": "the engine is one process on one device",
    "quantization": "weights are floating-point numbers; keys and values may have 8 bits, by kv_cache_dtype",
    "enable_lora": "there are no adapters",
    "structured_outputs_config": "the engine has no grammars that restrict the next token",
    "limit_mm_per_prompt": "prompts are text",
    "compilation_config": "nothing is compiled or captured ahead",
    "kv_events_config": "an engine takes a publisher: tools.serve.kv_events_publisher; generate has --kv-events",
    "kv_transfer_config": "kv_tiers moves blocks to memory, disk or a server, but not to another engine",
    "async_scheduling": "a step is planned when the one before is done",
    "enforce_eager": "nothing is captured, so every step is eager",
    "mamba_block_size": "states are kept once per block, and a block has enough tokens to cover the size of a state",
    "mamba_cache_mode": "states are kept where a step ends, which is at a block's end: vLLM's mode align",
    "mamba_cache_dtype": "a state has the model's dtype",
    "kv_sharing_fast_prefill": "every token of a prompt goes through the layers that share keys and values, too",
    "prefix_cache_retention_interval": "a KVCacheManager takes it, in its KVCacheConfig; the engine keeps every key",
    "watermark": "a KVCacheManager takes it; the engine's manager reserves no free blocks",
    "prefix_caching_hash_algo": "a KVCacheManager takes it, as hash_name; the engine's hashes are SHA-256",
    "swap_space": "blocks that the pool evicts are kept in tiers, see kv_tiers; vLLM 0.33 has no such option either",
    "trust_remote_code": "mini_kv runs no code from a checkpoint",
    "tokenizer": "the tokenizer is read from the model's folder",
}
"""Options of vLLM's `EngineArgs` that we do not have, each with the reason."""


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """The configuration of an engine."""

    block_size: int = 16
    """Tokens per block."""
    num_blocks: int | None = None
    """Blocks of the pool, the null block included."""
    kv_cache_memory_bytes: int | None = None
    """Bytes of the pool, instead of `num_blocks`. With neither, the pool has 64 MiB."""
    enable_prefix_caching: bool = True
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    backend: str = "auto"
    """The implementation of attention. See `paged_attention`."""
    speculative_config: SpeculativeConfig | None = None
    """How drafts are proposed. `None`: no drafts, so a step computes one new token per request."""
    kv_cache_dtype: str = "auto"
    """Form of keys and values: `"auto"` is the model's own, `"int8_per_token_head"` and `"fp8"` have 8 bits."""
    kv_tiers: TierConfig | None = None
    """Tiers for the blocks that the pool evicts: memory, disk, a server. `None`: no tiers."""
    debug_poison: bool = False
    """Whether memory that no request may read is filled with NaN before each step. See `poison`."""
    seed: int = 0
    """Seed of the requests that do not set one."""
    multi_tenant: bool = False
    """Whether the requests' tenants must not learn of each other's prompts.

    If so, each request needs a `cache_salt`, which the server derives from the tenant. No output has the number of
    cached tokens: a tenant that sees this number can guess another's prompt piece by piece. Within one salt
    the time to the first token still reveals hits. `stats` are sums over all tenants, for the operator.
    """

    @classmethod
    def from_engine_args(cls, **args: Any) -> Self:
        """Return a config from flat options, as `LLM` and vLLM's command line take them.

        Args:
            args: the names of `EngineConfig` and of `SchedulerConfig`, which are vLLM's, and `num_gpu_blocks_override`
                for `num_blocks`. `speculative_config` and `kv_tiers` may be dictionaries.

        Raises `ConfigError` for an unknown name, with the reason if vLLM has this option. Raises it too for a value
        that is never allowed. Needs no PyTorch. Source: vLLM
        `EngineArgs.create_engine_config` (engine/arg_utils.py).
        """
        if "num_gpu_blocks_override" in args:
            args["num_blocks"] = args.pop("num_gpu_blocks_override")
        ours = {each.name for each in fields(cls)} - {"scheduler"}
        limits = {each.name for each in fields(SchedulerConfig)}
        for name in args:
            if name not in ours | limits:
                reason = NOT_HERE.get(name, f"there are: {', '.join(sorted(ours | limits))}")
                raise ConfigError(f"there is no option {name}: {reason}")
        if isinstance(args.get("speculative_config"), Mapping):
            args["speculative_config"] = _speculative_config(args["speculative_config"])
        if isinstance(args.get("kv_tiers"), Mapping):
            args["kv_tiers"] = _tier_config(args["kv_tiers"])
        scheduler = SchedulerConfig(**{name: value for name, value in args.items() if name in limits})
        return cls(scheduler=scheduler, **{name: value for name, value in args.items() if name in ours})

    def __post_init__(self) -> None:
        for name, least in (("block_size", 1), ("num_blocks", 2), ("kv_cache_memory_bytes", 1)):
            _check_number(name, getattr(self, name), least, may_be_none=name != "block_size")
        if self.kv_cache_dtype not in CACHE_DTYPES:
            raise ConfigError(f"kv_cache_dtype is {self.kv_cache_dtype!r}; there are: {', '.join(CACHE_DTYPES)}")
        if self.num_blocks is not None and self.kv_cache_memory_bytes is not None:
            raise ConfigError("num_blocks and kv_cache_memory_bytes both set the size of the pool: give one")


def _check_number(name: str, value: object, least: int, *, may_be_none: bool) -> None:
    """Raise `ConfigError` for a value that is not a whole number or is too small."""
    if value is None and may_be_none:
        return
    if not isinstance(value, int) or isinstance(value, bool):
        raise ConfigError(f"{name} is {value!r}, it must be a whole number")
    if value < least:
        why = ": the null block takes one" if name == "num_blocks" else ""
        raise ConfigError(f"{name} is {value}, it must be at least {least}{why}")


def _tier_config(args: Mapping[str, Any]) -> TierConfig:
    """Return the config with these options. A folder may be a string. Raises `ConfigError` for an unknown option."""
    known = [each.name for each in fields(TierConfig)]
    for name in args:
        if name not in known:
            raise ConfigError(f"kv_tiers has no option {name}: there are {', '.join(known)}")
    folder = args.get("disk_folder")
    return TierConfig(**{**args, "disk_folder": None if folder is None else Path(folder)})


def _speculative_config(args: Mapping[str, Any]) -> SpeculativeConfig:
    """Return the config with these options. If only one length is given, it sets both. Unknown: `ConfigError`."""
    known = [each.name for each in fields(SpeculativeConfig)]
    for name in args:
        if name not in known:
            raise ConfigError(f"speculative_config has no option {name}: there are {', '.join(known)}")
    if "num_speculative_tokens" not in args:
        raise ConfigError("speculative_config needs num_speculative_tokens")
    lookup = [args[name] for name in ("prompt_lookup_min", "prompt_lookup_max") if name in args]
    lengths = {"prompt_lookup_min": lookup[0], "prompt_lookup_max": lookup[-1]} if lookup else {}
    return SpeculativeConfig(**{**lengths, **args})

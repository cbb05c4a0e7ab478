"""How an engine is built: sizes, limits, what computes attention."""

from dataclasses import dataclass, field, fields
from typing import Any, Self

from mini_kv.core.errors import ConfigError
from mini_kv.core.sched.config import SchedulerConfig

DEFAULT_KV_CACHE_MEMORY = 64 << 20
"""Bytes of KV memory where neither blocks nor bytes are given."""

NOT_HERE = {
    "gpu_memory_utilization": "no forward is measured to see what it leaves free; give kv_cache_memory_bytes",
    "tensor_parallel_size": "the engine is one process on one device",
    "pipeline_parallel_size": "the engine is one process on one device",
    "data_parallel_size": "the engine is one process on one device",
    "quantization": "weights are floating-point numbers; keys and values may have 8 bits, by kv_cache_dtype",
    "enable_lora": "there are no adapters",
    "speculative_config": "a draft is planned for, by num_lookahead_tokens, and LLM proposes none",
    "async_scheduling": "a step is planned when the one before is done",
    "enforce_eager": "nothing is captured, so every step is eager",
    "swap_space": "blocks that the pool evicts go on in tiers, see TieredEngine; vLLM 0.33 has no such option either",
    "trust_remote_code": "no code that lies in a checkpoint is run",
    "tokenizer": "the tokenizer lies in the model's folder",
}
"""Options of vLLM's `EngineArgs` that we have no place for, and why."""


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """How an engine is built."""

    block_size: int = 16
    """Tokens per block."""
    num_blocks: int | None = None
    """Blocks of the pool, the null block included."""
    kv_cache_memory_bytes: int | None = None
    """Instead of `num_blocks`: the bytes that the pool may take. Neither: 64 MiB."""
    enable_prefix_caching: bool = True
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    backend: str = "auto"
    """The implementation of attention; see `paged_attention`."""
    kv_cache_dtype: str = "auto"
    """In which form keys and values are kept: `"auto"`, the model's own; `"int8_per_token_head"` or `"fp8"`, 8 bits."""
    debug_poison: bool = False
    """Whether memory that no request may read is filled with NaN before each step; see `poison`."""
    seed: int = 0
    """Seed of the requests that bring none."""
    multi_tenant: bool = False
    """Whether requests come from tenants that must not learn of each other's prompts.

    Then each must bring a `cache_salt`, which the server derives from the tenant, and no output says how many tokens
    were found in the cache: a tenant that sees this number can guess another's prompt piece by piece. Within one salt
    the time to the first token still tells; and `stats` are sums over all tenants, meant for the operator.
    """

    @classmethod
    def from_engine_args(cls, **args: Any) -> Self:
        """Return a config from flat options, as `LLM` and vLLM's command line take them.

        Args:
            args: the names of `EngineConfig` and of `SchedulerConfig`, which are vLLM's, and `num_gpu_blocks_override`
                for `num_blocks`.

        Raises `ConfigError` for a name that is neither, and says why where vLLM has it and we do not. Source: vLLM
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
        scheduler = SchedulerConfig(**{name: value for name, value in args.items() if name in limits})
        return cls(scheduler=scheduler, **{name: value for name, value in args.items() if name in ours})

    def __post_init__(self) -> None:
        if self.num_blocks is not None and self.kv_cache_memory_bytes is not None:
            raise ConfigError("num_blocks and kv_cache_memory_bytes both say how large the pool is: give one")

"""How an engine is built: sizes, limits, what computes attention."""

from dataclasses import dataclass, field

from mini_kv.core.errors import ConfigError
from mini_kv.core.sched.config import SchedulerConfig

DEFAULT_KV_CACHE_MEMORY = 64 << 20
"""Bytes of KV memory where neither blocks nor bytes are given."""


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

    def __post_init__(self) -> None:
        if self.num_blocks is not None and self.kv_cache_memory_bytes is not None:
            raise ConfigError("num_blocks and kv_cache_memory_bytes both say how large the pool is: give one")

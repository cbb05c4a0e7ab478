"""What the cache is made of: the shape of a layer's KV, the groups of layers, the number of blocks."""

from dataclasses import dataclass

from mini_kv.core.errors import ConfigError


@dataclass(frozen=True, slots=True)
class FullAttentionSpec:
    """Shape of one layer's KV where every token attends to all tokens before it.

    Source: vLLM `FullAttentionSpec` (v1/kv_cache_interface.py).
    """

    block_size: int
    """Tokens a block."""
    num_kv_heads: int = 1
    head_size: int = 1
    """Elements a head."""
    dtype_bytes: int = 2
    """Bytes an element; 2 for bf16."""

    def __post_init__(self) -> None:
        for name in ("block_size", "num_kv_heads", "head_size", "dtype_bytes"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}, it must be at least 1")

    @property
    def page_size_bytes(self) -> int:
        """Bytes of one block of one layer: keys and values, hence the 2."""
        return 2 * self.block_size * self.num_kv_heads * self.head_size * self.dtype_bytes


@dataclass(frozen=True, slots=True)
class KVCacheGroupSpec:
    """Layers that share one block table, and the shape that they have in common."""

    layer_names: tuple[str, ...]
    kv_cache_spec: FullAttentionSpec


@dataclass(frozen=True, slots=True)
class KVCacheConfig:
    """How many blocks there are, and which groups of layers take them."""

    num_blocks: int
    """All physical blocks, the null block included: one fewer can be handed out."""
    kv_cache_groups: tuple[KVCacheGroupSpec, ...]

    def __post_init__(self) -> None:
        if self.num_blocks < 2:
            raise ConfigError(f"num_blocks is {self.num_blocks}: the null block takes one, so it must be at least 2")
        if not self.kv_cache_groups:
            raise ConfigError("a KV cache needs at least one group of layers")

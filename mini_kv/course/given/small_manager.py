"""A cache manager of one group of full attention, in which any part can be replaced."""

from collections.abc import Callable
from typing import Any

from mini_kv.core.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from mini_kv.core.kv_cache_manager import KVCacheManager
from mini_kv.core.parts import KVCacheParts
from mini_kv.core.single_type_kv_cache_manager import FullAttentionManager


def make_manager(
    num_blocks: int,
    block_size: int,
    make: Callable[..., KVCacheManager] = KVCacheManager,
    tables: type[FullAttentionManager] = FullAttentionManager,
    **parts: Any,
) -> KVCacheManager:
    """Return a manager of one group of full attention with replaced parts. `tables` manages the block tables."""
    group = KVCacheGroupSpec(("layers",), FullAttentionSpec(block_size))
    all_parts = KVCacheParts(**{"manager_classes": {FullAttentionSpec: tables}, **parts})
    return make(KVCacheConfig(num_blocks, (group,)), parts=all_parts)

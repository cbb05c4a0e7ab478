"""lab-12, the engine's own way: every part is handed on. This file makes the lab's tests run on the engine.

The engine has the two classes and the planning in three modules, so `LAB_IMPL=engine`, which means one, cannot name
them all.
"""

from collections.abc import Mapping, Sequence

from mini_kv.core import kv_cache_coordinator, single_type_kv_cache_manager
from mini_kv.core.block import BlockHash, KVCacheBlock
from mini_kv.core.kv_cache_interface import KVCacheGroupSpec, KVCacheSpec
from mini_kv.core.kv_cache_planning import get_kv_cache_groups


class SlidingWindowManager(single_type_kv_cache_manager.SlidingWindowManager):
    """The engine's manager, which also remembers how far it has come, and can hit where larger blocks end too."""

    def get_num_skipped_tokens(self, num_computed_tokens: int) -> int:
        return single_type_kv_cache_manager.SlidingWindowManager.get_num_skipped_tokens(self, num_computed_tokens)

    def remove_skipped_blocks(self, request_id: str, num_computed_tokens: int) -> None:
        single_type_kv_cache_manager.SlidingWindowManager.remove_skipped_blocks(self, request_id, num_computed_tokens)

    def find_longest_cache_hit(self, block_hashes: Sequence[BlockHash], max_length: int) -> list[KVCacheBlock]:
        return single_type_kv_cache_manager.SlidingWindowManager.find_longest_cache_hit(self, block_hashes, max_length)


class HybridKVCacheCoordinator(kv_cache_coordinator.HybridKVCacheCoordinator):
    """The engine's coordinator, whose groups may have blocks of different sizes."""

    def find_longest_cache_hit(
        self, block_hashes: Sequence[BlockHash], max_cache_hit_length: int
    ) -> tuple[tuple[list[KVCacheBlock], ...], int]:
        return super().find_longest_cache_hit(block_hashes, max_cache_hit_length)


def group_layers(kv_cache_spec: Mapping[str, KVCacheSpec]) -> tuple[KVCacheGroupSpec, ...]:
    """Return the engine's groups; where all blocks have equal bytes, it changes no spec."""
    return get_kv_cache_groups(kv_cache_spec, disable_hybrid_kv_cache_manager=False)

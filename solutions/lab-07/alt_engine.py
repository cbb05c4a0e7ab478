"""lab-07, the engine's own way: every method is handed on. This file makes the lab's tests run on the engine.

The engine has these five classes in three modules, so `LAB_IMPL=engine`, which means one module, cannot name them all.
"""

from collections.abc import Iterable, Sequence

from mini_kv.core import block_pool, kv_cache_manager, single_type_kv_cache_manager, stats
from mini_kv.core.block import BlockHash, BlockHashWithGroupId, KVCacheBlock
from mini_kv.core.kv_cache_manager import KVCacheBlocks
from mini_kv.core.request import Request


class BlockHashToBlockMap(block_pool.BlockHashToBlockMap):
    """The engine's index, which pays for a dict only where a key has two blocks."""

    def get_one_block(self, key: BlockHashWithGroupId) -> KVCacheBlock | None:
        return super().get_one_block(key)

    def insert(self, key: BlockHashWithGroupId, block: KVCacheBlock) -> None:
        super().insert(key, block)

    def pop(self, key: BlockHashWithGroupId, block_id: int) -> KVCacheBlock | None:
        return super().pop(key, block_id)


class BlockPool(block_pool.BlockPool):
    """The engine's pool."""

    def cache_full_blocks(
        self,
        blocks: Sequence[KVCacheBlock],
        block_hashes: Sequence[BlockHash],
        num_cached_blocks: int,
        num_full_blocks: int,
        kv_cache_group_id: int = 0,
    ) -> None:
        block_pool.BlockPool.cache_full_blocks(
            self, blocks, block_hashes, num_cached_blocks, num_full_blocks, kv_cache_group_id
        )

    def _maybe_evict_cached_block(self, block: KVCacheBlock) -> bool:
        return block_pool.BlockPool._maybe_evict_cached_block(self, block)

    def free_blocks(self, ordered_blocks: Iterable[KVCacheBlock]) -> None:
        block_pool.BlockPool.free_blocks(self, ordered_blocks)


class FullAttentionManager(single_type_kv_cache_manager.FullAttentionManager):
    """The engine's manager of one group."""

    def find_longest_cache_hit(self, block_hashes: Sequence[BlockHash], max_length: int) -> list[KVCacheBlock]:
        return super().find_longest_cache_hit(block_hashes, max_length)


class KVCacheManager(kv_cache_manager.KVCacheManager):
    """The engine's manager."""

    def get_computed_blocks(self, request: Request) -> tuple[KVCacheBlocks, int]:
        return super().get_computed_blocks(request)


class PrefixCacheStats(stats.PrefixCacheStats):
    """The engine's counters."""

    def record(self, num_tokens: int, num_hits: int) -> None:
        stats.PrefixCacheStats.record(self, num_tokens, num_hits)

"""lab-07: the reference solution."""

from collections.abc import Iterable, Sequence

from mini_kv.core import block_pool, kv_cache_manager, single_type_kv_cache_manager, stats
from mini_kv.core.block import BlockHash, BlockHashWithGroupId, KVCacheBlock
from mini_kv.core.block_hash import make_block_hash_with_group_id
from mini_kv.core.errors import BlockStateError
from mini_kv.core.kv_cache_manager import KVCacheBlocks
from mini_kv.core.request import Request


class BlockHashToBlockMap:
    """The index: which blocks carry a key, the oldest first."""

    def __init__(self) -> None:
        self._blocks: dict[BlockHashWithGroupId, dict[int, KVCacheBlock]] = {}

    def get_one_block(self, key: BlockHashWithGroupId) -> KVCacheBlock | None:
        """Return the oldest block under `key`; None if there is none."""
        return next(iter(self._blocks.get(key, {}).values()), None)

    def insert(self, key: BlockHashWithGroupId, block: KVCacheBlock) -> None:
        """Enter `block` under `key`, as the youngest there."""
        self._blocks.setdefault(key, {})[block.block_id] = block

    def pop(self, key: BlockHashWithGroupId, block_id: int) -> KVCacheBlock | None:
        """Take the block with this number out from under `key`, and return it; None if it is not there."""
        blocks = self._blocks.get(key, {})
        block = blocks.pop(block_id, None)
        if block is not None and not blocks:
            del self._blocks[key]
        return block

    def clear(self) -> None:
        """Forget every key."""
        self._blocks.clear()

    def items(self) -> list[tuple[BlockHashWithGroupId, list[KVCacheBlock]]]:
        """Return every key with its blocks, oldest first."""
        return [(key, list(blocks.values())) for key, blocks in self._blocks.items()]

    def __len__(self) -> int:
        """Return the number of keys."""
        return len(self._blocks)


class BlockPool(block_pool.BlockPool):
    """The engine's pool; how its blocks are cached, kept and evicted is ours."""

    def cache_full_blocks(
        self,
        blocks: Sequence[KVCacheBlock],
        block_hashes: Sequence[BlockHash],
        num_cached_blocks: int,
        num_full_blocks: int,
        kv_cache_group_id: int = 0,
    ) -> None:
        """Give the blocks that have just become full their hashes, and enter them in the index."""
        just_full = range(num_cached_blocks, num_full_blocks)
        for index in just_full:
            if blocks[index].block_hash is not None:
                raise BlockStateError(f"block {blocks[index].block_id} is cached already")
        for index in just_full:
            key = make_block_hash_with_group_id(block_hashes[index], kv_cache_group_id)
            blocks[index].block_hash = key
            self.cached_block_hash_to_block.insert(key, blocks[index])

    def _maybe_evict_cached_block(self, block: KVCacheBlock) -> bool:
        """Take the block's hash away, so that no lookup finds it any more; return whether it had one."""
        if block.block_hash is None:
            return False
        self.cached_block_hash_to_block.pop(block.block_hash, block.block_id)
        block.block_hash = None
        return True

    def free_blocks(self, ordered_blocks: Iterable[KVCacheBlock]) -> None:
        """Drop one reference from each block; those that no table holds any more join the free queue."""
        uncached: list[KVCacheBlock] = []
        cached: list[KVCacheBlock] = []
        for block in ordered_blocks:
            block.ref_cnt -= 1
            if block.ref_cnt == 0:
                (uncached if block.block_hash is None else cached).append(block)
        self.free_block_queue.prepend_n(uncached)
        self.free_block_queue.append_n(cached)


class FullAttentionManager(single_type_kv_cache_manager.FullAttentionManager):
    """The engine's manager of one group of layers; the lookup is ours."""

    def find_longest_cache_hit(self, block_hashes: Sequence[BlockHash], max_length: int) -> list[KVCacheBlock]:
        """Return the blocks of the longest cached prefix of at most `max_length` tokens."""
        hit: list[KVCacheBlock] = []
        for block_hash in block_hashes[: max_length // self.block_size]:
            found = self.block_pool.get_cached_block(block_hash, [self.kv_cache_group_id])
            if found is None:
                break
            hit += found
        return hit


class KVCacheManager(kv_cache_manager.KVCacheManager):
    """The engine's manager; what it answers to a scheduler is ours."""

    def get_computed_blocks(self, request: Request) -> tuple[KVCacheBlocks, int]:
        """Return the longest cached prefix of the request: its blocks, and its length in tokens."""
        max_cache_hit_length = request.num_tokens - 1
        hit, num_tokens = self.coordinator.find_longest_cache_hit(request.block_hashes, max_cache_hit_length)
        return KVCacheBlocks(hit), num_tokens


class PrefixCacheStats(stats.PrefixCacheStats):
    """Three counters that start at 0."""

    def record(self, num_tokens: int, num_hits: int) -> None:
        """Count one request of `num_tokens` tokens, of which `num_hits` were in the cache."""
        self.requests += 1
        self.queries += num_tokens
        self.hits += num_hits

"""lab-07, another way: lists in the index, plans before acts, and no call to the coordinator."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import takewhile

from mini_kv.core import block_pool, kv_cache_manager, single_type_kv_cache_manager, stats
from mini_kv.core.block import BlockHash, BlockHashWithGroupId, KVCacheBlock
from mini_kv.core.block_hash import make_block_hash_with_group_id
from mini_kv.core.errors import BlockStateError
from mini_kv.core.kv_cache_manager import KVCacheBlocks
from mini_kv.core.request import Request


class BlockHashToBlockMap:
    """Every key with the list of its blocks, oldest first: duplicates are few, so a list is searched as fast."""

    def __init__(self) -> None:
        self._blocks: defaultdict[BlockHashWithGroupId, list[KVCacheBlock]] = defaultdict(list)

    def get_one_block(self, key: BlockHashWithGroupId) -> KVCacheBlock | None:
        return self._blocks[key][0] if key in self._blocks else None

    def insert(self, key: BlockHashWithGroupId, block: KVCacheBlock) -> None:
        if block not in self._blocks[key]:
            self._blocks[key].append(block)

    def pop(self, key: BlockHashWithGroupId, block_id: int) -> KVCacheBlock | None:
        for place, block in enumerate(self._blocks.get(key, ())):
            if block.block_id == block_id:
                del self._blocks[key][place]
                if not self._blocks[key]:
                    del self._blocks[key]
                return block
        return None

    def clear(self) -> None:
        self._blocks = defaultdict(list)

    def items(self) -> list[tuple[BlockHashWithGroupId, list[KVCacheBlock]]]:
        return list(self._blocks.items())

    def __len__(self) -> int:
        return len(self._blocks)


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
        part = slice(num_cached_blocks, num_full_blocks)
        keys = [make_block_hash_with_group_id(block_hash, kv_cache_group_id) for block_hash in block_hashes[part]]
        if any(block.block_hash for block in blocks[part]):
            raise BlockStateError("a block is cached already")
        for block, key in zip(blocks[part], keys, strict=True):
            self.cached_block_hash_to_block.insert(key, block)
            block.block_hash = key

    def _maybe_evict_cached_block(self, block: KVCacheBlock) -> bool:
        key, block.block_hash = block.block_hash, None
        return key is not None and self.cached_block_hash_to_block.pop(key, block.block_id) is not None

    def free_blocks(self, ordered_blocks: Iterable[KVCacheBlock]) -> None:
        blocks = list(ordered_blocks)
        for block in blocks:
            block.ref_cnt -= 1
        idle = [block for block in blocks if block.ref_cnt == 0]
        for block in idle:
            if block.block_hash is not None:
                self.free_block_queue.append_n([block])
        for block in reversed(idle):  # one by one: the first that is given ends up in front
            if block.block_hash is None:
                self.free_block_queue.prepend_n([block])


class FullAttentionManager(single_type_kv_cache_manager.FullAttentionManager):
    """The engine's manager of one group."""

    def find_longest_cache_hit(self, block_hashes: Sequence[BlockHash], max_length: int) -> list[KVCacheBlock]:
        def blocks() -> Iterator[KVCacheBlock | None]:
            for block_hash in block_hashes:
                found = self.block_pool.get_cached_block(block_hash, (self.kv_cache_group_id,))
                yield found[0] if found else None

        room = range(max_length // self.block_size)
        known = takewhile(lambda block: block is not None, (block for _, block in zip(room, blocks(), strict=False)))
        return [block for block in known if block is not None]


class KVCacheManager(kv_cache_manager.KVCacheManager):
    """The engine's manager."""

    def get_computed_blocks(self, request: Request) -> tuple[KVCacheBlocks, int]:
        *hit, num_tokens = self.coordinator.find_longest_cache_hit(request.block_hashes, request.num_tokens - 1)
        return KVCacheBlocks(*hit), num_tokens


class PrefixCacheStats(stats.PrefixCacheStats):
    """The engine's counters."""

    def record(self, num_tokens: int, num_hits: int) -> None:
        self.requests, self.queries, self.hits = self.requests + 1, self.queries + num_tokens, self.hits + num_hits

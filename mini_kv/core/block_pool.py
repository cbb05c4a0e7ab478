"""The pool of blocks and the index of the prefix cache: one set of blocks serves as both.

The cache has no memory of its own. A block that is in no table goes to the free queue, with its block hash still in the
index. It is "cached-free" until a hit revives it or an allocation takes it from the front of the queue.
"""

from collections.abc import Callable, Iterable, Sequence

from mini_kv.core.block import BlockFactory, BlockHash, BlockHashWithGroupId, KVCacheBlock
from mini_kv.core.block_hash import make_block_hash_with_group_id, make_block_hashes_with_group_id
from mini_kv.core.errors import BlockStateError, ConfigError
from mini_kv.core.free_blocks import FreeBlocks, QueueFactory
from mini_kv.core.free_queue import FreeKVCacheBlockQueue


class BlockHashToBlockMap:
    """The index: maps each block hash to the blocks that have it, oldest first. Each group has entries of its own.

    Nearly every block hash has one block, so the value is that block. Only one with several blocks needs a dict.
    Source: vLLM `BlockHashToBlockMap` (v1/core/block_pool.py).
    """

    def __init__(self) -> None:
        self._blocks: dict[BlockHashWithGroupId, KVCacheBlock | dict[int, KVCacheBlock]] = {}

    def get_one_block(self, key: BlockHashWithGroupId) -> KVCacheBlock | None:
        """Return the oldest block with this block hash, or `None`."""
        found = self._blocks.get(key)
        return next(iter(found.values())) if isinstance(found, dict) else found

    def insert(self, key: BlockHashWithGroupId, block: KVCacheBlock) -> None:
        """Add an entry for `block`, after the blocks that have this block hash already."""
        found = self._blocks.setdefault(key, block)
        if isinstance(found, dict):
            found[block.block_id] = block
        elif found is not block:
            self._blocks[key] = {found.block_id: found, block.block_id: block}

    def pop(self, key: BlockHashWithGroupId, block_id: int) -> KVCacheBlock | None:
        """Remove the block with this id and block hash. Return it, or `None` if it is not in the index."""
        found = self._blocks.get(key)
        if isinstance(found, dict):
            block = found.pop(block_id, None)
            if len(found) == 1:
                self._blocks[key] = next(iter(found.values()))
            return block
        if found is None or found.block_id != block_id:
            return None
        del self._blocks[key]
        return found

    def clear(self) -> None:
        """Remove every entry."""
        self._blocks.clear()

    def items(self) -> list[tuple[BlockHashWithGroupId, list[KVCacheBlock]]]:
        """Return every block hash with its blocks, oldest first. Costs O(index), so use it for inspection only."""
        return [
            (key, list(found.values()) if isinstance(found, dict) else [found]) for key, found in self._blocks.items()
        ]

    def __len__(self) -> int:
        """Return the number of block hashes. One with several blocks counts once."""
        return len(self._blocks)


class BlockPool:
    """All blocks, the queue of free blocks, and the index of cached blocks.

    Block 0 is the null block: a placeholder in tables. It is never allocated and never cached.

    Source: vLLM `BlockPool` (v1/core/block_pool.py).
    """

    def __init__(
        self,
        num_gpu_blocks: int,
        enable_caching: bool = True,
        *,
        new_block: BlockFactory = KVCacheBlock,
        make_queue: QueueFactory = FreeKVCacheBlockQueue,
        make_index: Callable[[], BlockHashToBlockMap] = BlockHashToBlockMap,
    ) -> None:
        """Make `num_gpu_blocks` blocks, the null block included. For the other arguments see `KVCacheParts`."""
        if num_gpu_blocks < 2:
            raise ConfigError(f"num_gpu_blocks is {num_gpu_blocks}: the null block takes one, so at least 2")
        self.enable_caching = enable_caching
        self.blocks = [new_block(block_id) for block_id in range(num_gpu_blocks)]
        self.null_block = self.blocks[0]
        self.null_block.is_null = True
        self.make_queue = make_queue
        self.make_index = make_index
        self.free_block_queue: FreeBlocks = make_queue(self.blocks[1:])
        self.cached_block_hash_to_block = make_index()

    @property
    def num_free_blocks(self) -> int:
        """Number of blocks that are in no table, with or without a block hash."""
        return self.free_block_queue.num_free_blocks

    @property
    def usage(self) -> float:
        """Blocks in use as a share of all except the null block, 0.0 to 1.0. A cached-free block is not in use."""
        return 1.0 - self.num_free_blocks / (len(self.blocks) - 1)

    def get_cached_block(self, block_hash: BlockHash, group_ids: Sequence[int]) -> list[KVCacheBlock] | None:
        """Return the oldest block with this block hash per group, or `None` if a group has no such block."""
        found = []
        for group_id in group_ids:
            key = make_block_hash_with_group_id(block_hash, group_id)
            block = self.cached_block_hash_to_block.get_one_block(key)
            if block is None:
                return None
            found.append(block)
        return found

    def get_new_blocks(self, num_blocks: int) -> list[KVCacheBlock]:
        """Take `num_blocks` from the front of the free queue, each with `ref_cnt` 1 and no block hash.

        Eviction happens here: a block that was still cached loses its block hash now, because its memory is about
        to be overwritten. Raises `OutOfBlocksError` if too few blocks are free. In that case no block is taken.
        """
        blocks = self.free_block_queue.popleft_n(num_blocks)
        for block in blocks:
            if block.block_hash is not None:
                self._maybe_evict_cached_block(block)
            block.ref_cnt += 1
        return blocks

    def touch(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Add one reference to each block. A cached-free block is removed from any position in the free queue."""
        for block in blocks:
            if block.is_null:
                continue
            if block.ref_cnt == 0:
                self.free_block_queue.remove(block)
            block.ref_cnt += 1

    def free_blocks(self, ordered_blocks: Iterable[KVCacheBlock]) -> None:
        """Drop one reference from each block. Blocks that are then in no table go to the free queue.

            before      [ a  b  c ]
            after       [ x  y  a  b  c  p  q ]         freed: x and y, which have no hash, and p and q, which have one

        Blocks without a hash are useless and go to the front. Blocks with one go to the back. Both are added in the
        order given, first to be reused first. Callers give a table from its tail to its head, because a prefix is
        useful without the blocks after it, and useless without the blocks before it.

        Raises `BlockStateError` if a block is given twice or is in no table. In that case nothing changes.
        """
        blocks = [block for block in ordered_blocks if not block.is_null]
        if len(blocks) > 1 and len(set(blocks)) != len(blocks):
            raise BlockStateError("a block is given twice in one call", [block.block_id for block in blocks])
        for block in blocks:
            if block.ref_cnt < 1:
                raise BlockStateError(f"block {block.block_id} is freed, but no table holds it", [block.block_id])
        without_hash: list[KVCacheBlock] = []
        with_hash: list[KVCacheBlock] = []
        for block in blocks:
            block.ref_cnt -= 1
            if block.ref_cnt == 0:
                (without_hash if block.block_hash is None else with_hash).append(block)
        if without_hash:
            self.free_block_queue.prepend_n(without_hash)
        if with_hash:
            self.free_block_queue.append_n(with_hash)

    def cache_full_blocks(
        self,
        blocks: Sequence[KVCacheBlock],
        block_hashes: Sequence[BlockHash],
        num_cached_blocks: int,
        num_full_blocks: int,
        kv_cache_group_id: int = 0,
    ) -> None:
        """Give blocks `[num_cached_blocks, num_full_blocks)` of a table their hashes and enter them in the index.

            table       [ cached already | full now       | not full ]
                        0                num_cached_blocks  num_full_blocks

        Several blocks may have the same hash. A table's blocks are never replaced, so each request keeps its own block.
        Lookups return the oldest one. The null block has no KV, so it gets no hash.

        Raises `BlockStateError` if a block has a hash already. In that case nothing changes.
        """
        full_now = blocks[num_cached_blocks:num_full_blocks]
        for block in full_now:
            if block.block_hash is not None:
                raise BlockStateError(f"block {block.block_id} has a block hash already", [block.block_id])
        keys = make_block_hashes_with_group_id(block_hashes[num_cached_blocks:num_full_blocks], kv_cache_group_id)
        for block, key in zip(full_now, keys, strict=True):
            if not block.is_null:
                block.block_hash = key
                self.cached_block_hash_to_block.insert(key, block)

    def evict_blocks(self, block_ids: Iterable[int]) -> None:
        """Remove the hashes of these blocks, so that lookups no longer find them. References are unchanged.

        Raises `BlockStateError` for an id that is not a block's id. In that case nothing changes.
        """
        block_ids = list(block_ids)
        unknown = [block_id for block_id in block_ids if not 0 <= block_id < len(self.blocks)]
        if unknown:
            raise BlockStateError(f"there is no block {unknown[0]}; ids go from 0 to {len(self.blocks) - 1}", unknown)
        for block_id in block_ids:
            self._maybe_evict_cached_block(self.blocks[block_id])

    def reset_prefix_cache(self) -> bool:
        """Remove every block hash, as after a change of weights. Return whether it was done.

        While a block is in use nothing changes and the result is `False`: its request would continue to write into
        the emptied cache.
        """
        if self.num_free_blocks != len(self.blocks) - 1:
            return False
        self.cached_block_hash_to_block.clear()
        for block in self.blocks:
            if block.block_hash is not None:
                block.block_hash = None
        return True

    def recover(self) -> None:
        """Return to the initial state after an interrupted call: all blocks free, none cached. Costs O(pool)."""
        self.cached_block_hash_to_block.clear()
        for block in self.blocks:
            if block.block_hash is not None:
                block.block_hash = None
            while block.ref_cnt > 0:
                block.ref_cnt -= 1  # one at a time: each step is an event of the block's life
            block.prev_free_block = block.next_free_block = None
        self.free_block_queue = self.make_queue(self.blocks[1:])

    def _maybe_evict_cached_block(self, block: KVCacheBlock) -> bool:
        """Remove the block's hash from the block and from the index. Return whether it had one."""
        if block.block_hash is None:
            return False
        self.cached_block_hash_to_block.pop(block.block_hash, block.block_id)
        block.block_hash = None
        return True

"""The interface of an eviction policy: the free queue's operations, and one decision, the next block to evict.

    a table gives a block back      append_n, and the block waits         the policy says where
    a hit finds it                  remove: it is held again
    memory is needed                popleft_n: it is overwritten          the policy says which

Only blocks that wait can be chosen: one that a request holds is in no queue. Blocks without a block hash are worth
nothing, so they go before all others under every policy, and a policy never sees them.

    parts = parts_of(LFU)
    KVCacheManager(config, parts=parts)
"""

from collections.abc import Callable, Sequence
from typing import TypeAlias

from mini_kv.core.block import BlockHash, KVCacheBlock
from mini_kv.core.block_pool import BlockPool
from mini_kv.core.errors import BlockStateError, OutOfBlocksError
from mini_kv.core.free_blocks import FreeBlocks, QueueFactory
from mini_kv.core.free_queue import FreeKVCacheBlockQueue
from mini_kv.core.parts import KVCacheParts


class EvictionPolicy:
    """Free blocks, and which of them is reused next. A policy fills in `enter`, `leave`, `victim` and `in_order`.

    What it decides by must be counted and not clocked: the same calls give the same victims, on any machine, always.
    """

    def __init__(self, blocks: Sequence[KVCacheBlock]) -> None:
        self.num_blocks = len(blocks)
        """How many blocks the queue was made of: the size of the pool, the null block aside."""
        self._without_hash = FreeKVCacheBlockQueue([block for block in blocks if block.block_hash is None])
        self._waiting: set[KVCacheBlock] = set()
        self.append_n([block for block in blocks if block.block_hash is not None])

    def enter(self, block: KVCacheBlock) -> None:
        """Take in a block with a hash. Those that one call frees come one after another, from tail to head."""
        raise NotImplementedError

    def leave(self, block: KVCacheBlock) -> None:
        """Remove a free block, because a hit has found it."""
        raise NotImplementedError

    def victim(self) -> KVCacheBlock:
        """Give up the block that is worth least, and return it. Its block hash can still be read, for the last time."""
        raise NotImplementedError

    def in_order(self) -> list[KVCacheBlock]:
        """Return the blocks that wait here, the next victim first, and change nothing. May cost more than O(1)."""
        raise NotImplementedError

    def record_hit(self, blocks: Sequence[KVCacheBlock]) -> None:
        """See the blocks of a hit, from head to tail, before they are held. Told by `PolicyPool`; no matter here."""

    def record_miss(self, blocks: Sequence[KVCacheBlock], position: int) -> None:
        """See blocks that were computed and have their hash now; the first is number `position` of its prompt."""

    @property
    def num_free_blocks(self) -> int:
        """Number of blocks that are waiting, with a hash or without."""
        return self._without_hash.num_free_blocks + len(self._waiting)

    def popleft_n(self, n: int) -> list[KVCacheBlock]:
        """Take `n` blocks: those without a hash first, then victims. Raises `OutOfBlocksError`, and takes none."""
        if not 0 <= n <= self.num_free_blocks:
            raise OutOfBlocksError(requested=n, free=self.num_free_blocks)
        taken = self._without_hash.popleft_n(min(n, self._without_hash.num_free_blocks))
        while len(taken) < n:
            block = self.victim()
            self._waiting.remove(block)
            taken.append(block)
        return taken

    def remove(self, block: KVCacheBlock) -> None:
        """Take `block` out. Raises `BlockStateError` if it does not wait here."""
        if block not in self._waiting:
            self._without_hash.remove(block)
            return
        self.leave(block)
        self._waiting.remove(block)

    def append_n(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Add `blocks`. Raises `BlockStateError`, and adds none of them, if one is in this queue already."""
        if not self._waiting.isdisjoint(blocks):
            twice = [block.block_id for block in blocks if block in self._waiting]
            raise BlockStateError(f"block {twice[0]} is in the free queue already", twice)
        for block in blocks:
            self.enter(block)
        self._waiting.update(blocks)

    def prepend_n(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Put `blocks`, which have no hash, in front of all."""
        self._without_hash.prepend_n(blocks)

    def get_all_free_blocks(self) -> list[KVCacheBlock]:
        """Return the blocks in the order in which they would be reused if nothing happened in between."""
        return [*self._without_hash.get_all_free_blocks(), *self.in_order()]


class PolicyPool(BlockPool):
    """A pool that tells its queue what a queue does not see: each hit, and each block that got its hash."""

    free_block_queue: FreeBlocks

    def touch(self, blocks: Sequence[KVCacheBlock]) -> None:
        """As in `BlockPool`; the policy sees the blocks first."""
        if isinstance(self.free_block_queue, EvictionPolicy):
            self.free_block_queue.record_hit([block for block in blocks if not block.is_null])
        super().touch(blocks)

    def cache_full_blocks(
        self,
        blocks: Sequence[KVCacheBlock],
        block_hashes: Sequence[BlockHash],
        num_cached_blocks: int,
        num_full_blocks: int,
        kv_cache_group_id: int = 0,
    ) -> None:
        """As in `BlockPool`; then the policy sees the blocks that have a hash now."""
        super().cache_full_blocks(blocks, block_hashes, num_cached_blocks, num_full_blocks, kv_cache_group_id)
        if isinstance(self.free_block_queue, EvictionPolicy):
            named = [block for block in blocks[num_cached_blocks:num_full_blocks] if not block.is_null]
            self.free_block_queue.record_miss(named, num_cached_blocks)


Policy: TypeAlias = QueueFactory
"""Makes the queue of a pool's blocks: a subclass of `EvictionPolicy`, or of `FreeKVCacheBlockQueue`."""


def parts_of(policy: Policy, make_pool: Callable[..., BlockPool] = PolicyPool) -> KVCacheParts:
    """Return the parts of a cache manager that evicts by `policy`."""
    return KVCacheParts(make_queue=policy, make_pool=make_pool)

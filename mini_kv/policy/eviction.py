"""The interface of an eviction policy: the free queue's operations, and one decision, the next block to evict.

    a table frees a block           append_n: it is in the queue          the policy chooses the place
    a hit finds it                  remove: it is in use again
    memory is needed                popleft_n: it is overwritten          the policy chooses the block

Only free blocks can be chosen: a block in use is not in the queue. Blocks without a block hash are reused before all
others under every policy. A policy never sees them.

    parts = parts_of(LFU)
    KVCacheManager(config, parts=parts)
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from mini_kv.core.block import BlockHash, KVCacheBlock
from mini_kv.core.block_pool import BlockPool
from mini_kv.core.errors import BlockStateError, OutOfBlocksError
from mini_kv.core.free_blocks import FreeBlocks, QueueFactory
from mini_kv.core.free_queue import FreeKVCacheBlockQueue
from mini_kv.core.parts import KVCacheParts


@dataclass(frozen=True, slots=True)
class Hint:
    """What the server knows of a session besides its blocks. Times are in ms, those of the trace."""

    session_id: str
    now: int
    """When the session's request arrived."""
    expected_pause: int
    """Time from this request to the session's next one, as expected from the way its answer ended."""


class EvictionPolicy:
    """The free blocks in the order of a policy. A policy defines `enter`, `leave`, `victim` and `in_order`.

    It must decide by counters, not by a clock: the same calls must give the same victims on any machine.
    """

    def __init__(self, blocks: Sequence[KVCacheBlock]) -> None:
        self.num_blocks = len(blocks)
        """Number of blocks of the new queue: the size of the pool without the null block."""
        self._without_hash = FreeKVCacheBlockQueue([block for block in blocks if block.block_hash is None])
        self._waiting: set[KVCacheBlock] = set()
        self.append_n([block for block in blocks if block.block_hash is not None])

    def enter(self, block: KVCacheBlock) -> None:
        """Add a block with a hash. The blocks that one call frees are added one after another, from tail to head."""
        raise NotImplementedError

    def leave(self, block: KVCacheBlock) -> None:
        """Remove a free block, because a hit has found it."""
        raise NotImplementedError

    def victim(self) -> KVCacheBlock:
        """Remove and return the next block to evict. It still has its block hash during this call."""
        raise NotImplementedError

    def in_order(self) -> list[KVCacheBlock]:
        """Return the free blocks with a hash, the next victim first. Changes nothing. May cost more than O(1)."""
        raise NotImplementedError

    def record_hit(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Record the blocks of a hit, from head to tail, before they are in use. Called by `PolicyPool`."""

    def record_miss(self, blocks: Sequence[KVCacheBlock], position: int) -> None:
        """Record blocks that have just got their hash. The first is block number `position` of its prompt."""

    def record_hint(self, hint: Hint, blocks: Sequence[KVCacheBlock]) -> None:
        """Record a hint for the blocks of a request, from head to tail, before they are free. Called by `replay`."""

    @property
    def num_free_blocks(self) -> int:
        """Number of free blocks, with or without a hash."""
        return self._without_hash.num_free_blocks + len(self._waiting)

    def popleft_n(self, n: int) -> list[KVCacheBlock]:
        """Remove and return `n` blocks: first those without a hash, then victims. `OutOfBlocksError` removes none."""
        if not 0 <= n <= self.num_free_blocks:
            raise OutOfBlocksError(requested=n, free=self.num_free_blocks)
        taken = self._without_hash.popleft_n(min(n, self._without_hash.num_free_blocks))
        for _ in range(n - len(taken)):
            block = self.victim()
            self._waiting.remove(block)
            taken.append(block)
        return taken

    def remove(self, block: KVCacheBlock) -> None:
        """Remove `block`. Raises `BlockStateError` if it is not in the queue."""
        if block not in self._waiting:
            self._without_hash.remove(block)
            return
        self.leave(block)
        self._waiting.remove(block)

    def append_n(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Add `blocks`. Raises `BlockStateError`, and adds none of them, if one is in the queue already."""
        if not self._waiting.isdisjoint(blocks):
            twice = [block.block_id for block in blocks if block in self._waiting]
            raise BlockStateError(f"block {twice[0]} is in the free queue already", twice)
        for block in blocks:
            self.enter(block)
        self._waiting.update(blocks)

    def prepend_n(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Add `blocks`, which have no hash, before all others."""
        self._without_hash.prepend_n(blocks)

    def get_all_free_blocks(self) -> list[KVCacheBlock]:
        """Return the blocks in the order of reuse, if no block is freed or hit in between."""
        return [*self._without_hash.get_all_free_blocks(), *self.in_order()]


class PolicyPool(BlockPool):
    """A pool that reports two further events to its queue: each hit, and each block that got its hash."""

    free_block_queue: FreeBlocks

    def touch(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Report the hit to the policy, then touch as in `BlockPool`."""
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
        """Cache as in `BlockPool`, then report the blocks that have a hash now to the policy."""
        super().cache_full_blocks(blocks, block_hashes, num_cached_blocks, num_full_blocks, kv_cache_group_id)
        if isinstance(self.free_block_queue, EvictionPolicy):
            named = [block for block in blocks[num_cached_blocks:num_full_blocks] if not block.is_null]
            self.free_block_queue.record_miss(named, num_cached_blocks)


Policy: TypeAlias = QueueFactory
"""Makes the free queue of a pool: a subclass of `EvictionPolicy` or of `FreeKVCacheBlockQueue`."""


def parts_of(policy: Policy, make_pool: Callable[..., BlockPool] = PolicyPool) -> KVCacheParts:
    """Return the parts of a cache manager that evicts by `policy`."""
    return KVCacheParts(make_queue=policy, make_pool=make_pool)

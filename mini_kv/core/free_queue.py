"""The queue of free blocks: a linked list from which any block can be removed.

The order of this queue is the eviction order. New blocks are taken from the front. A free block that is still cached
stays in the queue, and a hit removes it from any position.
"""

from collections.abc import Sequence

from mini_kv.core.block import KVCacheBlock
from mini_kv.core.errors import BlockStateError, OutOfBlocksError


class FreeKVCacheBlockQueue:
    """Free blocks from the next to be reused (front) to the last (back). Every operation on one block is O(1).

        head <-> b3 <-> b1 <-> b7 <-> tail        head and tail are sentinels: no operation needs a special case
                 front         back               for an end

    The links are attributes of the blocks, so adding or removing a block allocates nothing. Python's `OrderedDict`
    could do the same. The list is written out here because it is the subject of the course.

    Source: vLLM `FreeKVCacheBlockQueue` (v1/core/kv_cache_utils.py).
    """

    def __init__(self, blocks: Sequence[KVCacheBlock]) -> None:
        self._head = KVCacheBlock(-1)
        self._tail = KVCacheBlock(-1)
        self._head.next_free_block = self._tail
        self._tail.prev_free_block = self._head
        self.num_free_blocks = 0
        """Number of blocks in the queue."""
        FreeKVCacheBlockQueue.append_n(self, blocks)  # as given, also where a subclass orders what comes later

    def popleft(self) -> KVCacheBlock:
        """Remove and return the block at the front. Raises `OutOfBlocksError` when the queue is empty."""
        return self.popleft_n(1)[0]

    def popleft_n(self, n: int) -> list[KVCacheBlock]:
        """Remove and return the first `n` blocks. If there are fewer, remove none and raise `OutOfBlocksError`."""
        if not 0 <= n <= self.num_free_blocks:
            raise OutOfBlocksError(requested=n, free=self.num_free_blocks)
        taken = []
        block = _linked(self._head.next_free_block)
        for _ in range(n):
            following = block.next_free_block
            if following is None:
                raise BlockStateError("the links of the free queue are broken", [block.block_id])
            block.prev_free_block = block.next_free_block = None
            taken.append(block)
            block = following
        self._head.next_free_block = block  # the first that stays, or the tail
        block.prev_free_block = self._head
        self.num_free_blocks -= n
        return taken

    def remove(self, block: KVCacheBlock) -> None:
        """Remove `block`, wherever it is in the queue. Raises `BlockStateError` if it is not in the queue."""
        before, after = block.prev_free_block, block.next_free_block
        if before is None or after is None:
            raise BlockStateError(f"block {block.block_id} is not in the free queue", [block.block_id])
        before.next_free_block = after
        after.prev_free_block = before
        block.prev_free_block = block.next_free_block = None
        self.num_free_blocks -= 1

    def append(self, block: KVCacheBlock) -> None:
        """Put `block` at the back, to be reused last."""
        self.append_n([block])

    def append_n(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Add `blocks` at the back in order. If one is already queued, add none and raise `BlockStateError`."""
        self._insert_before(self._tail, blocks)

    def prepend_n(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Put `blocks` at the front in the order given: `blocks[0]` is the next to be reused."""
        self._insert_before(_linked(self._head.next_free_block), blocks)

    def get_all_free_blocks(self) -> list[KVCacheBlock]:
        """Return the blocks from front to back, which is the order of reuse. Costs O(queue)."""
        blocks: list[KVCacheBlock] = []
        block = self._head.next_free_block
        while block is not None and block is not self._tail and len(blocks) <= self.num_free_blocks:
            blocks.append(block)
            block = block.next_free_block
        if block is not self._tail or len(blocks) != self.num_free_blocks:
            raise BlockStateError(f"the links of the free queue are broken after {len(blocks)} blocks")
        return blocks

    def _insert_before(self, after: KVCacheBlock, blocks: Sequence[KVCacheBlock]) -> None:
        """Link `blocks`, in order, before `after`. Raise `BlockStateError` for a block that is linked already."""
        first = before = _linked(after.prev_free_block)
        for block in blocks:
            if block.next_free_block is not None:
                while before is not first:  # those before it come out again
                    before.prev_free_block, before.next_free_block, before = None, None, _linked(before.prev_free_block)
                first.next_free_block = after
                message = f"block {block.block_id} is in the free queue already, or given twice"
                raise BlockStateError(message, [block.block_id])
            before.next_free_block = block
            block.prev_free_block, block.next_free_block = before, after
            before = block
        after.prev_free_block = before
        self.num_free_blocks += len(blocks)


def _linked(neighbour: KVCacheBlock | None) -> KVCacheBlock:
    """Return the neighbour of a sentinel, which always has one."""
    if neighbour is None:
        raise BlockStateError("the links of the free queue are broken at its end")
    return neighbour

"""lab-02: the reference solution."""

from collections.abc import Sequence
from itertools import pairwise

from mini_kv.core.block import KVCacheBlock
from mini_kv.core.errors import BlockStateError, OutOfBlocksError


class FreeKVCacheBlockQueue:
    def __init__(self, blocks: Sequence[KVCacheBlock]) -> None:
        self._head = KVCacheBlock(-1)
        self._tail = KVCacheBlock(-1)
        _tie(self._head, *blocks, self._tail)
        self.num_free_blocks = len(blocks)

    def get_all_free_blocks(self) -> list[KVCacheBlock]:
        blocks = []
        block = _after(self._head)
        while block is not self._tail:
            blocks.append(block)
            block = _after(block)
        return blocks

    def popleft(self) -> KVCacheBlock:
        if self.num_free_blocks == 0:
            raise OutOfBlocksError(requested=1, free=0)
        block = _after(self._head)
        self.remove(block)
        return block

    def popleft_n(self, n: int) -> list[KVCacheBlock]:
        if not 0 <= n <= self.num_free_blocks:
            raise OutOfBlocksError(requested=n, free=self.num_free_blocks)
        taken = []
        block = _after(self._head)
        for _ in range(n):
            taken.append(block)
            block = _after(block)
        _tie(self._head, block)  # the first that stays, or the tail
        for one in taken:
            one.prev_free_block = one.next_free_block = None
        self.num_free_blocks -= n
        return taken

    def remove(self, block: KVCacheBlock) -> None:
        before, after = block.prev_free_block, block.next_free_block
        if before is None or after is None:
            raise BlockStateError(f"block {block.block_id} is not in the free queue", [block.block_id])
        _tie(before, after)
        block.prev_free_block = block.next_free_block = None
        self.num_free_blocks -= 1

    def append(self, block: KVCacheBlock) -> None:
        self.append_n([block])

    def append_n(self, blocks: Sequence[KVCacheBlock]) -> None:
        _check_outside(blocks)
        _tie(_before(self._tail), *blocks, self._tail)
        self.num_free_blocks += len(blocks)

    def prepend_n(self, blocks: Sequence[KVCacheBlock]) -> None:
        _check_outside(blocks)
        _tie(self._head, *blocks, _after(self._head))
        self.num_free_blocks += len(blocks)


def _tie(*row: KVCacheBlock) -> None:
    """Link the blocks in a row, each to the next and back."""
    for left, right in pairwise(row):
        left.next_free_block = right
        right.prev_free_block = left


def _check_outside(blocks: Sequence[KVCacheBlock]) -> None:
    """Raise unless all of these may enter: none is in the queue, none is given twice."""
    inside = [block.block_id for block in blocks if block.next_free_block is not None]
    if inside:
        raise BlockStateError(f"blocks {inside} are in the free queue already", inside)
    if len(set(blocks)) < len(blocks):
        raise BlockStateError("a block is given twice", [block.block_id for block in blocks])


def _after(block: KVCacheBlock) -> KVCacheBlock:
    """Return the next block. In a queue there always is one: the tail, at least."""
    if block.next_free_block is None:
        raise BlockStateError(f"the links of the free queue end after block {block.block_id}", [block.block_id])
    return block.next_free_block


def _before(block: KVCacheBlock) -> KVCacheBlock:
    """Return the block before."""
    if block.prev_free_block is None:
        raise BlockStateError(f"the links of the free queue end before block {block.block_id}", [block.block_id])
    return block.prev_free_block

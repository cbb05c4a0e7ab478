"""lab-02, another way: one sentinel in a ring. What comes after it is the front, what comes before it the back."""

from collections.abc import Sequence
from typing import cast

from mini_kv.core.block import KVCacheBlock
from mini_kv.core.errors import BlockStateError, OutOfBlocksError


class FreeKVCacheBlockQueue:
    def __init__(self, blocks: Sequence[KVCacheBlock]) -> None:
        self.num_free_blocks = 0
        self._ring = KVCacheBlock(-1)
        self._ring.next_free_block = self._ring.prev_free_block = self._ring  # alone, it is its own neighbour
        for block in blocks:
            self.append(block)

    def get_all_free_blocks(self) -> list[KVCacheBlock]:
        blocks: list[KVCacheBlock] = []
        here = self._ring
        while (here := cast(KVCacheBlock, here.next_free_block)) is not self._ring:
            blocks += [here]
        return blocks

    def popleft(self) -> KVCacheBlock:
        if self._ring.next_free_block is self._ring:
            raise OutOfBlocksError(1, 0)
        block = cast(KVCacheBlock, self._ring.next_free_block)
        self.remove(block)
        return block

    def popleft_n(self, n: int) -> list[KVCacheBlock]:
        if n < 0 or n > self.num_free_blocks:
            raise OutOfBlocksError(n, self.num_free_blocks)
        return [self.popleft() for _ in range(n)]

    def remove(self, block: KVCacheBlock) -> None:
        if block.prev_free_block is None or block.next_free_block is None:
            raise BlockStateError("it stands in no ring", [block.block_id])
        block.prev_free_block.next_free_block, block.next_free_block.prev_free_block = (
            block.next_free_block,
            block.prev_free_block,
        )
        block.prev_free_block = block.next_free_block = None
        self.num_free_blocks -= 1

    def append(self, block: KVCacheBlock) -> None:
        self.append_n((block,))

    def append_n(self, blocks: Sequence[KVCacheBlock]) -> None:
        self._refuse(blocks)
        for block in blocks:
            self._insert_before(self._ring, block)

    def prepend_n(self, blocks: Sequence[KVCacheBlock]) -> None:
        self._refuse(blocks)
        front = cast(KVCacheBlock, self._ring.next_free_block)
        for block in blocks:
            self._insert_before(front, block)

    def _insert_before(self, after: KVCacheBlock, block: KVCacheBlock) -> None:
        before = cast(KVCacheBlock, after.prev_free_block)
        block.prev_free_block, block.next_free_block = before, after
        before.next_free_block = after.prev_free_block = block
        self.num_free_blocks += 1

    def _refuse(self, blocks: Sequence[KVCacheBlock]) -> None:
        seen: set[int] = set()
        for block in blocks:
            if block.block_id in seen or block.prev_free_block is not None:
                raise BlockStateError("a block can stand in one place only", [block.block_id])
            seen.add(block.block_id)

"""lab-03, another way: ask first, then move one block at a time; the null block is counted, harmlessly."""

from collections import Counter
from collections.abc import Iterable, Sequence

from mini_kv.core.block import KVCacheBlock
from mini_kv.core.errors import BlockStateError, OutOfBlocksError
from mini_kv.core.free_queue import FreeKVCacheBlockQueue


class BlockPool:
    """All blocks, and which of them are free."""

    def __init__(self, num_gpu_blocks: int, enable_caching: bool = False) -> None:
        self.enable_caching = enable_caching
        self.blocks = [KVCacheBlock(block_id) for block_id in range(num_gpu_blocks)]
        self.null_block = self.blocks[0]
        self.null_block.is_null = True
        self.free_block_queue = FreeKVCacheBlockQueue(self.blocks[1:])

    @property
    def num_free_blocks(self) -> int:
        return self.free_block_queue.num_free_blocks

    @property
    def usage(self) -> float:
        free = self.free_block_queue.num_free_blocks
        return 1 - free / (len(self.blocks) - 1)

    def get_new_blocks(self, num_blocks: int) -> list[KVCacheBlock]:
        if num_blocks > self.num_free_blocks:
            raise OutOfBlocksError(num_blocks, self.num_free_blocks)
        new: list[KVCacheBlock] = []
        while len(new) < num_blocks:
            block = self.free_block_queue.popleft()
            block.ref_cnt += 1
            new.append(block)
        return new

    def touch(self, blocks: Sequence[KVCacheBlock]) -> None:
        for block in blocks:
            if not block.is_null:
                block.ref_cnt += 1
                if block.ref_cnt == 1:
                    self.free_block_queue.remove(block)

    def free_blocks(self, ordered_blocks: Iterable[KVCacheBlock]) -> None:
        blocks = [block for block in ordered_blocks if not block.is_null]
        mentions = Counter(block.block_id for block in blocks)
        wrong = [i for i, times in mentions.items() if times > 1 or self.blocks[i].ref_cnt < 1]
        if wrong:
            raise BlockStateError("given twice, or held by no table", wrong)
        for block in blocks:
            block.ref_cnt -= 1
        for block in reversed(blocks):  # the last one given goes in front first, so the first one ends up there
            if block.ref_cnt == 0 and not block.is_null:
                self.free_block_queue.prepend_n([block])

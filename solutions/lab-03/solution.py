"""lab-03: the reference solution."""

from collections.abc import Iterable, Sequence

from mini_kv.core.block import KVCacheBlock
from mini_kv.core.errors import BlockStateError
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
        return 1.0 - self.num_free_blocks / (len(self.blocks) - 1)

    def get_new_blocks(self, num_blocks: int) -> list[KVCacheBlock]:
        blocks = self.free_block_queue.popleft_n(num_blocks)
        for block in blocks:
            block.ref_cnt = 1
        return blocks

    def touch(self, blocks: Sequence[KVCacheBlock]) -> None:
        for block in blocks:
            if block.is_null:
                continue
            if block.ref_cnt == 0:
                self.free_block_queue.remove(block)
            block.ref_cnt += 1

    def free_blocks(self, ordered_blocks: Iterable[KVCacheBlock]) -> None:
        blocks = [block for block in ordered_blocks if not block.is_null]
        if len(set(blocks)) < len(blocks):
            raise BlockStateError("a block is given twice", [block.block_id for block in blocks])
        for block in blocks:
            if block.ref_cnt == 0:
                raise BlockStateError(f"no table holds block {block.block_id}", [block.block_id])
        idle = []
        for block in blocks:
            block.ref_cnt -= 1
            if block.ref_cnt == 0:
                idle.append(block)
        self.free_block_queue.prepend_n(idle)

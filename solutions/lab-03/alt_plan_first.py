"""lab-03, another way: work out every new count first, then write them down."""

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
        can_be_held = len(self.blocks) - 1
        return (can_be_held - self.num_free_blocks) / can_be_held

    def get_new_blocks(self, num_blocks: int) -> list[KVCacheBlock]:
        new = self.free_block_queue.popleft_n(num_blocks)
        for block in new:
            block.ref_cnt += 1
        return new

    def touch(self, blocks: Sequence[KVCacheBlock]) -> None:
        real = [block for block in blocks if block is not self.null_block]
        for idle in [block for block in real if not block.ref_cnt]:
            self.free_block_queue.remove(idle)
        for block in real:
            block.ref_cnt += 1

    def free_blocks(self, ordered_blocks: Iterable[KVCacheBlock]) -> None:
        planned: dict[KVCacheBlock, int] = {}
        for block in ordered_blocks:
            if block is self.null_block:
                continue
            if block in planned or block.ref_cnt <= 0:
                raise BlockStateError(f"block {block.block_id} is not there to be freed", [block.block_id])
            planned[block] = block.ref_cnt - 1
        for block, count in planned.items():
            block.ref_cnt = count
        self.free_block_queue.prepend_n([block for block, count in planned.items() if count == 0])

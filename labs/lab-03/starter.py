"""lab-03: block pool and reference counts. Your work goes here.

Run it from the repository's root:

    LAB_IMPL=starter pytest labs/lab-03
    $env:LAB_IMPL="starter"; pytest labs/lab-03          (Windows, PowerShell)
"""

from collections.abc import Iterable, Sequence

from mini_kv.core.block import KVCacheBlock
from mini_kv.core.errors import BlockStateError  # noqa: F401  # free_blocks raises it
from mini_kv.core.free_queue import FreeKVCacheBlockQueue
from mini_kv.course import todo


class BlockPool:
    """All blocks, and which of them are free.

    The whole state is in `blocks` (each with its `ref_cnt`, the number of tables that contain it), `null_block` and
    `free_block_queue`. Add no other attribute, and do not change `__init__`: the tests also call the engine's methods
    on your pool. The queue is the one of lab-02, finished. `num_free_blocks` counts its blocks. `popleft_n(n)` takes n
    of them, or raises `OutOfBlocksError` and takes none. `remove(block)` takes one from wherever it is.
    `prepend_n(blocks)` puts several at the front in their order.

    After every call, whether it returned or raised:

    - The `ref_cnt` of a block is the number of tables that contain it, and never negative.
    - The free queue has exactly the blocks whose `ref_cnt` is 0, each once, but not the null block.
    - The null block's `ref_cnt` is 0, however many tables contain it.

    The examples use a pool of 4 blocks, the null block included: blocks 1, 2 and 3 can be used.
    """

    def __init__(self, num_gpu_blocks: int, enable_caching: bool = False) -> None:
        """Make `num_gpu_blocks` blocks, at least 2. Block 0 is the null block, which is never allocated. Given."""
        self.enable_caching = enable_caching  # always False in this lab: no block is cached
        self.blocks = [KVCacheBlock(block_id) for block_id in range(num_gpu_blocks)]
        self.null_block = self.blocks[0]
        self.null_block.is_null = True
        self.free_block_queue = FreeKVCacheBlockQueue(self.blocks[1:])

    @property
    def num_free_blocks(self) -> int:
        """Return how many blocks are free: no table contains them. Cost: O(1), because a scheduler asks often.

        Example: 3 in a new pool of 4, and 1 when two blocks are in use, in one table or in several.
        """
        todo("lab-03", "BlockPool.num_free_blocks", "which part of the pool counts the free blocks?")

    @property
    def usage(self) -> float:
        """Return the blocks in use as a share of the blocks that can be used, 0.0 to 1.0.

        Example: 0.0 in a new pool of 4, 1/3 with one block in use, 1.0 with three.
        """
        todo("lab-03", "BlockPool.usage", "how many blocks can be used?")

    def get_new_blocks(self, num_blocks: int) -> list[KVCacheBlock]:
        """Take `num_blocks` blocks from the front of the free queue, in its order, each with one reference.

        All or nothing: raises `OutOfBlocksError` if fewer are free, and then nothing has changed. For 0 blocks it
        returns an empty list. Cost: O(num_blocks).

        Example, a pool of 4 with the queue 1 2 3: `get_new_blocks(2)` returns blocks 1 and 2, and 3 stays. A second
        `get_new_blocks(2)` raises, and 3 is still there.
        """
        todo("lab-03", "BlockPool.get_new_blocks", "are there enough, and what changes on each block?")

    def touch(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Add one reference to each of these blocks, for one more table that contains them.

        They may be in use or free, and the null block may be among them. The other blocks are all different. What must
        be true of the queue and of the null block after every call is above. Cost: O(len(blocks)), however long the
        queue is.

        Example, a pool of 4: A's table is 1 2, the queue is 3. `touch` on 2 and 3 leaves the counts 1 2 1 and an empty
        queue.
        """
        todo("lab-03", "BlockPool.touch", "which of these blocks are in the queue?")

    def free_blocks(self, ordered_blocks: Iterable[KVCacheBlock]) -> None:
        """Drop one reference from each of these blocks. Those that no table contains any more are free again.

        The free ones are at the front of the queue, in the order given: the first of them is allocated next. Null
        blocks, however many, are skipped.

        If a block is given twice, or no table contains it, the whole call changes nothing. It then raises
        `BlockStateError(message, block_ids)` with a list of the wrong ids in any order. Callers pass `reversed(table)`,
        an iterator, which can be read only once. Cost: O(number of blocks).

        Example, a pool of 4: A's table is 1 2, B's is 2, the queue is 3. `free_blocks` on A's 2 and 1, in this order,
        leaves one reference to 2, B's, and the queue 1 3. A second call with 1 raises, and the queue is still 1 3.
        """
        todo("lab-03", "BlockPool.free_blocks", "is the whole list right, and which blocks become free?")

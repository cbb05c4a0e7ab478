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

    The whole state is in `blocks` (each with its `ref_cnt`, the number of tables that hold it), `null_block` and
    `free_block_queue`. Add no other attribute, and leave `__init__` as it is: the tests also call the engine's methods
    on your pool. The queue is the one of lab-02, finished: `num_free_blocks` counts its blocks, `popleft_n(n)` takes n
    of them or raises `OutOfBlocksError` and takes none, `remove(block)` takes one from wherever it is, and
    `prepend_n(blocks)` puts several at the front in their order.

    After every call, whether it returned or raised:

    - `ref_cnt` of a block is the number of tables that hold it, and never negative;
    - the free queue holds exactly the blocks whose `ref_cnt` is 0, each once, but not the null block;
    - the null block's `ref_cnt` is 0, however many tables hold it.
    """

    def __init__(self, num_gpu_blocks: int, enable_caching: bool = False) -> None:
        """Make `num_gpu_blocks` blocks. Block 0 is set apart: the placeholder in tables, never handed out. Given."""
        self.enable_caching = enable_caching  # always False in this lab: no block is cached
        self.blocks = [KVCacheBlock(block_id) for block_id in range(num_gpu_blocks)]
        self.null_block = self.blocks[0]
        self.null_block.is_null = True
        self.free_block_queue = FreeKVCacheBlockQueue(self.blocks[1:])

    @property
    def num_free_blocks(self) -> int:
        """Return how many blocks are free: no table holds them. A scheduler asks often: O(1), do not count one by one.

        Example, a pool of 4 (blocks 0 to 3): 3 when new, 1 when two blocks are held, by however many tables.
        """
        todo("lab-03", "BlockPool.num_free_blocks", "ask the free queue")

    @property
    def usage(self) -> float:
        """Return the held blocks as a share of all blocks without the null block, 0.0 to 1.0.

        Example, a pool of 4 (the null block and three others): 0.0 when new, 1/3 with one block held, 1.0 with three.
        """
        todo("lab-03", "BlockPool.usage", "compare the free blocks with those that can be held")

    def get_new_blocks(self, num_blocks: int) -> list[KVCacheBlock]:
        """Take `num_blocks` blocks from the front of the free queue, in its order, each with one reference.

        All or nothing: raises `OutOfBlocksError` if fewer are free, and then every block is where it was. No blocks
        asked for: an empty list. Cost: O(num_blocks).

        Example, a pool of 4 with the queue 1 2 3: `get_new_blocks(2)` returns blocks 1 and 2, and 3 stays. A second
        `get_new_blocks(2)` raises, and 3 is still there.
        """
        todo("lab-03", "BlockPool.get_new_blocks", "all of them, or none")

    def touch(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Add one reference to each of these blocks, for one more table that holds them.

        They may be held or free, and the null block may be among them. What must be true of the queue and of the null
        block after every call is above. The blocks are all different, null blocks aside. Cost: O(len(blocks)), however
        long the queue is.

        Example, a pool of 4: A holds 1 and 2, the queue is 3. `touch` on 2 and 3 leaves the counts 1 2 1 and an
        empty queue.
        """
        todo("lab-03", "BlockPool.touch", "one more table holds these blocks")

    def free_blocks(self, ordered_blocks: Iterable[KVCacheBlock]) -> None:
        """Drop one reference from each of these blocks; those that no table holds any more are free again.

        The free ones are at the front of the queue, in the order given: the first of them is the next to be handed out.
        Null blocks, however many, are passed over.

        One wrong block, and the whole call changes nothing: raises `BlockStateError(message, block_ids)`, with a list
        of the wrong ids in any order, if a block is given twice, or if no table holds it. Callers pass
        `reversed(table)`, an iterator: it can be walked through only once. Cost: O(number of blocks).

        Example, a pool of 4: A holds 1 and 2, B holds 2, the queue is 3. `free_blocks` on A's 2 and 1, in this
        order, leaves 2 with B, and the queue 1 3. On 1 once more: raises, and the queue is 1 3 still.
        """
        todo("lab-03", "BlockPool.free_blocks", "one table less holds these blocks")

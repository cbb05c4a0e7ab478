"""lab-02: the queue you can pull from the middle. Your work goes here.

Run it from the repository's root:

    LAB_IMPL=starter pytest labs/lab-02
    $env:LAB_IMPL="starter"; pytest labs/lab-02          (Windows, PowerShell)
"""

from collections.abc import Sequence

from mini_kv.core.block import KVCacheBlock
from mini_kv.core.errors import BlockStateError, OutOfBlocksError  # noqa: F401  (for your use)
from mini_kv.course import todo


class FreeKVCacheBlockQueue:
    """The free blocks in the order in which they will be reused: the front first, the back last.

        head <-> b3 <-> b0 <-> b5 <-> b1 <-> tail          head and tail: two blocks that you make yourself and that
                front                back                  are never handed out, so that no end is a special case

    A block has two attributes for you, `prev_free_block` and `next_free_block`. You may keep the order without them. If
    you use them, both are `None` exactly while the block is in no queue, and a walk back from the tail meets the same
    blocks as a walk from the head.

    Each block is in the queue once or not at all. A block that you are given is in this queue or in none.

    Cost: a call looks at the blocks that it moves and at their neighbours, in a queue of ten as in one of ten thousand.
    Only `__init__` and `get_all_free_blocks` may walk the queue.

    A wrong call raises an error and changes nothing: neither the queue, nor its count, nor any block's links.
    """

    num_free_blocks: int
    """Number of blocks in the queue, after every call."""

    def __init__(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Make a queue of `blocks`, in the order given, `blocks[0]` in front. There may be none.

        A sentinel is a block with an impossible number, `KVCacheBlock(-1)`.

        Example, b0 to b3: `FreeKVCacheBlockQueue([b2, b0, b3, b1])` gives the order `2 0 3 1`.
        """
        todo("lab-02", "FreeKVCacheBlockQueue.__init__", "which links does an empty queue have?")

    def get_all_free_blocks(self) -> list[KVCacheBlock]:
        """Return the blocks from front to back, in a new list. Changes nothing. For tests and drawings.

        Example: in the queue `2 0 3 1`, `[b2, b0, b3, b1]`, without the sentinels. In an empty queue, `[]`.
        """
        todo("lab-02", "FreeKVCacheBlockQueue.get_all_free_blocks", "where does a walk begin, and where does it end?")

    def popleft(self) -> KVCacheBlock:
        """Take the block at the front, and return it without links. Raises `OutOfBlocksError` if there is none.

        Example: from `2 0 3 1`, returns b2 and leaves `0 3 1`.
        """
        todo("lab-02", "FreeKVCacheBlockQueue.popleft", "which block is the front, and what if there is none?")

    def popleft_n(self, n: int) -> list[KVCacheBlock]:
        """Take the `n` blocks at the front, and return them in their order and without links.

        All or nothing: raises `OutOfBlocksError(n, self.num_free_blocks)` if there are fewer than `n`, or if `n` is
        negative.

        Example: from `2 0 3 1`, `popleft_n(3)` returns `[b2, b0, b3]` and leaves `1`. `popleft_n(5)` raises, and all
        four are still there. `popleft_n(0)` returns `[]`.
        """
        todo("lab-02", "FreeKVCacheBlockQueue.popleft_n", "are there enough, and which links change?")

    def remove(self, block: KVCacheBlock) -> None:
        """Take out `block`, wherever it is. The others keep their order, and it can be added again at once.

        A block that is not in the queue raises `BlockStateError("a text of yours", [block.block_id])`.

        The steps are for you to find. Cost: O(1), wherever the block is, so do not search for it.

        Example: from `2 0 3 1`, `remove(b0)` leaves `2 3 1`. A second `remove(b0)` raises.
        """
        todo("lab-02", "FreeKVCacheBlockQueue.remove", "which links lead to this block?")

    def append(self, block: KVCacheBlock) -> None:
        """Put `block` at the back, to be reused last. Raises `BlockStateError` if it is in the queue already.

        Example: to `2 0 3`, `append(b1)` makes `2 0 3 1`.
        """
        todo("lab-02", "FreeKVCacheBlockQueue.append", "how does one block differ from a list of one?")

    def append_n(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Put `blocks` at the back in the order given: the last of them will be reused last.

        If one of them is in the queue already, or is in `blocks` twice, raises `BlockStateError` and adds none.

        Example: to `2 0`, `append_n([b3, b1])` makes `2 0 3 1`. `append_n([])` changes nothing.
        """
        todo("lab-02", "FreeKVCacheBlockQueue.append_n", "may all of them be added?")

    def prepend_n(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Put `blocks` at the front in the order given: `blocks[0]` is the next to be reused. Raises as `append_n`.

        Example: to `2 0`, `prepend_n([b3, b1])` makes `3 1 2 0`.
        """
        todo("lab-02", "FreeKVCacheBlockQueue.prepend_n", "which block is in front afterwards?")

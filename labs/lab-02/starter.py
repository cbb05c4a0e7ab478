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
    """The free blocks in the order in which they will be reused: the front goes next, the back goes last.

        head <-> b3 <-> b0 <-> b5 <-> b1 <-> tail          head and tail: blocks of your own making that are
                front                back                  never handed out, so that no end is a special case

    A block has two attributes for you, `prev_free_block` and `next_free_block`. Both are `None` while it is in no
    queue; that is how one sees that it is in none.

    At all times: each block stands in the queue once or not at all; going back from the tail meets the same blocks as
    going forward from the head; `num_free_blocks`, an attribute, is their number.

    Cost: what concerns one block takes the same few steps in a queue of ten as in one of ten thousand; what concerns
    `n` blocks takes steps for those `n`. Only `__init__` and `get_all_free_blocks` may walk the queue.

    Misuse raises an error, and then nothing has changed: neither the queue, nor its count, nor any block's links.
    """

    num_free_blocks: int
    """Number of blocks in the queue."""

    def __init__(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Make a queue of `blocks`, in the order given, `blocks[0]` in front. There may be none.

        1. Make two sentinels: blocks with an impossible number, `KVCacheBlock(-1)`.
        2. Link head, blocks and tail in a row, each to the next and back.
        3. Set `num_free_blocks`.

        Example, b0 to b3: `FreeKVCacheBlockQueue([b2, b0, b3, b1])` gives the order `2 0 3 1`: the order that is given
        counts, the numbers do not.
        """
        todo("lab-02", "FreeKVCacheBlockQueue.__init__", "step 1, make the sentinels")

    def get_all_free_blocks(self) -> list[KVCacheBlock]:
        """Return the blocks from front to back, in a new list; the queue stays as it is. For tests and drawings.

        Example: in the queue `2 0 3 1`, `[b2, b0, b3, b1]`, without the sentinels; in an empty queue, `[]`.
        """
        todo("lab-02", "FreeKVCacheBlockQueue.get_all_free_blocks", "walk from the head to the tail")

    def popleft(self) -> KVCacheBlock:
        """Take the block at the front, and return it without links. Raises `OutOfBlocksError` if there is none.

        Example: from `2 0 3 1`, returns b2 and leaves `0 3 1`.
        """
        todo("lab-02", "FreeKVCacheBlockQueue.popleft", "take the block after the head")

    def popleft_n(self, n: int) -> list[KVCacheBlock]:
        """Take the `n` blocks at the front, and return them in their order and without links.

        1. If there are fewer than `n`, or `n` is negative, raise `OutOfBlocksError(n, self.num_free_blocks)`.
        2. Walk over the `n` blocks.
        3. Tie the head to the block after them; take the links off the `n`; count.

        Example: from `2 0 3 1`, `popleft_n(3)` returns `[b2, b0, b3]` and leaves `1`; `popleft_n(5)` raises, and all
        four are still there; `popleft_n(0)` returns `[]`.
        """
        todo("lab-02", "FreeKVCacheBlockQueue.popleft_n", "step 1, are there enough?")

    def remove(self, block: KVCacheBlock) -> None:
        """Take `block` out from wherever it stands: the others keep their order, and it can be appended again at once.

        Afterwards the queue, the count and the block are as the class's docstring says that they are at all times. A
        block that is not in the queue raises `BlockStateError("a text of yours", [block.block_id])`.

        How to get there is for you to find. Cost: O(1), wherever the block stands; do not look for it.

        Example: from `2 0 3 1`, `remove(b0)` leaves `2 3 1`; `remove(b0)` once more raises.
        """
        todo("lab-02", "FreeKVCacheBlockQueue.remove", "the goal is given, the steps are yours")

    def append(self, block: KVCacheBlock) -> None:
        """Put `block` at the back, to be reused last. Raises `BlockStateError` if it is in the queue already.

        Example: to `2 0 3`, `append(b1)` makes `2 0 3 1`.
        """
        todo("lab-02", "FreeKVCacheBlockQueue.append", "put it between the last block and the tail")

    def append_n(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Put `blocks` at the back in the order given: the last of them will be reused last.

        1. If one of them is in the queue already, or stands twice in `blocks`, raise `BlockStateError`; add none.
        2. Link them in a row between the last block and the tail; count.

        Example: to `2 0`, `append_n([b3, b1])` makes `2 0 3 1`; `append_n([])` changes nothing.
        """
        todo("lab-02", "FreeKVCacheBlockQueue.append_n", "step 1, may all of them enter?")

    def prepend_n(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Put `blocks` at the front in the order given: `blocks[0]` is the next to be reused. Raises as `append_n`.

        Example: to `2 0`, `prepend_n([b3, b1])` makes `3 1 2 0`.
        """
        todo("lab-02", "FreeKVCacheBlockQueue.prepend_n", "step 1, may all of them enter?")

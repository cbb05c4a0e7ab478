"""lab-05, part 2: share, revive and evict, in your own words. Your work goes here.

Run it from the repository's root:

    LAB_IMPL=starter pytest labs/lab-05-further
    $env:LAB_IMPL="starter"; pytest labs/lab-05-further          (Windows, PowerShell)

A `SmallPool` has `blocks` (by id, each with its `ref_cnt` and its `block_hash`), `free_queue` (a list of ids, the next
to be handed out first) and `index` (from a block hash to the ids of the blocks that have it, oldest first). After each
of your functions, whatever it returned or raised:

- `ref_cnt` of a block is the number of tables that contain it.
- The queue contains exactly the blocks that no table contains, each once.
- The index has a block under its own hash and under no other. A hash without a block is not in the index.
"""

from collections.abc import Sequence

from mini_kv.course import todo
from mini_kv.course.given.small_pool import SmallPool


def take(pool: SmallPool, num_blocks: int) -> list[int] | None:
    """Hand out blocks that will be overwritten, and return their ids. Return `None` if too few blocks are free.

    They are the next ones in the queue, in its order, and a new table contains each of them now. Their old content is
    lost, so no lookup may find it any more. Another block with the same hash is unchanged.

    After `None` the pool is unchanged. A call for 0 blocks always succeeds.

    Example, queue `[3, 1, 2]`, where 3 has the hash "a": `take(pool, 2)` returns `[3, 1]`, and "a" finds nothing.
    """
    todo("lab-05-further", "take", "which blocks are handed out, and which hashes are removed?")


def give_back(pool: SmallPool, table: Sequence[int]) -> None:
    """Free a table. A block that no table contains any more can be reused. Block hashes stay.

    The queue decides which content is lost first. It should be the content that is missed least:

    - A block without a hash cannot be found again. It goes before all blocks of the queue.
    - The others go after all blocks of the queue.
    - A block is useless without the blocks before it in its table. So of one table it goes before them, with a hash or
      without.

    A block that no table contains, or one that is in `table` twice, is a mistake of the caller: raise `ValueError` and
    change nothing.
    """
    todo("lab-05-further", "give_back", "where in the queue does each block go?")


def admit(pool: SmallPool, block_hashes: Sequence[str], num_blocks: int) -> list[int] | None:
    """Give a request its table of `num_blocks` blocks, first block first. Without room, return `None`, change nothing.

    `block_hashes` has the hashes of its first blocks, at most `num_blocks`. Each is the hash of a block and all blocks
    before it. Cached blocks are not computed again: the table begins with as many blocks of these hashes as possible,
    in use or free, and the other blocks are new. Of several blocks with one hash, take the oldest. Shared blocks can
    still be found. The blocks that this table does not take keep their order in the queue.

    There is room if the queue has the blocks that this table takes out of it, no more and no less.

    Example, queue `[3, 1, 2]`, where 1 has the hash "a": `admit(pool, ["a"], 2)` returns `[1, 3]` and leaves `[2]`.
    """
    todo("lab-05-further", "admit", "which blocks are cached, how many are missing, is there room?")

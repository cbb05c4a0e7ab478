"""lab-05, further: the three verbs of a cached block, written by you. Your work goes here.

Run it from the repository's root:

    LAB_IMPL=starter pytest labs/lab-05-further
    $env:LAB_IMPL="starter"; pytest labs/lab-05-further          (Windows, PowerShell)

A `SmallPool` has `blocks` (by id, each with its `ref_cnt` and its `block_hash`), `free_queue` (a list of ids, the next
to be handed out first) and `index` (from a block hash to the ids of the blocks that have it, oldest first). After each
of your functions, whatever it returned or raised:

- `ref_cnt` of a block is the number of tables that hold it;
- the queue holds exactly the blocks that no table holds, each once;
- a block stands in the index under its own hash and nowhere else; a hash that no block has is not in the index.
"""

from collections.abc import Sequence

from mini_kv.course import todo
from mini_kv.course.given.small_pool import SmallPool


def take(pool: SmallPool, num_blocks: int) -> list[int] | None:
    """Hand out blocks that will be written anew, and return their ids; `None` if the pool has not got as many.

    They are the next ones in the queue, in its order, and a new table holds each of them now. What was in them is lost,
    so nothing may lead to it any more. Another block with the same hash is not concerned.

    After `None` the pool is as it was. No blocks at all can always be had.

    Example, queue `[3, 1, 2]`, where 3 has the hash "a": `take(pool, 2)` returns `[3, 1]`, and "a" finds nothing.
    """
    todo("lab-05-further", "take", "which blocks, and what must be forgotten")


def give_back(pool: SmallPool, table: Sequence[int]) -> None:
    """End a table's hold on its blocks. What no table holds any more can be reused; block hashes stay.

    The queue decides what is lost first, and it should be what is missed least:

    - a block without a hash can never be found again: it goes before all that have been waiting;
    - the others go after all that have been waiting;
    - and of one table, with a hash or without, a block is worth nothing without those before it: it goes before them.

    A block that no table holds, or one that stands in `table` twice, is a mistake of the caller's: raise `ValueError`
    and change nothing.
    """
    todo("lab-05-further", "give_back", "what becomes of a block that another table holds, and of the others")


def admit(pool: SmallPool, block_hashes: Sequence[str], num_blocks: int) -> list[int] | None:
    """Give a request its table of `num_blocks` blocks, first block first; `None`, and nothing changed, without room.

    `block_hashes` are those of its first blocks, at most `num_blocks`, which others may have computed already; each
    stands for a block and all before it. What is in the cache is not computed again: the table begins with as many
    blocks that have these hashes as can be, held or free, and the rest are new ones. Of several with one hash,
    the oldest. Shared blocks can be found as before. What this table does not take stays in the queue as it stood.

    There is room if the queue has what this table takes out of it, neither more nor less.

    Example, queue `[3, 1, 2]`, where 1 has the hash "a": `admit(pool, ["a"], 2)` returns `[1, 3]` and leaves `[2]`.
    """
    todo("lab-05-further", "admit", "what is there already, what is missing, and is there room")

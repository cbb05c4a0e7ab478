"""lab-05, further, another way: one block at a time, and `admit` without `take`."""

from collections.abc import Sequence
from itertools import takewhile

from mini_kv.course.given.small_pool import SmallPool


def take(pool: SmallPool, num_blocks: int) -> list[int] | None:
    """Hand out blocks that will be written anew, and return their ids; `None` if the pool has not got as many."""
    if len(pool.free_queue) < num_blocks:
        return None
    return [_take_first(pool) for _ in range(num_blocks)]


def _take_first(pool: SmallPool) -> int:
    block_id = pool.free_queue.pop(0)
    block_hash, pool.blocks[block_id].block_hash = pool.blocks[block_id].block_hash, None
    if block_hash is not None:
        left = [other for other in pool.index.pop(block_hash) if other != block_id]
        pool.index |= {block_hash: left} if left else {}
    pool.blocks[block_id].ref_cnt += 1
    return block_id


def give_back(pool: SmallPool, table: Sequence[int]) -> None:
    """End a table's hold on its blocks. What no table holds any more can be reused; block hashes stay."""
    if any(table.count(block_id) > 1 or pool.blocks[block_id].ref_cnt < 1 for block_id in table):
        raise ValueError("a block is given back that the table does not hold")
    num_unnamed = 0
    for block_id in table[::-1]:
        pool.blocks[block_id].ref_cnt -= 1
        if pool.blocks[block_id].ref_cnt:
            continue
        if pool.blocks[block_id].block_hash:
            pool.free_queue.append(block_id)
        else:
            pool.free_queue.insert(num_unnamed, block_id)
            num_unnamed += 1


def admit(pool: SmallPool, block_hashes: Sequence[str], num_blocks: int) -> list[int] | None:
    """Give a request its table of `num_blocks` blocks, first block first; `None`, and nothing changed, without room."""
    table = [pool.index[block_hash][0] for block_hash in takewhile(pool.index.__contains__, block_hashes)]
    num_held = sum(pool.blocks[block_id].ref_cnt > 0 for block_id in table)
    if num_blocks - num_held > len(pool.free_queue):
        return None
    for block_id in table:
        pool.blocks[block_id].ref_cnt += 1
        if block_id in pool.free_queue:
            pool.free_queue.remove(block_id)
    while len(table) < num_blocks:
        table.append(_take_first(pool))
    return table

"""lab-05, further: the reference solution."""

from collections.abc import Sequence

from mini_kv.course.given.small_pool import SmallPool


def take(pool: SmallPool, num_blocks: int) -> list[int] | None:
    """Hand out blocks that will be written anew, and return their ids; `None` if the pool has not got as many."""
    if num_blocks > len(pool.free_queue):
        return None
    taken = pool.free_queue[:num_blocks]
    del pool.free_queue[:num_blocks]
    for block_id in taken:
        block = pool.blocks[block_id]
        if block.block_hash is not None:
            pool.index[block.block_hash].remove(block_id)
            if not pool.index[block.block_hash]:
                del pool.index[block.block_hash]
            block.block_hash = None
        block.ref_cnt = 1
    return taken


def give_back(pool: SmallPool, table: Sequence[int]) -> None:
    """End a table's hold on its blocks. What no table holds any more can be reused; block hashes stay."""
    if len(set(table)) < len(table) or any(pool.blocks[block_id].ref_cnt == 0 for block_id in table):
        raise ValueError(f"not a table: {table}")
    hashed: list[int] = []
    unhashed: list[int] = []
    for block_id in reversed(table):
        block = pool.blocks[block_id]
        block.ref_cnt -= 1
        if block.ref_cnt == 0:
            (unhashed if block.block_hash is None else hashed).append(block_id)
    pool.free_queue = unhashed + pool.free_queue + hashed


def admit(pool: SmallPool, block_hashes: Sequence[str], num_blocks: int) -> list[int] | None:
    """Give a request its table of `num_blocks` blocks, first block first; `None`, and nothing changed, without room."""
    found = []
    for block_hash in block_hashes:
        if block_hash not in pool.index:
            break
        found.append(pool.index[block_hash][0])
    revived = [block_id for block_id in found if pool.blocks[block_id].ref_cnt == 0]
    num_new = num_blocks - len(found)
    if len(revived) + num_new > len(pool.free_queue):
        return None
    for block_id in revived:
        pool.free_queue.remove(block_id)
    for block_id in found:
        pool.blocks[block_id].ref_cnt += 1
    new = take(pool, num_new) or []
    return found + new

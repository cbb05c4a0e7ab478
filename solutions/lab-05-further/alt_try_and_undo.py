"""lab-05, further, another way: share first, and if there is no room after all, put the queue back as it was."""

from collections.abc import Sequence

from mini_kv.course.given.small_pool import SmallPool


def take(pool: SmallPool, num_blocks: int) -> list[int] | None:
    """Hand out blocks that will be written anew, and return their ids; `None` if the pool has not got as many."""
    taken, left = pool.free_queue[:num_blocks], pool.free_queue[num_blocks:]
    if len(taken) < num_blocks:
        return None
    pool.free_queue = left
    for block in map(pool.blocks.__getitem__, taken):
        block.block_hash, block.ref_cnt = None, 1
    bearers = {block_hash: [other for other in ids if other not in taken] for block_hash, ids in pool.index.items()}
    pool.index = {block_hash: ids for block_hash, ids in bearers.items() if ids}
    return taken


def give_back(pool: SmallPool, table: Sequence[int]) -> None:
    """End a table's hold on its blocks. What no table holds any more can be reused; block hashes stay."""
    seen: set[int] = set()
    for block_id in table:
        if block_id in seen or block_id in pool.free_queue:
            raise ValueError(f"block {block_id}")
        seen.add(block_id)
    for block_id in table:
        pool.blocks[block_id].ref_cnt -= 1
    idle = [block_id for block_id in reversed(table) if not pool.blocks[block_id].ref_cnt]
    pool.free_queue[:0] = [block_id for block_id in idle if pool.blocks[block_id].block_hash is None]
    pool.free_queue.extend(block_id for block_id in idle if pool.blocks[block_id].block_hash is not None)


def admit(pool: SmallPool, block_hashes: Sequence[str], num_blocks: int) -> list[int] | None:
    """Give a request its table of `num_blocks` blocks, first block first; `None`, and nothing changed, without room."""
    queue = list(pool.free_queue)
    table: list[int] = []
    for block_hash in block_hashes:
        oldest = pool.index.get(block_hash, [])[:1]
        if not oldest:
            break
        table += oldest
    for block_id in table:
        pool.blocks[block_id].ref_cnt += 1
    pool.free_queue = [block_id for block_id in queue if block_id not in table]
    new = take(pool, num_blocks - len(table))
    if new is not None:
        return table + new
    for block_id in table:
        pool.blocks[block_id].ref_cnt -= 1
    pool.free_queue = queue
    return None

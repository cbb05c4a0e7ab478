"""Puts a KV cache manager back to where it was before an operation that was interrupted. See `journal`."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from mini_kv.core.block import KVCacheBlock
from mini_kv.core.block_pool import BlockPool
from mini_kv.core.kv_cache_manager import KVCacheManager


class Undo:
    """What a manager was when an operation began, beside its tables, which the journal notes as they change."""

    def __init__(self, kv_cache_manager: KVCacheManager) -> None:
        self.kv = kv_cache_manager
        self.journal = kv_cache_manager.coordinator.journal
        self._before: tuple[Any, ...] = ()

    def begin(self) -> None:
        """Note from here on what `roll_back` needs, until the operation closes the journal: `journal.is_open = False`.

        Costs O(admitted requests) at once, then O(table) per table that changes.
        """
        kv, stats = self.kv, self.kv.prefix_cache_stats
        self._before = (
            dict(kv.requests),
            dict(kv.num_adopted_tokens),
            kv.copy_on_write.state(),
            (stats.requests, stats.queries, stats.hits),
        )
        self.journal.begin()

    def roll_back(self) -> None:
        """Put the manager back, wherever the operation was interrupted. Costs O(pool).

        Block hashes that the operation promised are withdrawn. Those that it evicted are lost, and the free queue's
        order may be another. May itself be interrupted and called again.
        """
        kv, journal = self.kv, self.journal
        kv.quiet.clear()
        kv.block_pool.evict_blocks(block.block_id for block in journal.published)
        for manager in kv.coordinator.single_type_managers:
            manager.roll_back()
        requests, num_adopted_tokens, copies, counts = self._before
        _put_back(kv.requests, requests)
        _put_back(kv.num_adopted_tokens, num_adopted_tokens)
        kv.copy_on_write.restore(copies)
        stats = kv.prefix_cache_stats
        stats.requests, stats.queries, stats.hits = counts
        holders = Counter(kv.copy_on_write.pinned)
        for request_id in kv.requests:
            for table in kv.coordinator.get_blocks(request_id):
                holders.update(block for block in table if not block.is_null)
        rebuild(kv.block_pool, holders)
        journal.promised = list(journal.promised_before)


def _put_back(entries: dict[str, Any], before: dict[str, Any]) -> None:
    entries.clear()
    entries.update(before)


def rebuild(pool: BlockPool, holders: Mapping[KVCacheBlock, int]) -> None:
    """Make reference counts, index and free queue fit `holders`, the number of tables that hold each block.

    Free blocks keep their order as far as the queue can still be walked. Costs O(pool).
    """
    for block in pool.blocks:
        while block.ref_cnt != holders.get(block, 0):  # one at a time: each step is an event of the block's life
            block.ref_cnt += 1 if block.ref_cnt < holders.get(block, 0) else -1
    index = pool.make_index()
    entered = set()
    for key, blocks in pool.cached_block_hash_to_block.items():
        for block in blocks:
            if block.block_hash == key:
                index.insert(key, block)
                entered.add(block)
    pool.cached_block_hash_to_block = index
    for block in pool.blocks:
        if block.block_hash is not None and block not in entered:
            block.block_hash = None
    _rebuild_free_queue(pool)


def _rebuild_free_queue(pool: BlockPool) -> None:
    """Make a new queue of the blocks that no table holds."""
    try:
        in_queue = pool.free_block_queue.get_all_free_blocks()
    except Exception:  # its links are torn
        in_queue = []
    free = {block for block in pool.blocks if block.ref_cnt == 0 and not block.is_null}
    kept = [block for block in in_queue if block in free]
    others = sorted(free.difference(kept), key=lambda block: block.block_id)
    without_hash = [block for block in others if block.block_hash is None]
    with_hash = [block for block in others if block.block_hash is not None]
    for block in pool.blocks:
        block.prev_free_block = block.next_free_block = None
    pool.free_block_queue = pool.make_queue([*without_hash, *kept, *with_hash])

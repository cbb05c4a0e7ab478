"""A common hybrid: recently used blocks are safe, and of the others the least used is evicted first."""

import heapq
from collections import OrderedDict
from collections.abc import Sequence

from mini_kv.core.block import KVCacheBlock
from mini_kv.policy.eviction import EvictionPolicy


class RecentThenUsed(EvictionPolicy):
    """LRU for recently used blocks, LFU for the others.

        recent      [ a  b  c ]       in order of use; the block at the front becomes old after some time
        old         { x:1  y:4 }      by uses: x is evicted first, recent blocks only when no old one is left

    The time is counted in blocks that were freed since: as many as `share` of the pool. O(log n) per block.
    """

    share = 0.5

    def __init__(self, blocks: Sequence[KVCacheBlock]) -> None:
        self._recent: OrderedDict[KVCacheBlock, int] = OrderedDict()
        self._old: list[tuple[int, int, KVCacheBlock]] = []
        self._serial: dict[KVCacheBlock, int] = {}
        self._uses: dict[KVCacheBlock, int] = {}
        self._num_entered = 0
        super().__init__(blocks)

    def record_miss(self, blocks: Sequence[KVCacheBlock], position: int) -> None:
        """Count the first use."""
        for block in blocks:
            self._uses[block] = 1

    def record_hit(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Count one more use."""
        for block in blocks:
            self._uses[block] = self._uses.get(block, 0) + 1

    def enter(self, block: KVCacheBlock) -> None:
        """Let the block be the most recent."""
        self._num_entered += 1
        self._recent[block] = self._serial[block] = self._num_entered

    def leave(self, block: KVCacheBlock) -> None:
        """Remove a recent block, or make the entry of an old block stale."""
        self._recent.pop(block, None)
        del self._serial[block]

    def victim(self) -> KVCacheBlock:
        """Remove and return the least used old block, or else the least recent block."""
        self._let_age()
        while self._old:
            _, serial, block = heapq.heappop(self._old)
            if self._serial.get(block) == serial:
                del self._serial[block]
                return block
        block, _ = self._recent.popitem(last=False)
        del self._serial[block]
        return block

    def in_order(self) -> list[KVCacheBlock]:
        """Return the old blocks by uses, then the recent ones."""
        self._let_age()
        old = sorted(entry for entry in self._old if self._serial.get(entry[2]) == entry[1])
        return [*(block for _, _, block in old), *self._recent]

    def _let_age(self) -> None:
        """Move the blocks that are no longer recent to the old ones."""
        horizon = self._num_entered - int(self.share * self.num_blocks)
        while self._recent:
            block, serial = next(iter(self._recent.items()))
            if serial > horizon:
                break
            del self._recent[block]
            heapq.heappush(self._old, (self._uses.get(block, 1), serial, block))

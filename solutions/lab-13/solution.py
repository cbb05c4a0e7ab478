"""lab-13: the reference solution."""

import heapq
from collections import OrderedDict
from collections.abc import Sequence

from mini_kv.core.block import KVCacheBlock
from mini_kv.policy.eviction import EvictionPolicy


class LFU(EvictionPolicy):
    """Least frequently used, with ageing: a heap whose entries may be stale."""

    def __init__(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Begin without knowledge."""
        self.age = 0
        self.uses: dict[KVCacheBlock, int] = {}
        self.worth: dict[KVCacheBlock, int] = {}
        self.heap: list[tuple[int, int, KVCacheBlock]] = []
        self.serials: dict[KVCacheBlock, int] = {}
        self.num_entered = 0
        super().__init__(blocks)

    def record_miss(self, blocks: Sequence[KVCacheBlock], position: int) -> None:
        """Note that each of these blocks has been used once."""
        for block in blocks:
            self.uses[block] = 1
            self.worth[block] = self.age + 1

    def record_hit(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Note that each of these blocks has been used once more."""
        for block in blocks:
            self.uses[block] += 1
            self.worth[block] = self.age + self.uses[block]

    def enter(self, block: KVCacheBlock) -> None:
        """Let a block wait, with what it is worth."""
        self.num_entered += 1
        self.serials[block] = self.num_entered
        heapq.heappush(self.heap, (self.worth[block], self.num_entered, block))

    def leave(self, block: KVCacheBlock) -> None:
        """Let a waiting block go: its entry in the heap is stale from now on."""
        del self.serials[block]

    def victim(self) -> KVCacheBlock:
        """Give up the waiting block that is worth least."""
        while True:
            worth, serial, block = heapq.heappop(self.heap)
            if self.serials.get(block) == serial:
                break
        del self.serials[block]
        self.age = worth
        return block


class Hybrid(EvictionPolicy):
    """What came to wait lately is safe. Of the rest: the least used goes, and of these the deepest in its prompt."""

    def __init__(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Begin without knowledge."""
        self.recent: OrderedDict[KVCacheBlock, int] = OrderedDict()
        self.old: list[tuple[int, int, int, KVCacheBlock]] = []
        self.serials: dict[KVCacheBlock, int] = {}
        self.uses: dict[KVCacheBlock, int] = {}
        self.depth: dict[KVCacheBlock, int] = {}
        self.num_entered = 0
        super().__init__(blocks)

    def record_miss(self, blocks: Sequence[KVCacheBlock], position: int) -> None:
        """Note the first use, and how deep the blocks stand in their prompt."""
        for depth, block in enumerate(blocks, start=position):
            self.uses[block] = 1
            self.depth[block] = depth

    def record_hit(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Note one use more."""
        for block in blocks:
            self.uses[block] += 1

    def enter(self, block: KVCacheBlock) -> None:
        """Let the block be the most recent."""
        self.num_entered += 1
        self.recent[block] = self.serials[block] = self.num_entered

    def leave(self, block: KVCacheBlock) -> None:
        """Take it out of the recent ones, or make its entry among the old ones stale."""
        self.recent.pop(block, None)
        del self.serials[block]

    def victim(self) -> KVCacheBlock:
        """Give up the least used of the old blocks, or else the least recent."""
        self.let_age()
        while self.old:
            _, _, serial, block = heapq.heappop(self.old)
            if self.serials.get(block) == serial:
                del self.serials[block]
                return block
        block, _ = self.recent.popitem(last=False)
        del self.serials[block]
        return block

    def let_age(self) -> None:
        """Move what came to wait more than half a pool of blocks ago to the old ones."""
        horizon = self.num_entered - self.num_blocks // 2
        while self.recent and next(iter(self.recent.values())) <= horizon:
            block, serial = self.recent.popitem(last=False)
            heapq.heappush(self.old, (self.uses[block], -self.depth[block], serial, block))

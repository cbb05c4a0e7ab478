"""lab-13: without a heap. Each victim costs a look at all blocks that wait; the board shows what that takes."""

from collections.abc import Sequence

from mini_kv.core.block import KVCacheBlock
from mini_kv.policy.eviction import EvictionPolicy


class LFU(EvictionPolicy):
    """Least frequently used, with ageing."""

    def __init__(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Begin without knowledge."""
        self.age = 0
        self.known: dict[int, tuple[int, int]] = {}
        self.line: list[KVCacheBlock] = []
        super().__init__(blocks)

    def record_miss(self, blocks: Sequence[KVCacheBlock], position: int) -> None:
        """Note that each of these blocks has been used once."""
        self.known.update({block.block_id: (1, self.age + 1) for block in blocks})

    def record_hit(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Note that each of these blocks has been used once more."""
        for block in blocks:
            uses = self.known[block.block_id][0] + 1
            self.known[block.block_id] = (uses, self.age + uses)

    def enter(self, block: KVCacheBlock) -> None:
        """Let a block wait, at the end of the line."""
        self.line.append(block)

    def leave(self, block: KVCacheBlock) -> None:
        """Let a waiting block go."""
        self.line.remove(block)

    def victim(self) -> KVCacheBlock:
        """Give up the waiting block that is worth least: `min` returns the first of equals."""
        block = min(self.line, key=lambda block: self.known[block.block_id][1])
        self.line.remove(block)
        self.age = self.known[block.block_id][1]
        return block


class Hybrid(EvictionPolicy):
    """What came twice outlives what came once, and a head its tail; what came to wait lately outlives both."""

    def __init__(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Begin without knowledge."""
        self.line: list[tuple[int, KVCacheBlock]] = []
        self.num_entered = 0
        self.came_again: set[KVCacheBlock] = set()
        self.depth: dict[KVCacheBlock, int] = {}
        super().__init__(blocks)

    def record_miss(self, blocks: Sequence[KVCacheBlock], position: int) -> None:
        """Note how deep the blocks stand; they have come once."""
        for number, block in enumerate(blocks):
            self.depth[block] = position + number
            self.came_again.discard(block)

    def record_hit(self, blocks: Sequence[KVCacheBlock]) -> None:
        """These have come again."""
        self.came_again.update(blocks)

    def enter(self, block: KVCacheBlock) -> None:
        """Wait at the end of the line."""
        self.num_entered += 1
        self.line.append((self.num_entered, block))

    def leave(self, block: KVCacheBlock) -> None:
        """Let a waiting block go."""
        self.line = [entry for entry in self.line if entry[1] is not block]

    def victim(self) -> KVCacheBlock:
        """Give up one that has waited for half a pool of others, or else the first in line."""
        old = [entry for entry in self.line if entry[0] <= self.num_entered - self.num_blocks // 2]
        entry = min(old, key=lambda e: (e[1] in self.came_again, -self.depth[e[1]])) if old else self.line[0]
        self.line.remove(entry)
        return entry[1]

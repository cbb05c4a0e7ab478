"""lab-13: one line of blocks per worth, and the smallest worth looked up. No entry is ever stale."""

from collections import defaultdict
from collections.abc import Sequence

from mini_kv.core.block import KVCacheBlock
from mini_kv.policy.eviction import EvictionPolicy


class LFU(EvictionPolicy):
    """Least frequently used, with ageing."""

    def __init__(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Begin without knowledge."""
        self.age = 0
        self.uses: dict[KVCacheBlock, int] = {}
        self.worth: dict[KVCacheBlock, int] = {}
        self.waits_at: dict[KVCacheBlock, int] = {}
        """The worth under which a block waits that was used while it waited: a hit comes before `leave`."""
        self.lines: defaultdict[int, dict[KVCacheBlock, None]] = defaultdict(dict)
        super().__init__(blocks)

    def record_miss(self, blocks: Sequence[KVCacheBlock], position: int) -> None:
        """Note that each of these blocks has been used once."""
        for block in blocks:
            self.uses[block] = 0
        self.count(blocks)

    def record_hit(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Note that each of these blocks has been used once more, in whatever line it waits."""
        for block in blocks:
            if block in self.lines.get(self.worth[block], {}):
                self.waits_at[block] = self.worth[block]
        self.count(blocks)

    def count(self, blocks: Sequence[KVCacheBlock]) -> None:
        """One use more, now."""
        for block in blocks:
            self.uses[block] += 1
            self.worth[block] = self.age + self.uses[block]

    def enter(self, block: KVCacheBlock) -> None:
        """Let a block wait at the end of its worth's line."""
        self.lines[self.worth[block]][block] = None

    def leave(self, block: KVCacheBlock) -> None:
        """Let a waiting block go."""
        worth = self.waits_at.pop(block, self.worth[block])
        del self.lines[worth][block]
        if not self.lines[worth]:
            del self.lines[worth]

    def victim(self) -> KVCacheBlock:
        """Give up the first of the cheapest line."""
        self.age = min(self.lines)
        block = next(iter(self.lines[self.age]))
        del self.lines[self.age][block]
        if not self.lines[self.age]:
            del self.lines[self.age]
        return block


class Hybrid(EvictionPolicy):
    """The deepest block goes first, unless it came to wait within the last third of a pool."""

    def __init__(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Begin without knowledge."""
        self.line: dict[KVCacheBlock, int] = {}
        self.known: dict[KVCacheBlock, tuple[int, int]] = {}
        self.now = 0
        super().__init__(blocks)

    def record_miss(self, blocks: Sequence[KVCacheBlock], position: int) -> None:
        """Remember uses and depth."""
        for number, block in enumerate(blocks):
            self.known[block] = (1, position + number)

    def record_hit(self, blocks: Sequence[KVCacheBlock]) -> None:
        """One use more."""
        for block in blocks:
            uses, depth = self.known[block]
            self.known[block] = (min(uses + 1, 3), depth)

    def enter(self, block: KVCacheBlock) -> None:
        """Wait, from now on."""
        self.now += 1
        self.line[block] = self.now

    def leave(self, block: KVCacheBlock) -> None:
        """Be held."""
        del self.line[block]

    def victim(self) -> KVCacheBlock:
        """Give up the least used, then the deepest, of those that are not recent; else the one that came first."""
        old = [block for block, came in self.line.items() if came <= self.now - self.num_blocks // 2]
        if old:
            block = min(old, key=lambda block: (self.known[block][0], -self.known[block][1], self.line[block]))
        else:
            block = next(iter(self.line))
        del self.line[block]
        return block

"""Policies that give each block a number when it comes to wait; the lowest goes first. O(log n) per block.

    FIFO        when it first came            a hit changes nothing
    LFU         how often it was used         with ageing: what was popular once does not stay for ever
    SeenTwice   once, or more than once       a prompt that comes only once cannot push out what has come twice
    LeafFirst   how far from its root         the longest prompts lose their tails first

Equal numbers: who came first goes first, which within one prompt is its tail. That is more than a habit: a block is
found only if all blocks before it are, so under every policy a head that goes before its tail takes it along.
"""

import heapq
from collections import OrderedDict
from collections.abc import Sequence

from mini_kv.core.block import BlockHashWithGroupId, KVCacheBlock
from mini_kv.policy.eviction import EvictionPolicy


class Ranked(EvictionPolicy):
    """A heap of ranks. What leaves by a hit is not looked for in the heap: its entry is stale, and skipped later."""

    def __init__(self, blocks: Sequence[KVCacheBlock]) -> None:
        self._heap: list[tuple[float, int, KVCacheBlock]] = []
        self._serial: dict[KVCacheBlock, int] = {}
        """Number of the one entry of each waiting block that counts."""
        self._num_entered = 0
        super().__init__(blocks)

    def rank(self, block: KVCacheBlock) -> float:
        """Return the rank of a block that enters the queue now."""
        raise NotImplementedError

    def enter(self, block: KVCacheBlock) -> None:
        """Give the block its rank, and a serial number that no other entry has."""
        self._num_entered += 1
        self._serial[block] = self._num_entered
        heapq.heappush(self._heap, (self.rank(block), self._num_entered, block))

    def leave(self, block: KVCacheBlock) -> None:
        """Make the block's entry stale; when most are, sweep."""
        del self._serial[block]
        if len(self._heap) > 2 * self.num_blocks:
            self._heap = self._that_count()
            heapq.heapify(self._heap)

    def victim(self) -> KVCacheBlock:
        """Return the block of the lowest rank."""
        while True:
            rank, serial, block = heapq.heappop(self._heap)
            if self._serial.get(block) == serial:
                del self._serial[block]
                self.evicted(block, rank)
                return block

    def evicted(self, block: KVCacheBlock, rank: float) -> None:
        """Forget or remember what is to be forgotten or remembered of a victim; nothing by default."""

    def in_order(self) -> list[KVCacheBlock]:
        """Return the blocks by rank."""
        return [block for _, _, block in sorted(self._that_count(), key=lambda entry: entry[:2])]

    def _that_count(self) -> list[tuple[float, int, KVCacheBlock]]:
        return [entry for entry in self._heap if self._serial.get(entry[2]) == entry[1]]


class FIFO(Ranked):
    """First in, first out: the block that has been cached longest goes, used or not."""

    def __init__(self, blocks: Sequence[KVCacheBlock]) -> None:
        self._first_came: dict[KVCacheBlock, int] = {}
        super().__init__(blocks)

    def record_miss(self, blocks: Sequence[KVCacheBlock], position: int) -> None:
        """Forget when the previous content of each block was first freed."""
        for block in blocks:
            self._first_came.pop(block, None)

    def rank(self, block: KVCacheBlock) -> float:
        """Return the number of the block's first wait since it was filled."""
        return self._first_came.setdefault(block, self._num_entered)

    def evicted(self, block: KVCacheBlock, rank: float) -> None:
        """Forget when it came: what is written into it next is new."""
        del self._first_came[block]


class LFU(Ranked):
    """Least frequently used, with ageing: a block's uses count on top of the age that the cache had at the last one.

    The age is the rank of the last victim. It rises as blocks are evicted, so that a newcomer starts level with what
    was popular long ago and has not been used since. Source: LFU with dynamic ageing (Arlitt et al., 2000, "Evaluating
    content management techniques for Web proxy caches").
    """

    ageing = True

    def __init__(self, blocks: Sequence[KVCacheBlock]) -> None:
        self._age = 0.0
        self._uses: dict[KVCacheBlock, int] = {}
        self._worth: dict[KVCacheBlock, float] = {}
        super().__init__(blocks)

    def record_miss(self, blocks: Sequence[KVCacheBlock], position: int) -> None:
        """Count the first use."""
        for block in blocks:
            self._uses[block] = 1
            self._worth[block] = self._age + 1

    def record_hit(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Count one use more."""
        for block in blocks:
            self._uses[block] = self._uses.get(block, 0) + 1
            self._worth[block] = self._age + self._uses[block]

    def rank(self, block: KVCacheBlock) -> float:
        """Return the uses, plus the age at the last of them."""
        return self._worth.get(block, self._age)

    def evicted(self, block: KVCacheBlock, rank: float) -> None:
        """Grow as old as the victim was worth."""
        if self.ageing:
            self._age = rank
        self._uses.pop(block, None)
        self._worth.pop(block, None)


class LFUWithoutAgeing(LFU):
    """Least frequently used, for ever: what was popular once keeps its place."""

    ageing = False


class SeenTwice(Ranked):
    """Blocks that were used once are evicted first, the least recent of them first; then the others, likewise.

    A key that was evicted is remembered for as long as it takes to evict a pool of others: who returns by then has been
    seen twice. So a long prompt that never comes back passes through and leaves no trace. Source: 2Q (Johnson and
    Shasha, VLDB 1994), its list of ghosts.
    """

    def __init__(self, blocks: Sequence[KVCacheBlock]) -> None:
        self._seen_twice: set[KVCacheBlock] = set()
        self._ghosts: OrderedDict[BlockHashWithGroupId, None] = OrderedDict()
        super().__init__(blocks)

    def record_miss(self, blocks: Sequence[KVCacheBlock], position: int) -> None:
        """Look whether the key is one that was evicted lately."""
        for block in blocks:
            self._seen_twice.discard(block)
            if block.block_hash is not None and block.block_hash in self._ghosts:
                del self._ghosts[block.block_hash]
                self._seen_twice.add(block)

    def record_hit(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Note that these have come again."""
        self._seen_twice.update(blocks)

    def rank(self, block: KVCacheBlock) -> float:
        """Return 1 for what has come again, 0 for what has not."""
        return 1 if block in self._seen_twice else 0

    def evicted(self, block: KVCacheBlock, rank: float) -> None:
        """Remember the key, and forget the oldest beyond a pool's worth."""
        self._seen_twice.discard(block)
        if block.block_hash is None:
            return
        self._ghosts[block.block_hash] = None
        self._ghosts.move_to_end(block.block_hash)
        if len(self._ghosts) > self.num_blocks:
            self._ghosts.popitem(last=False)


class LeafFirst(Ranked):
    """The block farthest from its root goes first: of all prompts the longest loses its tail.

    Prompts form a tree, in which a child always stands deeper than its parent: no block goes before one that needs it.
    """

    def __init__(self, blocks: Sequence[KVCacheBlock]) -> None:
        self._depth: dict[KVCacheBlock, int] = {}
        super().__init__(blocks)

    def record_miss(self, blocks: Sequence[KVCacheBlock], position: int) -> None:
        """Note how deep the blocks stand."""
        for depth, block in enumerate(blocks, start=position):
            self._depth[block] = depth

    def rank(self, block: KVCacheBlock) -> float:
        """Return the depth, the deepest lowest."""
        return -self._depth.get(block, 0)

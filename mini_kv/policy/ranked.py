"""Policies that give each freed block a number. The block with the lowest number is evicted first. O(log n) per block.

    FIFO        when it was first freed       a hit changes nothing
    LFU         how often it was used         with ageing: a block that was popular once does not stay forever
    SeenTwice   once, or more than once       a prompt that is seen once cannot evict blocks that were used twice
    LeafFirst   how far from its root         the longest prompts lose their tails first

Of blocks with equal numbers the one freed first is evicted first, which within one prompt is its tail. This matters: a
block is found only if all blocks before it are. So when a head is evicted before its tail, the tail is useless.
"""

import heapq
from collections import OrderedDict
from collections.abc import Sequence
from itertools import count

from mini_kv.core.block import BlockHashWithGroupId, KVCacheBlock
from mini_kv.policy.eviction import EvictionPolicy


class Ranked(EvictionPolicy):
    """A queue of free blocks per rank, and a heap of the ranks."""

    def __init__(self, blocks: Sequence[KVCacheBlock]) -> None:
        self._queues: dict[float, OrderedDict[KVCacheBlock, None]] = {}
        """The free blocks of each rank, the first freed in front. A rank without blocks has no queue."""
        self._heap: list[float] = []
        """The ranks that have a queue, and stale ones that had one."""
        self._rank_of: dict[KVCacheBlock, float] = {}
        self._num_entered = 0
        super().__init__(blocks)

    def rank(self, block: KVCacheBlock) -> float:
        """Return the rank of a block that is freed now."""
        raise NotImplementedError

    def enter(self, block: KVCacheBlock) -> None:
        """Put the block at the end of its rank's queue."""
        self._num_entered += 1
        rank = self._rank_of[block] = self.rank(block)
        queue = self._queues.get(rank)
        if queue is None:
            queue = self._queues[rank] = OrderedDict()
            heapq.heappush(self._heap, rank)
        queue[block] = None

    def leave(self, block: KVCacheBlock) -> None:
        """Remove the block from its rank's queue. If most ranks in the heap are stale, remove these."""
        rank = self._rank_of.pop(block)
        queue = self._queues[rank]
        del queue[block]
        if not queue:
            del self._queues[rank]
            if len(self._heap) > 2 * self.num_blocks:
                self._heap = sorted(self._queues)

    def victim(self) -> KVCacheBlock:
        """Remove and return the first block of the lowest rank."""
        while (queue := self._queues.get(rank := self._heap[0])) is None:
            heapq.heappop(self._heap)
        block, _ = queue.popitem(last=False)
        if not queue:
            del self._queues[rank]
        del self._rank_of[block]
        self.evicted(block, rank)
        return block

    def evicted(self, block: KVCacheBlock, rank: float) -> None:
        """Update the policy's data after an eviction. Does nothing by default."""

    def in_order(self) -> list[KVCacheBlock]:
        """Return the blocks by rank."""
        return [block for rank in sorted(self._queues) for block in self._queues[rank]]


class FIFO(EvictionPolicy):
    """First in, first out: the block that has been cached longest is evicted first, used or not.

    The rank is a place in line, which no other block has. So a heap of places is enough, and `Ranked`'s queue per rank
    is not needed.
    """

    def __init__(self, blocks: Sequence[KVCacheBlock]) -> None:
        self._places: dict[KVCacheBlock, int] = {}
        """Place of each block that has been free since it got its content, free or in use now."""
        self._free: dict[int, KVCacheBlock] = {}
        self._heap: list[int] = []
        """The places of the free blocks, and stale ones of blocks that a hit has found."""
        self._num_places = 0
        super().__init__(blocks)

    def record_miss(self, blocks: Sequence[KVCacheBlock], position: int) -> None:
        """Remove the places of each block's previous content."""
        for block in blocks:
            self._places.pop(block, None)

    def enter(self, block: KVCacheBlock) -> None:
        """Add the block at its place: behind all others the first time, then always there."""
        self._num_places += 1
        place = self._places.setdefault(block, self._num_places)
        self._free[place] = block
        heapq.heappush(self._heap, place)

    def leave(self, block: KVCacheBlock) -> None:
        """Let the block keep its place. If most places in the heap are stale, remove these."""
        del self._free[self._places[block]]
        if len(self._heap) > 2 * self.num_blocks:
            self._heap = sorted(self._free)

    def victim(self) -> KVCacheBlock:
        """Remove and return the first free block in line."""
        while (place := heapq.heappop(self._heap)) not in self._free:
            pass
        block = self._free.pop(place)
        del self._places[block]
        return block

    def in_order(self) -> list[KVCacheBlock]:
        """Return the blocks by place."""
        return [self._free[place] for place in sorted(self._free)]


class LFU(Ranked):
    """Least frequently used, with ageing: the rank is a block's number of uses plus the cache's age at the last use.

    The age is the rank of the last victim. It rises as blocks are evicted, so that a new block has the same chance as
    one that was popular long ago and not used since. Source: LFU with dynamic ageing (Arlitt et al., 2000, "Evaluating
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
        self._uses.update(dict.fromkeys(blocks, 1))
        self._worth.update(dict.fromkeys(blocks, self._age + 1))

    def record_hit(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Count one more use."""
        for block in blocks:
            self._uses[block] = self._uses.get(block, 0) + 1
            self._worth[block] = self._age + self._uses[block]

    def rank(self, block: KVCacheBlock) -> float:
        """Return the number of uses plus the age at the last use."""
        return self._worth.get(block, self._age)

    def evicted(self, block: KVCacheBlock, rank: float) -> None:
        """Set the age to the victim's rank."""
        if self.ageing:
            self._age = rank


class LFUWithoutAgeing(LFU):
    """Least frequently used, without ageing: a block that was popular once stays."""

    ageing = False


class SeenTwice(Ranked):
    """Evicts the blocks that were used once first, from the least recent on, then the others in the same order.

    An evicted key is remembered until as many others as the pool has blocks are evicted. A block with such a key counts
    as used twice. So a long prompt that is never repeated evicts no block that was used twice. Source: 2Q (Johnson and
    Shasha, VLDB 1994), its list of ghosts.
    """

    def __init__(self, blocks: Sequence[KVCacheBlock]) -> None:
        self._seen_twice: set[KVCacheBlock] = set()
        self._ghosts: OrderedDict[BlockHashWithGroupId, None] = OrderedDict()
        super().__init__(blocks)

    def record_miss(self, blocks: Sequence[KVCacheBlock], position: int) -> None:
        """Check whether the key was evicted recently."""
        for block in blocks:
            self._seen_twice.discard(block)
            if block.block_hash is not None and block.block_hash in self._ghosts:
                del self._ghosts[block.block_hash]
                self._seen_twice.add(block)

    def record_hit(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Note that these blocks were used again."""
        self._seen_twice.update(blocks)

    def rank(self, block: KVCacheBlock) -> float:
        """Return 1 for a block that was used again, 0 for any other."""
        return 1 if block in self._seen_twice else 0

    def evicted(self, block: KVCacheBlock, rank: float) -> None:
        """Remember the key. Forget the oldest keys beyond the pool's number of blocks."""
        self._seen_twice.discard(block)
        if block.block_hash is None:
            return
        self._ghosts[block.block_hash] = None
        self._ghosts.move_to_end(block.block_hash)
        if len(self._ghosts) > self.num_blocks:
            self._ghosts.popitem(last=False)


class LeafFirst(Ranked):
    """Evicts the block farthest from its root first: the longest prompt loses its tail.

    Prompts form a tree, in which a child is always deeper than its parent. So no block is evicted before its children.
    """

    def __init__(self, blocks: Sequence[KVCacheBlock]) -> None:
        self._depth: dict[KVCacheBlock, int] = {}
        super().__init__(blocks)

    def record_miss(self, blocks: Sequence[KVCacheBlock], position: int) -> None:
        """Note the depth of the blocks."""
        self._depth.update(zip(blocks, count(position)))

    def rank(self, block: KVCacheBlock) -> float:
        """Return minus the depth: the deepest block has the lowest rank."""
        return -self._depth.get(block, 0)

"""SIEVE: one queue, one bit per block, and a hand that walks from the oldest to the newest."""

from collections.abc import Sequence

from mini_kv.core.block import KVCacheBlock
from mini_kv.policy.eviction import EvictionPolicy


class _Place:
    """A block's place in the queue of all cached blocks, between an older one and a newer one."""

    __slots__ = ("block", "newer", "older", "used_again")

    def __init__(self, block: KVCacheBlock | None) -> None:
        self.block = block
        self.used_again = False
        self.older = self.newer = self


class Sieve(EvictionPolicy):
    """The hand searches for a block not used again since it last passed. A used block loses its mark and stays.

        oldest  [ a   b*  c   d* ]  newest        * used again
                      ^ hand                      b loses its mark, c is the victim, the hand stays before d

    A hit moves no block: it sets a bit. Blocks keep their place while a request holds them. The hand skips these.
    O(1) per block, averaged over all steps of the hand. Source: Zhang et al., "SIEVE is simpler than LRU" (NSDI
    2024).
    """

    def __init__(self, blocks: Sequence[KVCacheBlock]) -> None:
        self._end = _Place(None)  # a ring: the end is older than the oldest and newer than the newest
        self._hand = self._end
        self._places: dict[KVCacheBlock, _Place] = {}
        self._held: set[KVCacheBlock] = set()
        super().__init__(blocks)

    def record_hit(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Mark the blocks."""
        for block in blocks:
            if block in self._places:
                self._places[block].used_again = True

    def record_miss(self, blocks: Sequence[KVCacheBlock], position: int) -> None:
        """Forget the place of these blocks' previous content, if it lost its key while it was in use."""
        for block in blocks:
            if block in self._held:
                self._held.remove(block)
                self._take_out(block)

    def enter(self, block: KVCacheBlock) -> None:
        """Add a new block after all others. A block that has a place already keeps it."""
        if block in self._held:
            self._held.remove(block)
            return
        place = self._places[block] = _Place(block)
        newest = self._end.older
        place.older, place.newer = newest, self._end
        newest.newer = self._end.older = place

    def leave(self, block: KVCacheBlock) -> None:
        """Keep the place of a block that a request holds."""
        self._held.add(block)

    def victim(self) -> KVCacheBlock:
        """Move the hand to the first free block without a mark and return it. Passed blocks lose their marks."""
        place = self._hand
        while place.block is None or place.block in self._held or place.used_again:
            if place.block not in self._held:
                place.used_again = False
            place = place.newer
        self._hand = place.newer
        self._take_out(place.block)
        return place.block

    def in_order(self) -> list[KVCacheBlock]:
        """Return the blocks in the hand's order: those without a mark in its first round, then the others."""
        waiting: list[_Place] = []
        place = self._hand
        for _ in range(len(self._places) + 1):
            if place.block is not None and place.block not in self._held:
                waiting.append(place)
            place = place.newer
        first = [place.block for place in waiting if place.block and not place.used_again]
        return first + [place.block for place in waiting if place.block and place.used_again]

    def _take_out(self, block: KVCacheBlock) -> None:
        place = self._places.pop(block)
        if self._hand is place:
            self._hand = place.newer
        place.older.newer, place.newer.older = place.newer, place.older

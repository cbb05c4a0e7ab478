"""A policy that uses hints: how long a session will probably pause before its next request."""

from collections.abc import Sequence

from mini_kv.core.block import KVCacheBlock
from mini_kv.policy.eviction import Hint
from mini_kv.policy.ranked import Ranked


class ExpectedReturn(Ranked):
    """LRU that treats a session with a long expected pause as if it had been unused for that long already.

        session     last request at     expected pause      rank
        a           100 s               221 s, its user     -121 s      evicted first
        b            40 s                17 s, its tool       23 s

    A block of several sessions has the highest rank of them. So a prefix never has a lower rank than what follows it.
    Without hints every rank is 0 and the order is that of the queue: LRU. O(log n) per block.
    """

    def __init__(self, blocks: Sequence[KVCacheBlock]) -> None:
        self._ranks: dict[KVCacheBlock, dict[str, int]] = {}
        super().__init__(blocks)

    def record_miss(self, blocks: Sequence[KVCacheBlock], position: int) -> None:
        """Forget the sessions that used the blocks' previous content."""
        for block in blocks:
            self._ranks[block] = {}

    def record_hint(self, hint: Hint, blocks: Sequence[KVCacheBlock]) -> None:
        """Note the session's rank for its blocks."""
        for block in blocks:
            self._ranks.setdefault(block, {})[hint.session_id] = hint.now - hint.expected_pause

    def rank(self, block: KVCacheBlock) -> float:
        """Return the highest rank of the block's sessions."""
        return max(self._ranks.get(block, {}).values(), default=0)

    def evicted(self, block: KVCacheBlock, rank: float) -> None:
        """Forget the victim."""
        self._ranks.pop(block, None)

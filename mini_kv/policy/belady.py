"""Belady's policy, which knows the future: the upper bound for every other policy."""

from collections import defaultdict, deque
from collections.abc import Iterable, Sequence

from mini_kv.core.block import BlockHash, BlockHashWithGroupId, KVCacheBlock
from mini_kv.core.block_hash import make_block_hash_with_group_id
from mini_kv.policy.eviction import Policy
from mini_kv.policy.ranked import Ranked

_NEVER = float("inf")


class Belady(Ranked):
    """Evicts the block with the farthest next use first. Of blocks that are never used again, the oldest is first.

    No policy can do better, for one request at a time. A prompt that needs a block also needs all blocks before it, so
    a parent's next use is never after its child's. At equal distance the tail is evicted first, so no block stays after
    its parent. Source: Belady (1966), "A study of replacement algorithms for a virtual-storage
    computer".
    """

    def __init__(self, blocks: Sequence[KVCacheBlock], uses: dict[BlockHashWithGroupId, deque[int]]) -> None:
        self._uses = uses
        super().__init__(blocks)

    def record_miss(self, blocks: Sequence[KVCacheBlock], position: int) -> None:
        """The use that was next is now."""
        self.record_hit(blocks)

    def record_hit(self, blocks: Sequence[KVCacheBlock]) -> None:
        """The use that was next is now."""
        for block in blocks:
            if block.block_hash is not None:
                self._uses[block.block_hash].popleft()

    def rank(self, block: KVCacheBlock) -> float:
        """Return minus the number of the next request that needs the block."""
        later = self._uses[block.block_hash] if block.block_hash is not None else None
        return -later[0] if later else -_NEVER


def belady(prompts: Iterable[Sequence[BlockHash]]) -> Policy:
    """Return the policy that knows these prompts: the block hashes of each request that will be admitted, in order.

    Its queue is for one run, with one request at a time, of a cache with one group.
    """
    prompts = list(prompts)

    def make(blocks: Sequence[KVCacheBlock]) -> Belady:
        uses: dict[BlockHashWithGroupId, deque[int]] = defaultdict(deque)
        for number, block_hashes in enumerate(prompts):
            for block_hash in block_hashes:
                uses[make_block_hash_with_group_id(block_hash, 0)].append(number)
        return Belady(blocks, uses)

    return make

"""Belady's policy, which knows the future: the upper bound for every other policy."""

from collections.abc import Sequence
from itertools import repeat

from mini_kv.core.block import BlockHash, KVCacheBlock
from mini_kv.policy.eviction import Policy
from mini_kv.policy.ranked import Ranked


class Belady(Ranked):
    """Evicts the block with the farthest next use first. Of blocks that are never used again, the oldest is first.

    No policy can do better, for one request at a time. A prompt that needs a block also needs all blocks before it, so
    a parent's next use is never after its child's. At equal distance the tail is evicted first, so no block stays after
    its parent. Source: Belady (1966), "A study of replacement algorithms for a virtual-storage
    computer".
    """

    def __init__(self, blocks: Sequence[KVCacheBlock], uses: Sequence[Sequence[int]]) -> None:
        self._uses = uses
        """See `next_uses`."""
        self._request = -1
        """Number of the request that was admitted last."""
        self._next_use: dict[KVCacheBlock, int] = {}
        super().__init__(blocks)

    def record_hit(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Count the request, which has a hit even if it is empty, and note the next uses of its hit."""
        self._request += 1
        self.record_miss(blocks, 0)

    def record_miss(self, blocks: Sequence[KVCacheBlock], position: int) -> None:
        """Note the next uses of these blocks of the request."""
        self._next_use.update(zip(blocks, self._uses[self._request][position:], strict=False))

    def rank(self, block: KVCacheBlock) -> float:
        """Return minus the number of the next request that needs the block."""
        return -self._next_use[block]


def belady(prompts: Sequence[Sequence[BlockHash]]) -> Policy:
    """Return the policy that knows these prompts: the block hashes of each request that will be admitted, in order.

    Its queue is for one run, with one request at a time, of a cache with one group of full attention.
    """
    uses = next_uses(prompts)
    return lambda blocks: Belady(blocks, uses)


def next_uses(prompts: Sequence[Sequence[BlockHash]]) -> list[list[int]]:
    """Return, per block of each prompt, the number of the next prompt that has it. Costs O(blocks).

    For a block that no later prompt has it is the number of prompts, which is larger than that of any of them.
    """
    uses = []
    coming: dict[BlockHash, int] = {}
    for number in range(len(prompts) - 1, -1, -1):
        uses.append(list(map(coming.get, prompts[number], repeat(len(prompts)))))
        coming.update(dict.fromkeys(prompts[number], number))
    return uses[::-1]

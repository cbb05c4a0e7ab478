"""Eviction ahead of need, an experiment: some free blocks lose their hash before memory is needed."""

from collections.abc import Iterable
from functools import partial
from typing import Any

from mini_kv.core.block import KVCacheBlock
from mini_kv.core.errors import ConfigError
from mini_kv.core.free_queue import FreeKVCacheBlockQueue
from mini_kv.core.parts import KVCacheParts
from mini_kv.policy.eviction import Policy, PolicyPool, parts_of


class AheadPool(PolicyPool):
    """A pool that keeps its next `num_ahead` free blocks without a hash, after each time that a table frees blocks.

    With one tier of memory this gains nothing: dropping a hash when memory is needed costs nothing, and until then the
    block can be hit. With a second tier, blocks can be copied there before a request waits for their memory.
    """

    def __init__(self, num_ahead: int, *args: Any, **kwargs: Any) -> None:
        if num_ahead < 0:
            raise ConfigError(f"num_ahead is {num_ahead}, it must not be negative")
        self.num_ahead = num_ahead
        super().__init__(*args, **kwargs)

    def free_blocks(self, ordered_blocks: Iterable[KVCacheBlock]) -> None:
        """Free as in `BlockPool`. Then the next victims lose their hash and stay in front. Costs O(num_ahead)."""
        super().free_blocks(ordered_blocks)
        next_victims = self.free_block_queue.popleft_n(min(self.num_ahead, self.num_free_blocks))
        self.evict_blocks(block.block_id for block in next_victims)
        self.free_block_queue.prepend_n(next_victims)


def evicting_ahead(num_ahead: int, policy: Policy = FreeKVCacheBlockQueue) -> KVCacheParts:
    """Return the parts of a cache manager that keeps `num_ahead` free blocks without a hash."""
    return parts_of(policy, partial(AheadPool, num_ahead))

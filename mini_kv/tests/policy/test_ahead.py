"""Evicting ahead of need, as *Who should go* tells it: hits that might have come are lost, and nothing is won."""

from collections.abc import Iterable
from functools import partial
from typing import Any

from mini_kv.core.block import KVCacheBlock
from mini_kv.core.block_pool import BlockPool
from mini_kv.core.parts import KVCacheParts
from mini_kv.tools.traces.replay import replay
from mini_kv.tools.traces.synthetic import generate

AHEAD = [0, 25, 50, 75, 100]


class AheadPool(BlockPool):
    """A pool that keeps its next `num_ahead` free blocks without a hash, after each time that a table frees blocks."""

    def __init__(self, num_ahead: int, *args: Any, **kwargs: Any) -> None:
        self.num_ahead = num_ahead
        super().__init__(*args, **kwargs)

    def free_blocks(self, ordered_blocks: Iterable[KVCacheBlock]) -> None:
        super().free_blocks(ordered_blocks)
        next_victims = self.free_block_queue.popleft_n(min(self.num_ahead, self.num_free_blocks))
        self.evict_blocks(block.block_id for block in next_victims)
        self.free_block_queue.prepend_n(next_victims)


def test_blocks_that_lose_their_hash_early_cost_hits_like_a_smaller_pool() -> None:
    """The chapter prints a part of these."""
    trace = generate(7, 300)
    parts = [KVCacheParts(make_pool=partial(AheadPool, n)) for n in AHEAD]
    assert [replay(trace, 150, parts=part).hit_blocks for part in parts] == [1548, 1460, 1349, 1139, 964]
    assert [replay(trace, 150 - n).hit_blocks for n in AHEAD] == [1548, 1458, 1336, 1135, 956]

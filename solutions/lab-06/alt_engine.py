"""lab-06, the engine's own way: every step is handed to the coordinator, which has one table for each group.

This file makes the lab's tests run on the engine, whose manager has two of the four methods elsewhere.
"""

from collections.abc import Sequence

from mini_kv.core import kv_cache_manager as engine
from mini_kv.core.block import KVCacheBlock
from mini_kv.core.kv_cache_manager import KVCacheBlocks
from mini_kv.core.request import Request


class KVCacheManager(engine.KVCacheManager):
    """The engine's manager and nothing else."""

    def get_num_blocks_to_allocate(
        self, request_id: str, num_tokens: int, new_computed_blocks: Sequence[KVCacheBlock]
    ) -> int:
        num_blocks = self.coordinator.get_num_blocks_to_allocate(request_id, num_tokens, [new_computed_blocks])
        assert num_blocks is not None, "only a layer with states says: not now"
        return num_blocks

    def allocate_slots(  # type: ignore[override]  # the engine's has three more, for a scheduler's admission
        self,
        request: Request,
        num_new_tokens: int,
        num_new_computed_tokens: int = 0,
        new_computed_blocks: KVCacheBlocks | None = None,
        num_lookahead_tokens: int = 0,
    ) -> KVCacheBlocks | None:
        return super().allocate_slots(
            request, num_new_tokens, num_new_computed_tokens, new_computed_blocks, num_lookahead_tokens
        )

    def cache_blocks(self, request: Request, num_computed_tokens: int) -> None:
        self.coordinator.cache_blocks(request, num_computed_tokens)

    def free(self, request: Request) -> None:
        super().free(request)

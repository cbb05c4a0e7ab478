"""lab-06: the reference solution."""

from collections.abc import Sequence
from typing import Any

from mini_kv.core import kv_cache_manager as engine
from mini_kv.core.block import KVCacheBlock
from mini_kv.core.errors import AllocationError, RepeatedRequestError, UnknownRequestError
from mini_kv.core.kv_cache_interface import KVCacheConfig
from mini_kv.core.kv_cache_manager import KVCacheBlocks
from mini_kv.core.request import Request
from mini_kv.core.single_type_kv_cache_manager import cdiv


class KVCacheManager(engine.KVCacheManager):
    """The engine's manager, with our hands on its block tables."""

    def __init__(self, kv_cache_config: KVCacheConfig, **options: Any) -> None:
        super().__init__(kv_cache_config, **options)
        (group,) = self.coordinator.single_type_managers
        self.req_to_blocks = group.req_to_blocks
        self.num_cached_block = group.num_cached_block

    def get_num_blocks_to_allocate(
        self, request_id: str, num_tokens: int, new_computed_blocks: Sequence[KVCacheBlock]
    ) -> int:
        """Return how many free blocks it takes until the request has slots for `num_tokens` tokens."""
        num_held = len(self.req_to_blocks.get(request_id, ()))
        num_new = cdiv(num_tokens, self.block_size) - num_held - len(new_computed_blocks)
        num_revived = sum(block.ref_cnt == 0 for block in new_computed_blocks)
        return max(num_new, 0) + num_revived

    def allocate_slots(  # type: ignore[override]  # the engine's has three more, for a scheduler's admission
        self,
        request: Request,
        num_new_tokens: int,
        num_new_computed_tokens: int = 0,
        new_computed_blocks: KVCacheBlocks | None = None,
        num_lookahead_tokens: int = 0,
    ) -> KVCacheBlocks | None:
        """Give the request slots for the tokens of its next step; return the new blocks, or `None`."""
        request_id = request.request_id
        if num_new_tokens < 1:
            raise AllocationError(request_id, "a step computes at least 1 token")
        admitted = self.requests.get(request_id)
        if admitted is not None and admitted is not request:
            raise RepeatedRequestError(request_id)

        hit = new_computed_blocks.blocks[0] if new_computed_blocks is not None else []
        num_computed_tokens = request.num_computed_tokens + num_new_computed_tokens + num_new_tokens
        num_tokens = num_computed_tokens + num_lookahead_tokens
        num_needed = self.get_num_blocks_to_allocate(request_id, num_tokens, hit)
        if num_needed > self.block_pool.num_free_blocks:
            return None

        if admitted is None:
            self.block_pool.touch(hit)
            self.requests[request_id] = request
            self.req_to_blocks[request_id] = list(hit)
            self.num_cached_block[request_id] = len(hit)
        num_missing = self.get_num_blocks_to_allocate(request_id, num_tokens, [])  # the hit is in the table by now
        new_blocks = self.block_pool.get_new_blocks(num_missing)
        self.req_to_blocks[request_id] += new_blocks
        self.cache_blocks(request, num_computed_tokens)
        return KVCacheBlocks((new_blocks,))

    def cache_blocks(self, request: Request, num_computed_tokens: int) -> None:
        """Enter the blocks that the first `num_computed_tokens` tokens of the request fill in the index."""
        table = self.req_to_blocks[request.request_id]
        num_cached = self.num_cached_block[request.request_id]
        num_full = min(num_computed_tokens // self.block_size, len(request.block_hashes))
        if num_full > num_cached:
            self.block_pool.cache_full_blocks(table, request.block_hashes, num_cached, num_full)
            self.num_cached_block[request.request_id] = num_full

    def free(self, request: Request) -> None:
        """Drop the request's references to its blocks, tail first."""
        request_id = request.request_id
        if self.requests.get(request_id) is not request:
            raise UnknownRequestError(request_id)
        table = self.req_to_blocks[request_id]
        self.block_pool.free_blocks(reversed(table))
        del self.req_to_blocks[request_id]
        del self.num_cached_block[request_id]
        del self.requests[request_id]

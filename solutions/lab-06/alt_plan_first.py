"""lab-06, another way: work out the whole table first; every block of it is touched or taken one by one."""

from collections.abc import Sequence
from typing import Any

from mini_kv.core import kv_cache_manager as engine
from mini_kv.core.block import KVCacheBlock
from mini_kv.core.errors import AllocationError, RepeatedRequestError, UnknownRequestError
from mini_kv.core.kv_cache_interface import KVCacheConfig
from mini_kv.core.kv_cache_manager import KVCacheBlocks
from mini_kv.core.request import Request


class KVCacheManager(engine.KVCacheManager):
    """The engine's manager; the index is filled a block at a time."""

    def __init__(self, kv_cache_config: KVCacheConfig, **options: Any) -> None:
        super().__init__(kv_cache_config, **options)
        (group,) = self.coordinator.single_type_managers
        self.req_to_blocks = group.req_to_blocks
        self.num_cached_block = group.num_cached_block

    def get_num_blocks_to_allocate(
        self, request_id: str, num_tokens: int, new_computed_blocks: Sequence[KVCacheBlock]
    ) -> int:
        there = [*self.req_to_blocks.get(request_id, []), *new_computed_blocks]
        num_needed = sum(1 for block in new_computed_blocks if block.ref_cnt < 1)
        missing = num_tokens - len(there) * self.block_size  # tokens without a slot
        while missing > 0:
            num_needed += 1
            missing -= self.block_size
        return num_needed

    def allocate_slots(  # type: ignore[override]  # the engine's has three more, for a scheduler's admission
        self,
        request: Request,
        num_new_tokens: int,
        num_new_computed_tokens: int = 0,
        new_computed_blocks: KVCacheBlocks | None = None,
        num_lookahead_tokens: int = 0,
    ) -> KVCacheBlocks | None:
        name, pool = request.request_id, self.block_pool
        if self.requests.get(name, request) is not request:
            raise RepeatedRequestError(name)
        if num_new_tokens <= 0:
            raise AllocationError(name, f"{num_new_tokens} new tokens")
        hit: Sequence[KVCacheBlock] = ()
        if new_computed_blocks is not None:
            (hit,) = new_computed_blocks.blocks
        first_new_token = request.num_computed_tokens + num_new_computed_tokens
        last_slot = first_new_token + num_new_tokens + num_lookahead_tokens - 1
        table = self.req_to_blocks.get(name, [])
        num_missing = max(last_slot // self.block_size + 1 - len(table) - len(hit), 0)
        if num_missing + len([block for block in hit if not block.ref_cnt]) > pool.num_free_blocks:
            return None
        if name not in self.requests:
            self.requests[name], self.req_to_blocks[name], self.num_cached_block[name] = request, table, len(hit)
            for block in hit:
                pool.touch([block])
                table.append(block)
        new_blocks: list[KVCacheBlock] = []
        while len(new_blocks) < num_missing:
            new_blocks += pool.get_new_blocks(1)
        table.extend(new_blocks)
        self.cache_blocks(request, first_new_token + num_new_tokens)
        return KVCacheBlocks((new_blocks,))

    def cache_blocks(self, request: Request, num_computed_tokens: int) -> None:
        name = request.request_id
        num_known = min(num_computed_tokens, request.num_tokens) if self.enable_caching else 0
        while (self.num_cached_block[name] + 1) * self.block_size <= num_known:
            index = self.num_cached_block[name]
            self.block_pool.cache_full_blocks(self.req_to_blocks[name], request.block_hashes, index, index + 1)
            self.num_cached_block[name] = index + 1

    def free(self, request: Request) -> None:
        name = request.request_id
        if name not in self.requests or self.requests[name] is not request:
            raise UnknownRequestError(name)
        for entries in (self.requests, self.num_cached_block):
            entries.pop(name)
        self.block_pool.free_blocks(self.req_to_blocks.pop(name)[::-1])

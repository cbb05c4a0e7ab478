"""mini_kv as a peer of others."""

from collections.abc import Callable, Sequence

from mini_kv import __version__
from mini_kv.core.block_hash import get_hash_function, get_request_block_hasher
from mini_kv.core.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, SlidingWindowSpec
from mini_kv.core.kv_cache_manager import KVCacheManager
from mini_kv.core.request import Request
from mini_kv.core.sched.config import SchedulerConfig
from mini_kv.core.sched.scheduler import Scheduler
from mini_kv.dev.peers.base import Cache, ManagerCache, Peer, PeerError
from mini_kv.story.step_loop import run_step


class MiniKV(Peer):
    """mini_kv as a peer: the engine of this project."""

    name = "mini_kv"
    version = __version__

    def cache(self, num_blocks: int, block_size: int) -> Cache:
        """Return a manager of one full-attention group."""
        return _MiniKVCache(KVCacheManager.for_full_attention(num_blocks, block_size))

    def hasher(self, function: str, block_size: int, token_ids: list[int]) -> Callable[[], int]:
        """Use the request block hasher. The check of the tokens belongs to `submit` (see `namer`)."""
        request = Request("hash", token_ids)
        hash_blocks = get_request_block_hasher(block_size, get_hash_function(function))
        return lambda: len(hash_blocks(request))

    def namer(self, block_size: int) -> Callable[[str, list[int]], int]:
        """Use `new_request`, which checks the tokens and hashes them."""
        new_request = KVCacheManager.for_full_attention(2, block_size).new_request
        return lambda request_id, token_ids: len(new_request(request_id, token_ids).block_hashes)

    def hybrid_cache(self, num_blocks: int, block_size: int, num_groups: int, sliding_window: int) -> Cache:
        """Return a manager of `num_groups`. Windows keep the blocks for a hit everywhere, as vLLM's here do."""
        window = SlidingWindowSpec(block_size, sliding_window=sliding_window)
        specs = [FullAttentionSpec(block_size), *[window] * (num_groups - 1)]
        groups = tuple(KVCacheGroupSpec((f"layers {index}",), spec) for index, spec in enumerate(specs))
        return _MiniKVCache(KVCacheManager(KVCacheConfig(num_blocks, groups)))


class _MiniKVCache(ManagerCache):
    kv: KVCacheManager

    def __init__(self, kv: KVCacheManager) -> None:
        self.kv = kv

    def submit(self, request_id: str, prompt: list[int]) -> Request:
        return self.kv.new_request(request_id, prompt)

    def admit(self, request: Request) -> int:
        blocks, num_hit = self.kv.get_computed_blocks(request)
        new_blocks = self.kv.allocate_slots(request, request.num_tokens - num_hit, num_hit, blocks)
        if new_blocks is None:
            raise PeerError(f"{request.request_id} does not fit")
        request.num_computed_tokens = request.num_tokens
        return num_hit

    def decode(self, requests: Sequence[Request], token_id: int) -> None:
        allocate_slots = self.kv.allocate_slots
        for request in requests:
            request.append_output_token_ids(token_id)
            new_blocks = allocate_slots(request, 1)
            if new_blocks is None:
                raise PeerError("the pool is too small for decoding")
            new_blocks.get_block_ids()
            request.num_computed_tokens += 1

    def start_scheduling(self, requests: Sequence[Request]) -> Callable[[int], None]:
        budget = sum(request.num_tokens for request in requests)
        scheduler = Scheduler(self.kv, SchedulerConfig(max_num_batched_tokens=budget, max_num_seqs=len(requests)))
        for request in requests:
            scheduler.add_request(request, max_tokens=1 << 10)

        def step(token_id: int) -> None:
            run_step(scheduler, lambda output: dict.fromkeys(output.num_scheduled_tokens, (token_id,)))

        step(0)
        return step

    def num_free_blocks(self) -> int:
        return self.kv.block_pool.num_free_blocks

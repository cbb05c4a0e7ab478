"""lab-05, another way: count before asking, and reach the blocks by their ids."""

from mini_kv.core.kv_cache_manager import KVCacheManager
from mini_kv.core.request import Request


def prefill(kv: KVCacheManager, token_ids: list[int], request_id: str) -> tuple[Request, int] | None:
    """Admit a request, compute its whole prompt, and return it with its number of cached tokens."""
    request = kv.new_request(request_id, token_ids)
    hit, cached = kv.get_computed_blocks(request)
    num_blocks = -(-request.num_tokens // kv.block_size)
    num_shared = sum(block.ref_cnt > 0 for block in hit.blocks[0])
    if num_blocks - num_shared > kv.block_pool.num_free_blocks:
        return None  # every block that no table holds yet, found or not, has to come out of the free queue
    request.num_computed_tokens = cached
    kv.allocate_slots(request, request.num_tokens - cached, new_computed_blocks=hit)
    request.num_computed_tokens = request.num_tokens
    return (request, cached)


def ref_counts(kv: KVCacheManager, request: Request) -> list[int]:
    """Return the reference count of each block in the request's table, first block first."""
    (ids,) = kv.get_block_ids(request.request_id)
    return [kv.block_pool.blocks[block_id].ref_cnt for block_id in ids]


def cache_hit_rate(kv: KVCacheManager) -> float:
    """Return the share of prompt tokens so far that were found in the cache, 0.0 to 1.0."""
    try:
        return kv.prefix_cache_stats.hits / kv.prefix_cache_stats.queries
    except ZeroDivisionError:
        return 0.0

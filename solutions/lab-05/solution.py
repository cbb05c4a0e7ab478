"""lab-05: the reference solution."""

from mini_kv.core.kv_cache_manager import KVCacheManager
from mini_kv.core.request import Request


def prefill(kv: KVCacheManager, token_ids: list[int], request_id: str) -> tuple[Request, int] | None:
    """Admit a request, compute its whole prompt, and return it with its number of cached tokens."""
    request = kv.new_request(request_id, token_ids)
    blocks, num_cached_tokens = kv.get_computed_blocks(request)
    request.num_computed_tokens = num_cached_tokens
    num_new_tokens = request.num_tokens - num_cached_tokens
    if kv.allocate_slots(request, num_new_tokens, new_computed_blocks=blocks) is None:
        request.num_computed_tokens = 0
        return None
    request.num_computed_tokens = request.num_tokens
    return request, num_cached_tokens


def ref_counts(kv: KVCacheManager, request: Request) -> list[int]:
    """Return the reference count of each block in the request's table, first block first."""
    (table,) = kv.get_blocks(request.request_id).blocks
    return [block.ref_cnt for block in table]


def cache_hit_rate(kv: KVCacheManager) -> float:
    """Return the share of prompt tokens so far that were found in the cache, 0.0 to 1.0."""
    stats = kv.prefix_cache_stats
    if stats.queries == 0:
        return 0.0
    return stats.hits / stats.queries

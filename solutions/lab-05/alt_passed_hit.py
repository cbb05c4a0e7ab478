"""lab-05, another way: pass the hit to the manager, as vLLM's scheduler does, instead of adopting it first."""

from mini_kv.core.kv_cache_manager import KVCacheManager
from mini_kv.core.request import Request


def prefill(kv: KVCacheManager, token_ids: list[int], request_id: str) -> tuple[Request, int] | None:
    """Admit a request, compute its whole prompt, and return it with its number of cached tokens."""
    request = kv.new_request(request_id, token_ids)
    hit, num_hit_tokens = kv.get_computed_blocks(request)
    admitted = kv.allocate_slots(
        request,
        len(token_ids) - num_hit_tokens,
        num_new_computed_tokens=num_hit_tokens,
        new_computed_blocks=hit,
    )
    if admitted is None:
        return None
    request.num_computed_tokens = num_hit_tokens  # after the allocation, which has counted it already
    request.num_computed_tokens += len(token_ids) - num_hit_tokens
    return request, num_hit_tokens


def ref_counts(kv: KVCacheManager, request: Request) -> list[int]:
    """Return the reference count of each block in the request's table, first block first."""
    return [block.ref_cnt for group in kv.get_blocks(request.request_id).blocks for block in group]


def cache_hit_rate(kv: KVCacheManager) -> float:
    """Return the share of prompt tokens so far that were found in the cache, 0.0 to 1.0."""
    return kv.prefix_cache_stats.hits / max(kv.prefix_cache_stats.queries, 1)

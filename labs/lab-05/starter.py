"""lab-05: share and evict, the life of a cached block. Your work goes here.

Run it from the repository's root:

    LAB_IMPL=starter pytest labs/lab-05
    $env:LAB_IMPL="starter"; pytest labs/lab-05          (Windows, PowerShell)
"""

from mini_kv.core.kv_cache_manager import KVCacheManager
from mini_kv.core.request import Request
from mini_kv.course import todo


def prefill(kv: KVCacheManager, token_ids: list[int], request_id: str) -> tuple[Request, int] | None:
    """Admit a request, compute its whole prompt, and return it with its number of cached tokens.

    You are the scheduler, and the request's turn has come. The cache has three methods for you:

    - `kv.new_request(request_id, token_ids)` makes the request.
    - `kv.get_computed_blocks(request)` returns `(blocks, num_cached_tokens)`: what the cache has of it. Changes
      nothing.
    - `kv.allocate_slots(request, num_new_tokens, new_computed_blocks=blocks)` admits it: the blocks that were found and
      slots for the next `num_new_tokens` tokens after `request.num_computed_tokens`, which is 0 until you set it.
      This number and `num_new_tokens` depend on the hit. It returns `None`, and changes nothing, if there is no room.

    Afterwards the request's block table begins with the blocks that were found, and has new blocks for the other tokens
    only. The step that computes these takes no time here, so `request.num_computed_tokens` counts the whole prompt. If
    there is no room, return `None`, and the request is as it was made, since its turn will come again. Exceptions are
    not yours to catch.

    Example, block size 4, a cache that has seen these 8 tokens before:
    `prefill(kv, [1, 2, 3, 4, 5, 6, 7, 8], "B")` returns `(request, 4)`: not 8, because the last token is always
    computed, and not 7, because only whole blocks are shared. One new block is taken.
    """
    todo("lab-05", "prefill", "a request is admitted, with what the cache has of it")


def ref_counts(kv: KVCacheManager, request: Request) -> list[int]:
    """Return the reference count of each block in the request's table, first block first.

    `kv.get_blocks(request.request_id).blocks` holds one list of blocks per group; this cache has one group. A block
    counts its tables in `ref_cnt`.

    Example: two requests share their first block and have a second of their own: `[2, 1]` for either.
    """
    todo("lab-05", "ref_counts", "read the counts off the request's blocks")


def cache_hit_rate(kv: KVCacheManager) -> float:
    """Return the share of prompt tokens so far that were found in the cache, 0.0 to 1.0.

    `kv.prefix_cache_stats` counts them: `queries` is the tokens of all admitted requests, `hits` those that were
    found. Before the first request the rate is 0.0.

    Example: a prompt of 8 tokens twice, 4 of them found the second time: 4 of 16, so 0.25.
    """
    todo("lab-05", "cache_hit_rate", "divide hits by queries")

"""Helpers for callers without a scheduler: admit several requests at once, and free a request in any case."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain

from mini_kv.core.block import KVCacheBlock
from mini_kv.core.errors import RepeatedRequestError
from mini_kv.core.kv_cache_manager import KVCacheManager
from mini_kv.core.request import Request


def allocate_together(kv: KVCacheManager, requests: Sequence[Request]) -> list[int] | None:
    """Admit all these requests with their whole prompts, or none. Return their hits in tokens, or `None` if refused.

    It counts before it allocates, so that nothing is evicted for a batch that is then refused. Blocks that requests of
    the same batch could share are counted for each of them, so a batch that fits only by sharing is refused. Raises
    `RepeatedRequestError`, with the state unchanged, if an id is in use or is twice in the batch.
    """
    ids = [request.request_id for request in requests]
    for request_id in ids:
        if request_id in kv.requests or ids.count(request_id) > 1:
            raise RepeatedRequestError(request_id)
    num_needed = _num_blocks_to_allocate(kv, requests)
    if num_needed is None or num_needed > kv.block_pool.num_free_blocks:
        return None
    hits = []
    for request in requests:
        hit, num_hit = kv.get_computed_blocks(request)
        kv.allocate_slots(request, request.num_tokens - num_hit, num_hit, hit)
        request.num_computed_tokens = num_hit  # the caller's step computes the rest
        hits.append(num_hit)
    return hits


def _num_blocks_to_allocate(kv: KVCacheManager, requests: Sequence[Request]) -> int | None:
    """Return the free blocks that the requests need together, or `None` if one request cannot be admitted at all."""
    num_needed = 0
    revived: set[KVCacheBlock] = set()
    for request in requests:
        hit, _ = kv.get_computed_blocks(request)
        num_blocks = kv.coordinator.get_num_blocks_to_allocate(request.request_id, request.num_tokens, hit.blocks)
        if num_blocks is None:
            return None
        num_needed += num_blocks
        for block in chain.from_iterable(hit.blocks):
            if block.is_null or block.ref_cnt > 0:
                continue
            if block in revived:
                num_needed -= 1  # a block that two of them would revive leaves the free queue once
            revived.add(block)
    return num_needed


@contextmanager
def held(kv: KVCacheManager, request: Request) -> Iterator[Request]:
    """Free the request's blocks at the end of the `with` block, also after an error. Uncache those without computed KV.

    Do nothing at the end if the request has no blocks then, because it was never admitted or is already freed.
    """
    try:
        yield request
    finally:
        if kv.requests.get(request.request_id) is request:
            kv.withdraw_promises(request)
            kv.free(request)

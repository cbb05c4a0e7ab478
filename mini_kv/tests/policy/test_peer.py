"""Four policies against libcachesim, hit by hit, on streams of ids: one block with a hash per request.

A cache of ids has no block in use: any object in it may be a victim. So each request ends before the next one is looked
up, and every block with a block hash waits when memory is needed.
"""

import random

import libcachesim
import pytest

from mini_kv.core.free_queue import FreeKVCacheBlockQueue
from mini_kv.core.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from mini_kv.core.kv_cache_manager import KVCacheManager
from mini_kv.policy.catalogue import HeadFirst
from mini_kv.policy.eviction import Policy, parts_of
from mini_kv.policy.ranked import FIFO, LFUWithoutAgeing
from mini_kv.policy.sieve import Sieve

PEERS = [
    (FIFO, libcachesim.FIFO),
    (FreeKVCacheBlockQueue, libcachesim.LRU),
    (HeadFirst, libcachesim.LRU),
    (LFUWithoutAgeing, libcachesim.LFU),
    (Sieve, libcachesim.Sieve),
]


def our_hits(policy: Policy, num_blocks: int, ids: list[int]) -> list[bool]:
    """Look up each id in a pool with room for `num_blocks` of them beside the block of the last token."""
    groups = (KVCacheGroupSpec(("layer",), FullAttentionSpec(block_size=2)),)
    kv = KVCacheManager(KVCacheConfig(num_blocks + 2, groups), parts=parts_of(policy))
    hits = []
    for number, i in enumerate(ids):
        request = kv.new_request(str(number), [i, i, 0])
        blocks, num_hits = kv.get_computed_blocks(request)
        assert kv.allocate_slots(request, 3 - num_hits, num_hits, blocks) is not None
        request.num_computed_tokens = 3
        kv.free(request)
        hits.append(num_hits == 2)
    return hits


def their_hits(peer: type, num_blocks: int, ids: list[int]) -> list[bool]:
    """Ask libcachesim for each id, as an object of size 1."""
    cache = peer(num_blocks)
    hits = []
    for i in ids:
        request = libcachesim.Request()
        request.obj_id, request.obj_size = i, 1
        hits.append(cache.get(request))
    return hits


def stream(seed: int, num_ids: int, length: int) -> list[int]:
    """A few ids come often and many seldom; id `n` is about as frequent as 1 / n."""
    weights = [1 / i for i in range(1, num_ids + 1)]
    return random.Random(seed).choices(range(1, num_ids + 1), weights, k=length)


@pytest.mark.slow
@pytest.mark.parametrize(("policy", "peer"), PEERS)
def test_each_id_is_found_exactly_when_libcachesim_finds_it(policy, peer):
    for seed, num_blocks in enumerate([1, 2, 3, 5, 8, 20, 50]):
        ids = stream(seed, 4 * num_blocks, 1500)
        assert our_hits(policy, num_blocks, ids) == their_hits(peer, num_blocks, ids), num_blocks


def test_the_streams_tell_the_four_apart():
    ids = stream(0, 80, 1500)
    hits = [sum(their_hits(peer, 20, ids)) for peer in (libcachesim.FIFO, libcachesim.LRU, libcachesim.LFU)]
    assert len({*hits, sum(their_hits(libcachesim.Sieve, 20, ids))}) == 4

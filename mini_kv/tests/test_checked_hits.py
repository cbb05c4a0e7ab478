"""Hits that are compared: with a hash whose collisions can be made, no request reads another's past."""

import random
from pathlib import Path

import pytest

from mini_kv.core.checked_hits import CheckedKVCacheManager
from mini_kv.core.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, SlidingWindowSpec
from mini_kv.core.kv_cache_manager import KVCacheManager
from mini_kv.core.request import Request
from mini_kv.course.labkit.implementation import load_file

pytest.importorskip("xxhash")
forged = load_file(Path(__file__).parents[2] / "labs" / "lab-04" / "fast_hash.py")
P, Q, SAME = forged.WIDE_P, forged.WIDE_Q, list(range(32))


def compute(kv: KVCacheManager, request: Request) -> int:
    """Admit the request, compute it and free it; return what it found."""
    blocks, num_hit = kv.get_computed_blocks(request)
    kv.allocate_slots(request, request.num_tokens - num_hit, num_hit, blocks)
    request.num_computed_tokens = request.num_tokens
    kv.free(request)
    return num_hit


def serve(kv: KVCacheManager, *prompts: list[int]) -> list[int]:
    """Serve the prompts one after another; return what each found."""
    return [compute(kv, kv.new_request(str(number), prompt)) for number, prompt in enumerate(prompts)]


def fast(cls: type[KVCacheManager]) -> KVCacheManager:
    """Return a manager of eight blocks of 32 under the fast hash."""
    return cls.for_full_attention(8, 32, hash_name="xxh3_128")


def test_two_blocks_made_to_have_one_hash_fool_a_manager_that_compares_nothing():
    assert serve(fast(KVCacheManager), [*P, 9], [*Q, 9]) == [0, 32]


def test_they_do_not_fool_one_that_compares():
    assert serve(fast(CheckedKVCacheManager), [*P, 9], [*Q, 9], [*P, 9]) == [0, 0, 32]


def test_the_same_tokens_after_another_parent_are_another_beginning():
    """Q's first block is true, and behind it the index gives the block that P's second tokens were computed in."""
    for cls, found in ((KVCacheManager, 64), (CheckedKVCacheManager, 32)):
        kv = fast(cls)
        first = kv.new_request("P", [*P, *SAME, 9])
        kv.allocate_slots(first, first.num_tokens)
        kv.evict_blocks([kv.get_block_ids("P")[0][0]])
        assert compute(kv, kv.new_request("Q", [*Q, *SAME, 9])) == 0
        assert compute(kv, kv.new_request("Q again", [*Q, *SAME, 9])) == found


def test_a_block_that_is_named_anew_is_compared_with_what_it_holds_now():
    kv = CheckedKVCacheManager.for_full_attention(3, 32, hash_name="xxh3_128")
    assert serve(kv, [*P, 9], [*SAME, 9], [*Q, 9], [*Q, 9]) == [0, 0, 0, 32]


@pytest.mark.parametrize("seed", range(20))
def test_where_no_hashes_meet_it_finds_what_any_manager_finds(seed: int):
    """Over a full group and a window, in a pool that is too small to remember all."""
    rng = random.Random(seed)
    full = KVCacheGroupSpec(("a",), FullAttentionSpec(4))
    groups = (full, KVCacheGroupSpec(("b",), SlidingWindowSpec(8, sliding_window=16)))
    prompts = [[rng.randrange(3)] * 24 + list(range(rng.randrange(1, 20))) for _ in range(30)]
    config = KVCacheConfig(40, groups)
    found = [serve(cls(config, hash_name="xxh3_128"), *prompts) for cls in (KVCacheManager, CheckedKVCacheManager)]
    assert found[0] == found[1]
    assert sum(found[0]) > 0

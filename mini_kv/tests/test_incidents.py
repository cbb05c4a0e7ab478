"""Bugs that real engines had, each as a short story with exact block ids.

The thread in each docstring is public. What the story asserts is what its users wished had been true.
"""

import pytest

from mini_kv.core.debug import manager_state
from mini_kv.core.errors import AllocationError, BlockStateError, UnknownRequestError
from mini_kv.core.invariants import check_invariants
from mini_kv.core.kv_cache_manager import KVCacheManager
from mini_kv.core.request import Request


def prefill(kv: KVCacheManager, name: str, *token_ids: int) -> Request:
    """Look up, admit and compute a whole prompt."""
    request = kv.new_request(name, token_ids)
    blocks, num_hit = kv.get_computed_blocks(request)
    request.num_computed_tokens = num_hit
    assert kv.allocate_slots(request, len(token_ids) - num_hit, new_computed_blocks=blocks) is not None
    request.num_computed_tokens = len(token_ids)
    return request


def hit_of(kv: KVCacheManager, *token_ids: int) -> tuple[list[int], int]:
    """Return what a new prompt would find: block ids, tokens."""
    blocks, num_hit = kv.get_computed_blocks(kv.new_request("probe", token_ids))
    return blocks.get_block_ids()[0], num_hit


def free_order(kv: KVCacheManager) -> list[int]:
    return [block.block_id for block in kv.block_pool.free_block_queue.get_all_free_blocks()]


def test_b01_stale_key_after_reuse() -> None:
    """nano-vllm #163: a reused block kept its old key; comparing a block's tokens is not comparing its prefix."""
    kv = KVCacheManager.for_full_attention(num_blocks=4, block_size=2)
    first = prefill(kv, "A", 1, 1, 5, 5)
    prefill(kv, "D", 1, 1, 9)  # keeps A's head alive
    assert kv.get_block_ids("A") == ([1, 2],)
    assert kv.get_block_ids("D") == ([1, 3],)
    kv.free(first)
    assert hit_of(kv, 1, 1, 5, 5, 7) == ([1, 2], 4)  # freed is not forgotten

    prefill(kv, "B", 5, 5)  # block 2 again, and again with the tokens 5, 5: but nothing stands before them now
    assert kv.get_block_ids("B") == ([2],)

    assert hit_of(kv, 1, 1, 5, 5, 7) == ([1], 2)
    assert hit_of(kv, 5, 5, 7) == ([2], 2)


def test_b02_full_hit_leaves_a_token_to_compute() -> None:
    """nano-vllm #144, vllm #11186: a wholly cached prompt had 0 tokens left to run; a hit ends one token early."""
    kv = KVCacheManager.for_full_attention(num_blocks=10, block_size=4)
    kv.free(prefill(kv, "A", 1, 2, 3, 4, 5, 6, 7, 8))

    assert hit_of(kv, 1, 2, 3, 4, 5, 6, 7, 8) == ([1], 4)  # the prompt is cached to its last token, the hit is not
    assert hit_of(kv, 1, 2, 3, 4, 5, 6, 7, 8, 9) == ([1, 2], 8)
    assert hit_of(kv, 1, 2, 3, 4) == ([], 0)

    again = prefill(kv, "B", 1, 2, 3, 4, 5, 6, 7, 8)
    assert again.num_cached_tokens == 4
    # Block 2 holds that KV already; B computes it once more into its own block, and tables only grow.
    assert kv.get_block_ids("B") == ([1, 3],)
    assert hit_of(kv, 1, 2, 3, 4, 5, 6, 7, 8, 9) == ([1, 2], 8)


def test_b02_a_hit_from_elsewhere_is_capped_too() -> None:
    """LMCache #3322: the cap held in the engine's own lookup only; whoever brings a hit, it is checked on entry."""
    kv = KVCacheManager.for_full_attention(num_blocks=10, block_size=4)
    kv.free(prefill(kv, "A", *range(8)))
    longer, num_hit = kv.get_computed_blocks(kv.new_request("longer", range(9)))
    request = kv.new_request("B", range(8))
    before = manager_state(kv)

    with pytest.raises(AllocationError) as error:
        kv.allocate_slots(request, 1, num_hit, longer)

    assert error.value.request_id == "B"
    assert manager_state(kv) == before


def test_b07_double_free_is_never_silent() -> None:
    """vllm #1584: a user "fixed" the double-free error by returning early; the guard is the finding, so it raises."""
    kv = KVCacheManager.for_full_attention(num_blocks=6, block_size=4)
    request = prefill(kv, "A", *range(6))
    block = kv.get_blocks("A").blocks[0][1]
    kv.free(request)
    assert free_order(kv) == [2, 3, 4, 5, 1]
    before = manager_state(kv)

    with pytest.raises(UnknownRequestError) as unknown:
        kv.free(request)
    with pytest.raises(BlockStateError) as not_held:
        kv.block_pool.free_blocks([block])

    assert unknown.value.request_id == "A"
    assert not_held.value.block_ids == [2]
    assert manager_state(kv) == before


def test_b08_one_block_twice_in_one_free() -> None:
    """vllm #42571, #42615: a block given twice to one free broke the linked list; the whole call is checked first."""
    kv = KVCacheManager.for_full_attention(num_blocks=6, block_size=4)
    prefill(kv, "A", *range(8))
    one, two = kv.get_blocks("A").blocks[0]
    before = manager_state(kv)

    with pytest.raises(BlockStateError) as error:
        kv.block_pool.free_blocks([two, one, two])

    assert error.value.block_ids == [2, 1, 2]
    assert manager_state(kv) == before
    check_invariants(kv)


def test_b13_nothing_counts_after_a_hole() -> None:
    """llm-d-inference-sim #705: hits were counted behind a missing block; a lookup stops at the first miss."""
    kv = KVCacheManager.for_full_attention(num_blocks=6, block_size=2)
    kv.free(prefill(kv, "A", 1, 1, 2, 2, 3, 3))

    kv.evict_blocks([2])

    assert hit_of(kv, 1, 1, 2, 2, 3, 3, 4) == ([1], 2)


def test_b13_equal_age_is_evicted_from_the_tail() -> None:
    """llm-d-inference-sim #704: blocks freed together were evicted in any order; here the tail always goes first."""
    kv = KVCacheManager.for_full_attention(num_blocks=4, block_size=2)
    kv.free(prefill(kv, "A", 1, 1, 2, 2, 3, 3))
    assert free_order(kv) == [3, 2, 1]

    prefill(kv, "B", 8)

    assert kv.get_block_ids("B") == ([3],)
    assert hit_of(kv, 1, 1, 2, 2, 3, 3, 4) == ([1, 2], 4)  # two thirds of the prefix are still of use


def test_b27_two_thousand_requests_leave_nothing_held() -> None:
    """imp #1115, sglang-jax #982: a block leaked with each request; after 2,000 the pool is as it was."""
    kv = KVCacheManager.for_full_attention(num_blocks=12, block_size=4)
    for number in range(2000):
        request = prefill(kv, f"r{number}", *range(number % 5, number % 5 + 5 + number % 30))
        request.append_output_token_ids(number)
        if kv.allocate_slots(request, 1) is not None:
            request.num_computed_tokens += 1
        kv.free(request)

    assert kv.usage == 0.0
    assert kv.block_pool.num_free_blocks == 11
    assert sorted(free_order(kv)) == list(range(1, 12))
    assert [block.ref_cnt for block in kv.block_pool.blocks] == [0] * 12
    assert kv.prefix_cache_stats.requests == 2000
    check_invariants(kv)  # I14 among them: no table is left

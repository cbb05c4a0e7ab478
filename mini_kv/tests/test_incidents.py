"""Bugs that real engines had, each as a short story with exact block ids.

The thread in each docstring is public. What the story asserts is what its users wished had been true.
"""

import pytest

from mini_kv.core.block_hash import make_block_hash_with_group_id
from mini_kv.core.errors import AllocationError, BlockStateError, UnknownRequestError
from mini_kv.core.invariants import check_invariants
from mini_kv.core.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheSpec,
    MambaSpec,
    SlidingWindowSpec,
)
from mini_kv.core.kv_cache_manager import KVCacheBlocks, KVCacheManager
from mini_kv.core.request import Request
from mini_kv.core.sched.scheduler import Scheduler
from mini_kv.story.debug import manager_state


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


def with_groups(num_blocks: int, *specs: KVCacheSpec) -> KVCacheManager:
    """Return a cache of one group per spec."""
    groups = tuple(KVCacheGroupSpec((f"group {i}",), spec) for i, spec in enumerate(specs))
    return KVCacheManager(KVCacheConfig(num_blocks, groups))


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
    """LMCache #3322: the cap held in the engine's own lookup only; a hit from elsewhere is checked as well."""
    kv = KVCacheManager.for_full_attention(num_blocks=10, block_size=4)
    kv.free(prefill(kv, "A", *range(8)))
    longer, num_hit = kv.get_computed_blocks(kv.new_request("longer", range(9)))
    request = kv.new_request("B", range(8))
    before = manager_state(kv)

    with pytest.raises(AllocationError) as error:
        kv.allocate_slots(request, 1, num_hit, longer)

    assert error.value.request_id == "B"
    assert manager_state(kv) == before


def test_b03_a_hit_on_a_block_of_the_same_step_reads_what_that_step_writes() -> None:
    """nano-vllm #208, vllm #29387: B adopts a block that A is about to compute in the same step.

    That is sound while both run in that step, even if A is aborted meanwhile, since the worker writes A's part all the
    same. If the step is given up, B must not keep what was never written.
    """
    kv = KVCacheManager.for_full_attention(10, 4)
    scheduler = Scheduler(kv)
    for name in "AB":
        scheduler.add_request(kv.new_request(name, range(9)))
    output = scheduler.schedule()
    assert output.num_scheduled_tokens == {"A": 9, "B": 1}
    assert [data.block_ids[0][:2] for data in output.scheduled_new_reqs] == [[1, 2], [1, 2]]
    scheduler.finish_requests(["A"])
    assert output.num_scheduled_tokens == {"A": 9, "B": 1}
    assert kv.get_block_ids("B") == ([1, 2, 4],)
    scheduler.abandon_step()
    assert [request.request_id for request in scheduler.waiting] == ["B"]
    assert scheduler.requests["B"].num_computed_tokens == 0
    assert scheduler.schedule().num_scheduled_tokens == {"B": 9}


def named_blocks(kv: KVCacheManager) -> list[int]:
    return [block.block_id for block in kv.block_pool.blocks if block.block_hash is not None]


@pytest.mark.parametrize("end", ["abandon", "abort, then abandon", "preempt"])
def test_b04_no_key_outlives_a_block_that_was_never_written(end: str) -> None:
    """vllm #43569: a step was planned and did not run for A, whose full blocks had their keys already."""
    kv = KVCacheManager.for_full_attention(10, 4)
    scheduler = Scheduler(kv)
    scheduler.add_request(kv.new_request("A", range(9)))
    scheduler.schedule()
    assert named_blocks(kv) == [1, 2]
    if end == "preempt":
        scheduler._preempt_request(scheduler.requests["A"])
    if end == "abort, then abandon":
        scheduler.finish_requests(["A"])
        assert named_blocks(kv) == [1, 2]  # free blocks, but the worker may still write them
    if "abandon" in end:
        scheduler.abandon_step()
    assert named_blocks(kv) == []
    assert kv.get_computed_blocks(kv.new_request("B", range(9)))[1] == 0


def test_b04_an_abort_while_the_worker_has_the_step_costs_no_hit() -> None:
    """The same promise, kept: the step runs, so what A's part of it wrote is there for the next one who asks."""
    kv = KVCacheManager.for_full_attention(10, 4)
    scheduler = Scheduler(kv)
    scheduler.add_request(kv.new_request("A", range(9)))
    output = scheduler.schedule()
    scheduler.finish_requests(["A"])
    assert scheduler.update_from_output(output, {"A": [7]}) == []
    assert named_blocks(kv) == [1, 2]
    assert kv.get_computed_blocks(kv.new_request("B", range(9)))[1] == 8


def test_b05_one_groups_new_block_is_not_another_groups_hit() -> None:
    """vllm #33775, #44409: group 0 took new blocks before group 1's hit was touched, and got that hit's blocks."""
    kv = with_groups(9, FullAttentionSpec(2), SlidingWindowSpec(2, sliding_window=5))
    kv.free(prefill(kv, "A", 1, 1, 2, 2, 3, 3))
    assert free_order(kv) == [7, 8, 3, 2, 1, 6, 5, 4]
    prefill(kv, "C", 9)  # takes 7 and 8: the next in line are A's own
    kv.evict_blocks([3, 6])
    again = kv.new_request("B", (1, 1, 2, 2, 4))
    blocks, num_hit = kv.get_computed_blocks(again)
    assert (blocks.get_block_ids(), num_hit) == (([1, 2], [4, 5]), 4)

    assert kv.allocate_slots(again, 1, num_hit, blocks) is not None

    assert kv.get_block_ids("B") == ([1, 2, 3], [4, 5, 6])  # 3 and 6, which stood among the hits, and no hit
    check_invariants(kv)


def test_b06_one_reference_a_request_and_block() -> None:
    """vllm #1556, #3347: a window's blocks were counted once per entry of the table, and freed twice after a fork."""
    kv = with_groups(20, FullAttentionSpec(2), SlidingWindowSpec(2, sliding_window=3))
    one = prefill(kv, "A", *range(8))
    two = prefill(kv, "B", *range(8))
    shared = kv.block_pool.blocks[7]
    assert kv.get_block_ids("A")[1] == [5, 6, 7, 8]
    assert kv.get_block_ids("B")[1] == [0, 0, 7, 10]
    assert shared.ref_cnt == 2
    for request, left in ((one, 1), (two, 0)):
        request.append_output_token_ids(80)
        assert kv.allocate_slots(request, 1) is not None  # token 8 reads from token 6 on: block 7 is left behind
        assert shared.ref_cnt == left
    kv.free(one)
    kv.free(two)

    assert kv.block_pool.num_free_blocks == 19
    check_invariants(kv)


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


@pytest.mark.parametrize("step", [1, 16, 50, 400])
def test_b09_what_was_planned_for_is_let_in(step: int) -> None:
    """vllm #39734, #40946: one formula sized the pool, another let requests in: a legal request waited for ever."""
    specs = (FullAttentionSpec(16), SlidingWindowSpec(16, sliding_window=100), SlidingWindowSpec(16, sliding_window=33))
    num_planned = sum(spec.max_admission_blocks_per_request(step, 400) for spec in specs)
    groups = tuple(KVCacheGroupSpec((f"group {i}",), spec) for i, spec in enumerate(specs))
    kv = KVCacheManager(KVCacheConfig(num_planned + 1, groups), max_in_flight_tokens=step)  # and the null block
    request = kv.new_request("A", range(400))

    while request.num_computed_tokens < 400:
        num_new = min(step, 400 - request.num_computed_tokens)
        assert kv.allocate_slots(request, num_new, full_sequence_must_fit=True) is not None
        request.num_computed_tokens += num_new

    too_small = KVCacheManager(KVCacheConfig(num_planned, groups), max_in_flight_tokens=step)
    waiting = too_small.new_request("A", range(400))
    assert too_small.allocate_slots(waiting, step, full_sequence_must_fit=True) is None


def test_b10_asking_round_after_round_loses_nothing_twice() -> None:
    """vllm #32802, #39171, #51771: each round of the lookup took a block off again, until nothing was ever hit."""
    windows = [SlidingWindowSpec(2, sliding_window=reach) for reach in (3, 5, 9)]
    kv = with_groups(60, FullAttentionSpec(2), *windows, MambaSpec(2, shapes=((1,),), dtypes_bytes=(2,)))
    request = kv.new_request("A", range(24))
    for _ in range(12):  # a state after every block
        assert kv.allocate_slots(request, 2) is not None
        request.num_computed_tokens += 2
    longest = kv.get_computed_blocks(kv.new_request("B", range(25)))
    assert longest[1] == 24
    # Holes: the state at 24, the window of 3 at 22, the window of 9 at 20 and 18, the state at 16: round after round.
    holes = [(4, 11), (1, 10), (3, 8), (4, 7)]
    keys = [make_block_hash_with_group_id(request.block_hashes[position], group) for group, position in holes]
    kv.evict_blocks(block.block_id for block in kv.block_pool.blocks if block.block_hash in keys)

    first = kv.get_computed_blocks(kv.new_request("C", range(25)))

    assert first[1] == 14
    assert kv.get_computed_blocks(kv.new_request("D", range(25))) == first


def test_b11_all_groups_end_at_one_boundary() -> None:
    """vllm #43559, #46281: groups came back with hits of different lengths, and one had made the others' longer."""
    kv = with_groups(40, FullAttentionSpec(4), SlidingWindowSpec(6, sliding_window=7), FullAttentionSpec(3))
    prefill(kv, "A", *range(36))
    probe = kv.new_request("B", range(36))
    blocks, num_hit = kv.get_computed_blocks(probe)
    assert num_hit == 24
    assert [len(group) for group in blocks.blocks] == [6, 4, 8]  # 24 tokens in blocks of 4, 6 and 3
    before = manager_state(kv)

    full, window, fine = blocks.blocks
    for uneven in ((full, window[:2], fine), (full, window, [*fine, *kv.get_blocks("A").blocks[2][8:12]])):
        with pytest.raises(AllocationError):
            kv.allocate_slots(probe, 12, num_hit, KVCacheBlocks(uneven))

    assert manager_state(kv) == before


def test_b12_a_block_gets_one_key_and_once() -> None:
    """vllm #49125: a state in mid-block had a key, and kept answering to it when the block was full."""
    kv = with_groups(20, FullAttentionSpec(4), MambaSpec(4, shapes=((1,),), dtypes_bytes=(2,)))
    request = kv.new_request("A", range(16))
    keys: list[list[int]] = []
    for step in (6, 2, 5, 3):  # up to 6, 8, 13, 16
        assert kv.allocate_slots(request, step) is not None
        request.num_computed_tokens += step
        states = kv.get_blocks("A").blocks[1]
        keys.append([position for position, block in enumerate(states) if block.block_hash is not None])
    assert keys == [[], [1], [1], [3]]  # at 16 the state at 8 is not read any more
    assert kv.get_block_ids("A")[1] == [0, 0, 0, 6]
    assert [hit_of(kv, *range(end), 99)[1] for end in (6, 8, 13, 16)] == [0, 8, 8, 16]

    last = kv.get_blocks("A").blocks[1][3]
    with pytest.raises(BlockStateError):
        kv.block_pool.cache_full_blocks([last], request.block_hashes[3:], 0, 1, 1)


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


def test_b16_a_large_blocks_hash_reaches_to_its_end() -> None:
    """kvcached #446, #451: blocks of unequal size, and the large ones took the hash of their first part."""
    kv = with_groups(40, FullAttentionSpec(4), SlidingWindowSpec(8, sliding_window=20))
    prefill(kv, "A", *range(17))

    same_start = [*range(12), 90, 91, 92, 93, 94]  # three of four small blocks alike, the second large one is not
    blocks, num_hit = kv.get_computed_blocks(kv.new_request("B", same_start))

    assert (blocks.get_block_ids(), num_hit) == (([1, 2], [6]), 8)
    assert kv.get_computed_blocks(kv.new_request("C", range(17)))[1] == 16


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

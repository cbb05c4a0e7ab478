"""Several groups of layers over one pool: what slides, what is held on the way, what is let in, what is refused."""

import random
from collections.abc import Sequence
from itertools import product
from typing import Any

import pytest

from mini_kv.core.block_hash import make_block_hash_with_group_id
from mini_kv.core.errors import AllocationError, ConfigError
from mini_kv.core.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheSpec,
    MambaSpec,
    SlidingWindowSpec,
)
from mini_kv.core.kv_cache_manager import KVCacheBlocks, KVCacheManager
from mini_kv.core.request import Request
from mini_kv.core.sched.config import SchedulerConfig
from mini_kv.core.sched.scheduler import Scheduler
from mini_kv.story.debug import DebugKVCacheManager, manager_state


def state_spec(block_size: int) -> MambaSpec:
    """Return the spec of a layer whose state is a 4 x 8 matrix of 4-byte numbers and 3 of 2 bytes."""
    return MambaSpec(block_size, shapes=((4, 8), (3,)), dtypes_bytes=(4, 2))


def make(num_blocks: int, *specs: KVCacheSpec, **options: Any) -> DebugKVCacheManager:
    """Return a cache of one group per spec, which checks its ledger after every call."""
    groups = tuple(KVCacheGroupSpec((f"group {i}",), spec) for i, spec in enumerate(specs))
    return DebugKVCacheManager(KVCacheManager(KVCacheConfig(num_blocks, groups), **options))


def seed_cache(num_blocks: int = 60, **options: Any) -> DebugKVCacheManager:
    """Return the design note's: 10 full and 20 window layers are three groups; window 32, blocks of 16."""
    return make(
        num_blocks, FullAttentionSpec(16), *[SlidingWindowSpec(16, sliding_window=32) for _ in range(2)], **options
    )


def held(kv: KVCacheManager, request_id: str) -> list[int]:
    """Return how many real blocks the request holds in each group."""
    return [sum(block_id > 0 for block_id in table) for table in kv.get_block_ids(request_id)]


def grow(kv: KVCacheManager, request: Request, num_tokens: int) -> list[int]:
    """Compute the request's next tokens, new ones if it has no more; return what it held meanwhile."""
    missing = request.num_computed_tokens + num_tokens - request.num_tokens
    request.append_output_token_ids(*range(900, 900 + missing))
    assert kv.allocate_slots(request, num_tokens) is not None
    request.num_computed_tokens += num_tokens
    return held(kv, request.request_id)


def prefill(kv: KVCacheManager, request_id: str, token_ids: Sequence[int], *steps: int) -> Request:
    """Look up and compute a prompt, in one step or in those given."""
    request = kv.new_request(request_id, token_ids)
    blocks, num_hit = kv.get_computed_blocks(request)
    for step in steps or (len(token_ids) - num_hit,):
        first = request_id not in kv.requests
        assert kv.allocate_slots(request, step, num_hit if first else 0, blocks if first else None) is not None
        request.num_computed_tokens += step + (num_hit if first else 0)
    return request


def free_order(kv: KVCacheManager) -> list[int]:
    return [block.block_id for block in kv.block_pool.free_block_queue.get_all_free_blocks()]


# The design note's figures.


def test_the_notes_11_blocks_and_the_14_a_token_later() -> None:
    """7 + 2 + 2 while token 112 gets its slot, as the note says; it is the least: the next token makes it 8 + 3 + 3."""
    kv = seed_cache()
    request = kv.new_request("A", range(111))
    assert grow(kv, request, 111) == [7, 7, 7]
    assert grow(kv, request, 1) == [7, 2, 2]  # token 111 reads from token 80 on: five blocks of each window went
    assert kv.get_block_ids("A") == ([1, 2, 3, 4, 5, 6, 7], [0, 0, 0, 0, 0, 13, 14], [0, 0, 0, 0, 0, 20, 21])
    assert grow(kv, request, 1) == [8, 3, 3]  # token 112 needs a new block, and block 13 still holds token 95
    assert [sum(grow(kv, request, 1)) for _ in range(32)] == [14] * 14 + [12] + [15] * 15 + [13] + [16]


@pytest.mark.parametrize(
    ("chunk", "story"),
    [
        (112, [[7, 7, 7], [8, 3, 3]]),
        (48, [[3, 3, 3], [6, 5, 5], [7, 3, 3], [8, 3, 3]]),
        (32, [[2, 2, 2], [4, 4, 4], [6, 4, 4], [7, 3, 3], [8, 3, 3]]),
        (16, [[1, 1, 1], [2, 2, 2], [3, 3, 3], [4, 3, 3], [5, 3, 3], [6, 3, 3], [7, 3, 3], [8, 3, 3]]),
    ],
)
def test_what_a_prefill_of_112_holds_on_the_way(chunk: int, story: list[list[int]]) -> None:
    """In one shot a window layer holds all 7 blocks until the next step; in chunks, the window and the chunk."""
    kv = seed_cache()
    request = kv.new_request("A", range(112))
    steps = [min(chunk, 112 - start) for start in range(0, 112, chunk)]
    assert [grow(kv, request, step) for step in [*steps, 1]] == story


def test_no_request_ever_holds_more_than_the_formula_says() -> None:
    """Windows, chunks, states; steps of every length: the bound holds at each step, and some reach it."""
    reached = set()
    for block_size, reach, step in product((2, 4), range(1, 14), range(1, 12)):
        specs: list[KVCacheSpec] = [
            SlidingWindowSpec(block_size, sliding_window=reach),
            ChunkedLocalAttentionSpec(block_size, attention_chunk_size=reach),
            state_spec(block_size),
        ]
        kv = KVCacheManager(KVCacheConfig(200, tuple(KVCacheGroupSpec((str(s),), s) for s in specs)))
        request = kv.new_request("A", range(60))
        most = [0, 0, 0]
        while request.num_computed_tokens < 60:
            num_new = min(step, 60 - request.num_computed_tokens)
            most = [max(pair) for pair in zip(most, grow(kv, request, num_new), strict=True)]
        bounds = [spec.max_admission_blocks_per_request(step, 60) for spec in specs]
        assert all(have <= bound for have, bound in zip(most, bounds, strict=True)), (block_size, reach, step)
        reached |= {i for i in range(3) if most[i] == bounds[i]}
    assert reached == {0, 1, 2}


# Sliding.


def test_a_block_that_slid_out_can_be_hit_again() -> None:
    """Its key stays until it is reused; the last of them goes to the back of the queue first."""
    kv = make(20, SlidingWindowSpec(2, sliding_window=4))
    request = prefill(kv, "A", range(12), 6, 6)
    assert grow(kv, request, 1) == [3]
    assert kv.get_block_ids("A") == ([0, 0, 0, 0, 5, 6, 7],)
    assert free_order(kv) == [*range(8, 20), 1, 4, 3, 2]  # slid at 6: block 1; at 12: blocks 4, 3, 2
    blocks, num_hit = kv.get_computed_blocks(kv.new_request("B", [*range(6), 77]))
    assert (blocks.get_block_ids(), num_hit) == (([0, 2, 3],), 6)


def test_a_refused_step_slides_nothing() -> None:
    """What would be given back counts as free; if it is still too little, all stays as it was (I11)."""
    kv = make(6, FullAttentionSpec(2), SlidingWindowSpec(2, sliding_window=3), enable_caching=False)
    request = kv.new_request("A", range(4))
    assert grow(kv, request, 4) == [2, 2]
    request.append_output_token_ids(*range(4))
    before = manager_state(kv)
    assert kv.allocate_slots(request, 4) is None  # 4 new blocks; 1 is free, 1 would slide
    assert manager_state(kv) == before
    assert kv.allocate_slots(request, 2) is not None  # 2 new blocks: the free one and the one that slides
    assert kv.get_block_ids("A") == ([1, 2, 3], [0, 4, 5])


def test_a_neighbours_block_slides_out_of_one_table_only() -> None:
    """Two share a prefix: what one leaves behind the other still holds; so nothing becomes free, and none is lost."""
    kv = make(20, FullAttentionSpec(2), SlidingWindowSpec(2, sliding_window=3))
    a = prefill(kv, "A", range(5))
    b = prefill(kv, "B", [*range(4), 50])
    assert kv.get_block_ids("A") == ([1, 2, 3], [4, 5, 6])
    assert kv.get_block_ids("B") == ([1, 2, 7], [0, 5, 8])
    grow(kv, a, 2)
    assert kv.get_block_ids("A") == ([1, 2, 3, 9], [0, 5, 6, 10])
    grow(kv, a, 1)
    assert kv.get_block_ids("A")[1] == [0, 0, 6, 10]
    assert kv.block_pool.blocks[5].ref_cnt == 1
    kv.free(a)
    assert kv.get_block_ids("B")[1] == [0, 5, 8]
    kv.free(b)
    assert kv.usage == 0.0


def test_a_request_cannot_go_back_behind_its_window() -> None:
    """Rejected drafts take tokens back, but not behind the window: those tokens' block is gone."""
    kv = make(20, SlidingWindowSpec(2, sliding_window=3))
    request = prefill(kv, "A", range(8))
    grow(kv, request, 1)
    request.num_computed_tokens = 5
    before = manager_state(kv)
    with pytest.raises(AllocationError, match="window"):
        kv.allocate_slots(request, 1)
    assert manager_state(kv) == before


def test_chunks_are_given_back_whole() -> None:
    """Chunks of 8, blocks of 4: nothing goes until the eighth token is computed, and then all of the chunk does."""
    kv = make(20, ChunkedLocalAttentionSpec(4, attention_chunk_size=8))
    request = kv.new_request("A", range(7))
    story = [grow(kv, request, num_tokens) for num_tokens in (7, 1, 1, 7, 1)]
    assert story == [[2], [2], [1], [2], [1]]
    assert kv.get_block_ids("A") == ([0, 0, 0, 0, 5],)
    hits = [kv.get_computed_blocks(kv.new_request("B", request.token_ids[:end]))[1] for end in (5, 8, 9, 13, 17)]
    assert hits == [4, 4, 8, 12, 16]  # at 8 and at 16 a new chunk begins, and nothing before it is read


# States.


def test_a_state_is_shared_only_where_a_step_ended() -> None:
    """Steps end at 6 and 8, blocks of 4: 8 is a block's end, 4 was passed by, 6 lies within."""
    kv = make(20, state_spec(4))
    request = prefill(kv, "A", range(12), 6, 2, 3)
    assert kv.get_block_ids("A") == ([0, 1, 2],)  # the state at 8, which the last step read, and the one at 11
    assert [block.block_id for block in kv.block_pool.blocks if block.block_hash] == [1]
    for length, want in ((5, 0), (8, 0), (9, 8), (12, 8)):
        assert kv.get_computed_blocks(kv.new_request("B", range(length)))[1] == want
    assert grow(kv, request, 1) == [1]  # 12 computed: the state at 8 is not read any more


def test_a_state_that_is_still_to_be_computed_is_not_adopted() -> None:
    """Attention may read what the same step writes before it; a state is needed before the step begins: not now."""
    kv = make(20, FullAttentionSpec(4), state_spec(4))
    a = kv.new_request("A", range(8))
    assert kv.allocate_slots(a, 8) is not None
    b = kv.new_request("B", range(12))
    blocks, num_hit = kv.get_computed_blocks(b)
    assert num_hit == 8
    assert kv.allocate_slots(b, 4, num_hit, blocks) is None
    a.num_computed_tokens = 8
    assert kv.allocate_slots(b, 4, num_hit, blocks) is not None
    assert kv.get_block_ids("B") == ([1, 2, 4], [0, 3, 5])


def test_no_drafts_with_states() -> None:
    """A rejected draft's keys and values are overwritten; out of a state it cannot be taken back."""
    kv = make(20, FullAttentionSpec(4), state_spec(4))
    request = kv.new_request("A", range(4))
    for arguments in ((5,), (4, 0, None, 1)):
        with pytest.raises(AllocationError, match="draft"):
            kv.allocate_slots(request, *arguments)
    assert kv.allocate_slots(request, 4) is not None


def test_promises_of_all_groups_are_withdrawn() -> None:
    """The null blocks that all tables share do not make a request depend on another."""
    kv = make(30, FullAttentionSpec(2), SlidingWindowSpec(2, sliding_window=3))
    c = prefill(kv, "C", range(60, 69), 8)
    grow(kv, c, 1)
    a = prefill(kv, "A", range(4))
    a.append_output_token_ids(4, 5, 6, 7)
    assert kv.allocate_slots(a, 4) is not None
    b = kv.new_request("B", range(9))
    blocks, num_hit = kv.get_computed_blocks(b)
    assert num_hit == 8
    assert kv.allocate_slots(b, 1, num_hit, blocks) is not None
    assert kv.withdraw_promises(a) == ["B"]
    assert kv.get_computed_blocks(kv.new_request("D", range(9)))[1] == 4


# Blocks of different sizes.


def test_blocks_of_different_sizes_end_together() -> None:
    """16 and 24 tokens: hashes for every 8, hits at every 48."""
    kv = make(60, FullAttentionSpec(16), SlidingWindowSpec(24, sliding_window=30))
    assert (kv.coordinator.hash_block_size, kv.coordinator.scheduler_block_size, kv.block_size) == (8, 48, 48)
    a = prefill(kv, "A", range(100))
    assert [len(table) for table in kv.get_block_ids("A")] == [7, 5]
    keyed = [[block.block_hash for block in table] for table in kv.get_blocks("A").blocks]
    assert keyed[0][5] == make_block_hash_with_group_id(a.block_hashes[11], 0)  # tokens 0 to 95
    assert keyed[1][3] == make_block_hash_with_group_id(a.block_hashes[11], 1)  # the same, in the other group
    hits = {length: kv.get_computed_blocks(kv.new_request("B", range(length))) for length in (48, 49, 97, 100)}
    assert [num_hit for _, num_hit in hits.values()] == [0, 48, 96, 96]
    assert hits[97][0].get_block_ids() == ([1, 2, 3, 4, 5, 6], [0, 0, 10, 11])


def test_who_took_promises_back_and_goes_on_publishes_each_block_once() -> None:
    """Withdrawn within a boundary: the block that keeps its key is not cached a second time."""
    kv = make(60, FullAttentionSpec(8), SlidingWindowSpec(2, sliding_window=30))
    request = kv.new_request("A", range(20))
    assert kv.allocate_slots(request, 8) is not None
    request.num_computed_tokens = 3  # the step was cut short
    assert kv.withdraw_promises(request) == []
    for num_tokens in (2, 2, 3):
        assert kv.allocate_slots(request, num_tokens) is not None
        request.num_computed_tokens += num_tokens
    assert [sum(block.block_hash is not None for block in table) for table in kv.get_blocks("A").blocks] == [1, 4]


# Admission.


def test_the_gate_asks_for_the_most_that_is_ever_held() -> None:
    """A prompt of 112 in steps of 16: 7 + 4 + 4 blocks at most, not 7 + 7 + 7; without the gate one step decides."""
    for num_blocks, admitted in ((15, False), (16, True)):
        kv = seed_cache(num_blocks, max_in_flight_tokens=16)
        request = kv.new_request("A", range(112))
        assert (kv.allocate_slots(request, 16, full_sequence_must_fit=True) is not None) == admitted
    uncapped = seed_cache(21)
    assert uncapped.allocate_slots(uncapped.new_request("A", range(112)), 16, full_sequence_must_fit=True) is None
    assert uncapped.allocate_slots(uncapped.new_request("A", range(112)), 16) is not None


def test_the_gate_counts_what_the_hit_brings() -> None:
    """96 of 200 tokens are cached: 6 + 2 + 2 blocks are revived, and there are at most 7 + 2 + 2 more at a time."""
    for num_free, admitted in ((20, False), (21, True)):
        kv = seed_cache(30, max_in_flight_tokens=16)
        kv.free(prefill(kv, "A", range(97), *[16] * 6, 1))
        request = kv.new_request("B", range(200))
        blocks, num_hit = kv.get_computed_blocks(request)
        assert (num_hit, [sum(i > 0 for i in ids) for ids in blocks.get_block_ids()]) == (96, [6, 2, 2])
        hit = {block for group in blocks.blocks for block in group}
        others = [block for block in kv.block_pool.blocks[1:] if block not in hit]
        kv.block_pool.touch(others[: 29 - num_free])  # another request holds them
        got = KVCacheManager.allocate_slots(kv, request, 16, num_hit, blocks, full_sequence_must_fit=True)
        assert (got is not None) == admitted


def test_reserved_blocks_and_the_watermark() -> None:
    """A reserve is kept from all requests, the watermark from newcomers while others run."""
    kv = make(11, FullAttentionSpec(4), watermark=0.3)  # 3 blocks
    a = kv.new_request("A", range(32))
    assert kv.allocate_slots(a, 32) is None  # 8 of 10, 3 kept
    assert kv.allocate_slots(a, 32, full_sequence_must_fit=True, has_scheduled_reqs=False) is not None
    a.num_computed_tokens = 32
    a.append_output_token_ids(1)
    assert kv.allocate_slots(a, 1, reserved_blocks=2) is None
    assert kv.allocate_slots(a, 1, reserved_blocks=1) is not None
    for watermark in (-0.1, 1.0):
        with pytest.raises(ConfigError, match=f"watermark is {watermark}: it is a share of the pool, 0.0 to 1.0"):
            make(10, FullAttentionSpec(4), watermark=watermark)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("num_blocks", "specs"),
    [
        (36, [FullAttentionSpec(4), SlidingWindowSpec(4, sliding_window=9)]),
        (40, [FullAttentionSpec(4), state_spec(4)]),
        (60, [FullAttentionSpec(4), SlidingWindowSpec(2, sliding_window=9), state_spec(4)]),
        (24, [SlidingWindowSpec(4, sliding_window=6), ChunkedLocalAttentionSpec(4, attention_chunk_size=8)]),
    ],
)
def test_a_scheduler_runs_over_any_groups(num_blocks: int, specs: list[KVCacheSpec]) -> None:
    """25 requests, small steps, little room: all end, some after a preemption, and nothing is held then."""
    num_preemptions = 0
    for seed in range(4):
        rng = random.Random(seed)
        kv = make(num_blocks, *specs, max_in_flight_tokens=24)
        scheduler = Scheduler(kv, SchedulerConfig(max_num_batched_tokens=24, max_num_seqs=6))
        text = [rng.randrange(9) for _ in range(80)]
        for number in range(25):
            own = [rng.randrange(9) for _ in range(rng.randrange(1, 10))]
            prompt = text[: rng.randrange(60)] + own
            scheduler.add_request(kv.new_request(f"r{number}", prompt), max_tokens=rng.randrange(1, 20))
        num_steps = 0
        while scheduler.has_unfinished_requests:
            step = scheduler.schedule()
            done = {
                request_id: [rng.randrange(9)]
                for request_id, num_tokens in step.num_scheduled_tokens.items()
                if kv.requests[request_id].num_computed_tokens + num_tokens >= kv.requests[request_id].num_tokens
            }
            scheduler.update_from_output(step, done)
            num_steps += 1
            assert num_steps < 400
        assert (kv.usage, kv.prefix_cache_stats.requests) == (0.0, 25)
        assert kv.prefix_cache_stats.hits > 0
        num_preemptions += scheduler.num_preemptions
    assert num_preemptions > 0


# Misuse.


def test_a_hit_that_is_none() -> None:
    """Groups that end at different places, blocks where no token reads, another group's: refused, nothing changed."""
    kv = make(30, FullAttentionSpec(2), SlidingWindowSpec(2, sliding_window=3))
    prefill(kv, "A", range(9))
    request = kv.new_request("B", range(9))
    blocks, num_hit = kv.get_computed_blocks(request)
    full, window = blocks.blocks
    table = kv.get_blocks("A").blocks[1]
    wrong = {
        "one end": (full, window[:3]),
        "evicted": (full, [*window[:3], kv.block_pool.null_block]),
        "group 1 does not read": (full, [table[0], *window[1:]]),
        "evicted since": (full, [*window[:3], full[3]]),
    }
    before = manager_state(kv)
    for message, hit in wrong.items():
        with pytest.raises(AllocationError, match=message):
            kv.allocate_slots(request, 1, num_hit, KVCacheBlocks(hit))
    assert manager_state(kv) == before
    assert kv.allocate_slots(request, 1, num_hit, blocks) is not None


def test_bytes_and_bounds_of_the_specs() -> None:
    """Padding counts as bytes; a state's bytes are those of its tensors; bounds in blocks."""
    window = SlidingWindowSpec(16, num_kv_heads=8, head_size=64, sliding_window=128)
    state = state_spec(16)
    assert (window.page_size_bytes, state.page_size_bytes) == (32_768, 4 * 8 * 4 + 3 * 2)
    padded = SlidingWindowSpec(16, num_kv_heads=8, head_size=64, sliding_window=128, page_size_padded=40_000)
    assert (padded.page_size_bytes, padded.real_page_size_bytes) == (40_000, 32_768)
    assert window.max_admission_blocks_per_request(2048, 100_000) == 137  # cdiv(127 + 2048, 16) + 1
    assert FullAttentionSpec(16).max_admission_blocks_per_request(2048, 100_000) == 6250
    chunks = ChunkedLocalAttentionSpec(16, attention_chunk_size=8192)
    assert chunks.max_admission_blocks_per_request(2048, 100_000) == 640
    assert chunks.max_admission_blocks_per_request(2048, 5) == 1
    with pytest.raises(ConfigError, match="sliding_window is 0, it must be at least 1"):
        SlidingWindowSpec(16, sliding_window=0)

"""The manager: a request's way through lookup, admission, growth and release, with exact ids."""

import re
from collections.abc import Sequence
from typing import Any

import pytest

from mini_kv.core.block_pool import BlockPool
from mini_kv.core.errors import (
    AllocationError,
    BlockStateError,
    ConfigError,
    InvalidTokenError,
    RepeatedRequestError,
    UnknownRequestError,
)
from mini_kv.core.invariants import check_invariants
from mini_kv.core.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
)
from mini_kv.core.kv_cache_manager import KVCacheBlocks, KVCacheManager
from mini_kv.core.request import LoRARequest, Request
from mini_kv.core.single_type_kv_cache_manager import FullAttentionManager
from mini_kv.story.debug import DebugKVCacheManager, manager_state


def make(num_blocks: int = 10, block_size: int = 4, *, enable_caching: bool = True) -> KVCacheManager:
    return KVCacheManager.for_full_attention(num_blocks, block_size, enable_caching=enable_caching)


def admit(kv: KVCacheManager, name: str, token_ids: Sequence[int], num_new: int | None = None) -> Request:
    """Look up and admit, in the order of the manager's docstring; the step has not run yet."""
    request = kv.new_request(name, token_ids)
    blocks, num_hit = kv.get_computed_blocks(request)
    request.num_computed_tokens = num_hit
    num_new = len(token_ids) - num_hit if num_new is None else num_new
    assert kv.allocate_slots(request, num_new, new_computed_blocks=blocks) is not None
    return request


def prefill(kv: KVCacheManager, name: str, token_ids: Sequence[int]) -> Request:
    """Admit and compute the whole prompt."""
    request = admit(kv, name, token_ids)
    request.num_computed_tokens = request.num_tokens
    return request


def ids(blocks: KVCacheBlocks | None) -> list[int] | None:
    return None if blocks is None else blocks.get_block_ids()[0]


def table(kv: KVCacheManager, name: str) -> list[int]:
    return kv.get_block_ids(name)[0]


def free_order(kv: KVCacheManager) -> list[int]:
    return [block.block_id for block in kv.block_pool.free_block_queue.get_all_free_blocks()]


def refs(kv: KVCacheManager) -> list[int]:
    return [block.ref_cnt for block in kv.block_pool.blocks]


def keyed(kv: KVCacheManager) -> list[int]:
    return [block.block_id for block in kv.block_pool.blocks if block.block_hash is not None]


def stats(kv: KVCacheManager) -> tuple[int, int, int]:
    return (kv.prefix_cache_stats.requests, kv.prefix_cache_stats.queries, kv.prefix_cache_stats.hits)


# Stories.


def test_two_requests_share_a_prefix() -> None:
    """The second pays for its own tail only; refs count tables; freed blocks stay findable."""
    kv = make()
    a = prefill(kv, "A", [*range(8), 100, 101])
    b = prefill(kv, "B", [*range(8), 200])
    assert (table(kv, "A"), table(kv, "B")) == ([1, 2, 3], [1, 2, 4])
    assert refs(kv) == [0, 2, 2, 1, 1, 0, 0, 0, 0, 0]
    assert (a.num_cached_tokens, b.num_cached_tokens) == (0, 8)
    assert keyed(kv) == [1, 2]
    assert free_order(kv) == [5, 6, 7, 8, 9]
    assert kv.usage == pytest.approx(4 / 9)

    kv.free(a)
    assert free_order(kv) == [3, 5, 6, 7, 8, 9]  # 3 is partial: worth nothing, so it goes first
    kv.free(b)
    assert free_order(kv) == [4, 3, 5, 6, 7, 8, 9, 2, 1]
    assert kv.usage == 0.0
    assert ids(kv.get_computed_blocks(kv.new_request("C", [*range(8), 9]))[0]) == [1, 2]
    assert table(kv, "A") == []


def test_a_hit_in_both_orders() -> None:
    """Adopted before the call or passed to it: the same tables, statistics and free order."""
    states = []
    for passed in (False, True):
        kv = make()
        kv.free(prefill(kv, "A", range(10)))
        b = kv.new_request("B", range(10))
        blocks, num_hit = kv.get_computed_blocks(b)
        assert (ids(blocks), num_hit) == ([1, 2], 8)
        if passed:
            new_blocks = kv.allocate_slots(b, 2, num_hit, blocks)
        else:
            b.num_computed_tokens = num_hit
            new_blocks = kv.allocate_slots(b, 2, new_computed_blocks=blocks)
        assert ids(new_blocks) == [3]
        states.append(manager_state(kv))
    assert states[0] == states[1]
    assert states[0]["tables"] == {"B": ([1, 2, 3],)}
    assert states[0]["statistics"] == (2, 20, 8)


def test_a_lookup_changes_nothing() -> None:
    """A question may be asked any number of times, of waiting and of running requests."""
    kv = make()
    a = prefill(kv, "A", range(9))
    waiting = kv.new_request("B", range(9))
    before = manager_state(kv)
    answers = [kv.get_computed_blocks(request) for request in (waiting, waiting, a)]
    assert [(ids(blocks), num_hit) for blocks, num_hit in answers] == [([1, 2], 8)] * 3
    assert manager_state(kv) == before
    assert (waiting.num_computed_tokens, waiting.num_cached_tokens) == (0, None)


@pytest.mark.parametrize(
    ("num_tokens", "hit"),
    [(1, []), (3, []), (4, []), (5, [1]), (8, [1]), (9, [1, 2]), (12, [1, 2]), (13, [1, 2, 3]), (30, [1, 2, 3])],
)
def test_the_cap(num_tokens: int, hit: list[int]) -> None:
    """At most num_tokens - 1 tokens, in whole blocks (I7)."""
    kv = make()
    kv.free(prefill(kv, "A", range(12)))
    blocks, num_hit = kv.get_computed_blocks(kv.new_request("B", range(num_tokens)))
    assert (ids(blocks), num_hit) == (hit, 4 * len(hit))


def test_decode_takes_a_block_when_the_last_is_full() -> None:
    """One token per step: most steps take nothing, and a block gets its key in the step that fills it."""
    kv = make()
    a = prefill(kv, "A", range(3))
    took, keys = [], []
    for token in range(6):
        a.append_output_token_ids(token)
        took.append(ids(kv.allocate_slots(a, 1)))
        keys.append(keyed(kv))
        a.num_computed_tokens += 1
    assert took == [[], [2], [], [], [], [3]]
    assert keys == [[1], [1], [1], [1], [1, 2], [1, 2]]
    assert table(kv, "A") == [1, 2, 3]


def test_prefill_in_chunks() -> None:
    """Each chunk takes its blocks and publishes what it fills; a block that two chunks share is published once."""
    kv = make()
    a = admit(kv, "A", range(14), num_new=6)
    assert (table(kv, "A"), keyed(kv)) == ([1, 2], [1])
    a.num_computed_tokens = 6
    assert ids(kv.allocate_slots(a, 6)) == [3]
    assert (table(kv, "A"), keyed(kv)) == ([1, 2, 3], [1, 2, 3])
    a.num_computed_tokens = 12
    assert ids(kv.allocate_slots(a, 2)) == [4]
    assert keyed(kv) == [1, 2, 3]
    check_invariants(kv)


def test_lookahead_and_drafts_get_slots_but_no_keys() -> None:
    """A guess is not content: only tokens that the request contains are published."""
    kv = make()
    a = kv.new_request("A", range(4))
    assert ids(kv.allocate_slots(a, 4, num_lookahead_tokens=5)) == [1, 2, 3]
    assert keyed(kv) == [1]
    a.num_computed_tokens = 4

    a.append_output_token_ids(50)
    assert ids(kv.allocate_slots(a, 1 + 3)) == []  # one token and 3 drafts: block 2 is full of guesses
    assert keyed(kv) == [1]

    a.append_output_token_ids(51, 52, 60)  # 2 drafts accepted, and one sampled
    a.num_computed_tokens = 7
    assert ids(kv.allocate_slots(a, 1)) == []
    assert keyed(kv) == [1, 2]


def test_a_duplicate_keeps_its_own_block() -> None:
    """A request that ignores its hit computes again, into a block of its own; lookups find the older block."""
    kv = make()
    prefill(kv, "A", range(4))
    b = kv.new_request("B", range(4))
    assert ids(kv.allocate_slots(b, 4)) == [2]
    assert (table(kv, "A"), table(kv, "B"), keyed(kv)) == ([1], [2], [1, 2])
    assert ids(kv.get_computed_blocks(kv.new_request("C", range(5)))[0]) == [1]
    kv.evict_blocks([1])
    assert ids(kv.get_computed_blocks(kv.new_request("C", range(5)))[0]) == [2]


def test_namespaces_do_not_share() -> None:
    """The same tokens under another salt or adapter find nothing."""
    kv = make()
    prefill(kv, "A", range(9))
    salted = kv.new_request("B", range(9), cache_salt="t")
    adapted = kv.new_request("C", range(9), lora_request=LoRARequest("sql", "/7"))
    assert [kv.get_computed_blocks(request)[1] for request in (salted, adapted)] == [0, 0]


def test_models_and_epochs_do_not_share() -> None:
    """One prompt, four caches, as before and after a change of weights: four hashes (I13)."""
    config = make().kv_cache_config
    caches = [
        KVCacheManager(config, model_fingerprint=model, weights_epoch=epoch) for model in ("", "m") for epoch in (0, 1)
    ]
    assert len({kv.new_request("A", range(4)).block_hashes[0] for kv in caches}) == 4


# Not now.


def test_scarcity_is_a_value() -> None:
    """Too few blocks: None, nothing changed, nothing counted; and the same call works when blocks are back."""
    kv = make(num_blocks=5)
    a = prefill(kv, "A", range(9))
    b = kv.new_request("B", range(100, 108))
    before = manager_state(kv)
    assert kv.allocate_slots(b, 8) is None
    assert manager_state(kv) == before
    assert b.num_cached_tokens is None
    kv.free(a)
    assert ids(kv.allocate_slots(b, 8)) == [3, 4]
    assert stats(kv) == (2, 17, 0)


def test_a_running_request_is_refused_too() -> None:
    """Its table stays as it was; a step without the request, and it may ask again."""
    kv = make(num_blocks=3)
    a = prefill(kv, "A", range(4))
    prefill(kv, "B", [9])
    a.append_output_token_ids(4)
    before = manager_state(kv)
    assert kv.allocate_slots(a, 1) is None
    assert manager_state(kv) == before


def test_revived_hits_are_charged() -> None:
    """3 free blocks, 2 of them the hit: 1 is left for new tokens, and a request that needs 2 has to wait."""
    kv = make(num_blocks=5)
    kv.free(prefill(kv, "A", range(8)))
    prefill(kv, "X", [99])
    assert free_order(kv) == [4, 2, 1]
    b = kv.new_request("B", range(16))
    blocks, num_hit = kv.get_computed_blocks(b)
    assert (ids(blocks), num_hit) == ([1, 2], 8)
    before = manager_state(kv)
    assert kv.allocate_slots(b, 8, num_hit, blocks) is None
    assert manager_state(kv) == before
    assert ids(kv.allocate_slots(b, 4, num_hit, blocks)) == [4]
    assert free_order(kv) == []


def test_shared_hits_cost_nothing() -> None:
    """A hit that others hold takes no free block: the request fits into what is left, to the last block."""
    kv = make(num_blocks=5)
    prefill(kv, "A", range(9))
    b = kv.new_request("B", range(12))
    blocks, num_hit = kv.get_computed_blocks(b)
    assert ids(kv.allocate_slots(b, 4, num_hit, blocks)) == [4]
    assert free_order(kv) == []


def test_the_hit_is_touched_before_new_blocks_are_taken() -> None:
    """The hit stands first in the free queue; it is adopted, not handed out as new."""
    kv = make(num_blocks=4)
    kv.free(prefill(kv, "A", range(8)))
    kv.free(prefill(kv, "X", [98, 99, 97, 96]))
    assert free_order(kv) == [2, 1, 3]
    assert table(kv, "B") == []
    prefill(kv, "B", range(9))
    assert table(kv, "B") == [1, 2, 3]


# Statistics.


def test_statistics_count_a_request_once() -> None:
    """At its first admission: not when refused, not when it grows, not when it comes back after preemption."""
    kv = make(num_blocks=6)
    a = prefill(kv, "A", range(9))
    assert stats(kv) == (1, 9, 0)
    b = kv.new_request("B", range(14))
    blocks, num_hit = kv.get_computed_blocks(b)
    assert kv.allocate_slots(b, 14, num_hit, blocks) is None
    assert stats(kv) == (1, 9, 0)
    assert ids(kv.allocate_slots(b, 4, num_hit, blocks)) == [4]
    b.num_computed_tokens = 12
    assert stats(kv) == (2, 23, 8)
    kv.free(b)
    b.num_computed_tokens = 0
    blocks, num_hit = kv.get_computed_blocks(b)
    assert (ids(blocks), num_hit) == ([1, 2, 4], 12)
    assert kv.allocate_slots(b, 2, num_hit, blocks) is not None
    assert stats(kv) == (2, 23, 8)
    assert (a.num_cached_tokens, b.num_cached_tokens) == (0, 8)


# Promises.


def test_a_promise_is_taken_back() -> None:
    """vllm #43569: aborted before its step ran, a request leaves no key to blocks that were never written."""
    kv = make()
    a = admit(kv, "A", range(9))
    assert keyed(kv) == [1, 2]
    assert kv.withdraw_promises(a) == []
    assert keyed(kv) == []
    kv.free(a)
    assert free_order(kv) == [3, 2, 1, 4, 5, 6, 7, 8, 9]  # none has a key: all in front, the tail first
    assert kv.get_computed_blocks(kv.new_request("B", range(9)))[1] == 0


def test_what_is_computed_is_no_promise() -> None:
    """Chunk by chunk: only the blocks of the step that did not run lose their keys, a half-computed one among them."""
    kv = make()
    a = admit(kv, "A", range(12), num_new=6)
    a.num_computed_tokens = 6
    assert ids(kv.allocate_slots(a, 6)) == [3]
    assert keyed(kv) == [1, 2, 3]
    assert kv.withdraw_promises(a) == []
    assert keyed(kv) == [1]
    assert kv.withdraw_promises(a) == []  # twice is the same as once
    assert keyed(kv) == [1]
    assert ids(kv.allocate_slots(a, 6)) == []  # and the step may be tried again
    assert keyed(kv) == [1, 2, 3]


def test_withdrawing_names_the_requests_that_adopted_a_promise() -> None:
    """B built on A's promise and C on B's: A's abort names both; D shares only what was computed, and stays."""
    kv = make(num_blocks=20)
    kv.free(prefill(kv, "old", range(4)))
    a = admit(kv, "A", range(9))
    b = admit(kv, "B", range(13))
    c = admit(kv, "C", range(17))
    admit(kv, "D", [*range(4), 77, 78])
    assert [table(kv, name) for name in "ABCD"] == [[1, 2, 3], [1, 2, 4, 5], [1, 2, 4, 6, 7], [1, 8]]
    assert (b.num_cached_tokens, c.num_cached_tokens) == (8, 12)

    assert kv.withdraw_promises(a) == ["B", "C"]
    kv.free(a)
    assert kv.withdraw_promises(b) == ["C"]
    kv.free(b)
    assert kv.withdraw_promises(c) == []
    kv.free(c)

    assert keyed(kv) == [1]
    assert refs(kv)[:9] == [0, 1, 0, 0, 0, 0, 0, 0, 1]
    assert list(kv.requests) == ["D"]
    check_invariants(kv)


def test_an_adopted_promise_is_not_the_adopters_to_withdraw() -> None:
    """B adopts A's promise and is aborted: A's keys stay, since A will still write them."""
    kv = make()
    admit(kv, "A", range(9))
    b = admit(kv, "B", range(14))
    assert (table(kv, "B"), keyed(kv)) == ([1, 2, 4, 5], [1, 2, 4])
    assert kv.withdraw_promises(b) == []
    assert keyed(kv) == [1, 2]


# Misuse. Each error carries its data, and the state stays.


def test_an_unknown_request() -> None:
    """Never admitted, freed already, or another object with the same id: nothing to free or withdraw."""
    kv = make()
    prefill(kv, "A", range(4))
    gone = prefill(kv, "B", range(4))
    kv.free(gone)
    before = manager_state(kv)
    for stranger in (kv.new_request("C", [1]), gone, kv.new_request("A", [1])):
        for call in (kv.free, kv.withdraw_promises):
            with pytest.raises(UnknownRequestError) as error:
                call(stranger)
            assert error.value.request_id == stranger.request_id
    assert manager_state(kv) == before


def test_a_repeated_id() -> None:
    """A second live request of that name would overwrite the first one's table; after a free the name is free."""
    kv = make()
    first = prefill(kv, "A", range(4))
    second = kv.new_request("A", range(4))
    before = manager_state(kv)
    with pytest.raises(RepeatedRequestError) as error:
        kv.allocate_slots(second, 4)
    assert error.value.request_id == "A"
    assert manager_state(kv) == before
    kv.free(first)
    assert ids(kv.allocate_slots(second, 4)) == [2]


@pytest.mark.parametrize(("num_new", "num_lookahead"), [(0, 0), (-1, 0), (1, -1)])
def test_numbers_below_their_least(num_new: int, num_lookahead: int) -> None:
    """A step computes at least one token and looks ahead, not back; the same for waiting and running requests."""
    kv = make()
    running = prefill(kv, "A", range(4))
    before = manager_state(kv)
    for request in (running, kv.new_request("B", range(4))):
        with pytest.raises(AllocationError, match="a step computes at least 1 token") as error:
            kv.allocate_slots(request, num_new, num_lookahead_tokens=num_lookahead)
        assert error.value.request_id == request.request_id
    assert manager_state(kv) == before


@pytest.mark.parametrize(
    ("adopted", "passed", "with_blocks"),
    [
        (8, 8, True),  # both
        (4, 4, True),  # half and half
        (12, -4, True),  # both, and they add up
        (0, 0, True),  # blocks, but no count
        (4, 0, True),  # part of the hit
        (8, 0, False),  # a count, but no blocks
        (0, 8, False),
    ],
)
def test_a_hit_is_counted_once_with_its_blocks(adopted: int, passed: int, with_blocks: bool) -> None:
    """Adopted or passed, whole, not both: everything else is refused at the first admission."""
    kv = make()
    kv.free(prefill(kv, "A", range(12)))
    b = kv.new_request("B", range(12))
    blocks, num_hit = kv.get_computed_blocks(b)
    assert num_hit == 8
    b.num_computed_tokens = adopted
    before = manager_state(kv)
    with pytest.raises(AllocationError, match="pass the blocks, and count their tokens once") as error:
        kv.allocate_slots(b, 4, passed, blocks if with_blocks else None)
    assert error.value.request_id == "B"
    assert manager_state(kv) == before


def test_a_hit_that_is_not_counted_is_told_in_the_callers_words() -> None:
    """Who never passed `num_new_computed_tokens` does not read of it."""
    kv = make()
    kv.free(prefill(kv, "A", range(12)))
    b = kv.new_request("B", range(12))
    blocks, _ = kv.get_computed_blocks(b)
    told = "the blocks of its hit hold 8 tokens, but request.num_computed_tokens is 0: pass the blocks, and count their"
    with pytest.raises(AllocationError, match=re.escape(f"request 'B': {told} tokens once")):
        kv.allocate_slots(b, 4, new_computed_blocks=blocks)


def test_a_running_request_adopts_nothing() -> None:
    """Its table has begun already: neither blocks nor a number of tokens can be put in front."""
    kv = make()
    kv.free(prefill(kv, "A", range(12)))
    b = kv.new_request("B", range(12))
    blocks, num_hit = kv.get_computed_blocks(b)
    assert kv.allocate_slots(b, 4, num_lookahead_tokens=8) is not None
    before = manager_state(kv)
    with pytest.raises(AllocationError, match="only a request without blocks can adopt a hit"):
        kv.allocate_slots(b, 4, num_hit, blocks)
    with pytest.raises(
        AllocationError, match="it is running"
    ):  # the slots are there, but no request has computed what is in them
        kv.allocate_slots(b, 4, num_hit)
    b.num_computed_tokens = 13
    with pytest.raises(AllocationError, match="13 tokens are said to be computed"):  # beyond its table
        kv.allocate_slots(b, 1)
    assert manager_state(kv) == before


def test_a_stale_hit() -> None:
    """Between lookup and admission the block was evicted, or holds something else now: look up again."""
    kv = make(num_blocks=3)
    kv.free(prefill(kv, "A", range(4)))
    b = kv.new_request("B", range(5))
    blocks, num_hit = kv.get_computed_blocks(b)
    assert ids(blocks) == [1]

    prefill(kv, "X", range(50, 58))
    assert table(kv, "X") == [2, 1]
    before = manager_state(kv)
    with pytest.raises(AllocationError, match="block 1 of the hit has been evicted since the lookup"):
        kv.allocate_slots(b, 1, num_hit, blocks)
    kv.evict_blocks([1])
    before["blocks"][1] = (1, None)
    with pytest.raises(AllocationError, match="block 1 of the hit has been evicted since the lookup"):
        kv.allocate_slots(b, 1, num_hit, blocks)
    assert manager_state(kv)["blocks"] == before["blocks"]


def test_anothers_hit() -> None:
    """Blocks of another prompt, or more blocks than the prompt has hashes for, are no hit of this request."""
    kv = make()
    kv.free(prefill(kv, "A", range(12)))
    blocks, num_hit = kv.get_computed_blocks(kv.new_request("longer", range(13)))
    assert num_hit == 12
    named_in_part = Request("T", num_tokens=20, block_hashes=kv.new_request("U", range(8)).block_hashes)
    before = manager_state(kv)
    for request in (kv.new_request("B", range(8)), kv.new_request("C", range(50, 70)), named_in_part):
        with pytest.raises(AllocationError) as error:
            kv.allocate_slots(request, 1, num_hit, blocks)
        assert error.value.request_id == request.request_id
    assert manager_state(kv) == before


@pytest.mark.parametrize(("busy", "found"), [(1, [2, 3]), (8, [9, 10]), (12, [13, 14])])
def test_another_caches_hit(busy: int, found: list[int]) -> None:
    """Two replicas hash a prefix alike: what one has found the other must not adopt, whatever the blocks' numbers."""
    here, there = make(num_blocks=10), make(num_blocks=20)
    prefill(here, "A", range(12))
    prefill(there, "X", range(100, 100 + 4 * busy))
    prefill(there, "A", range(12))
    b = here.new_request("B", range(9))
    blocks, num_hit = there.get_computed_blocks(b)
    assert ids(blocks) == found
    states = manager_state(here), manager_state(there)
    with pytest.raises(AllocationError, match="of the hit belongs to another cache") as error:
        here.allocate_slots(b, 1, num_hit, blocks)
    assert error.value.request_id == "B"
    assert (manager_state(here), manager_state(there)) == states


def test_a_bad_token_names_itself() -> None:
    """Checked when the request is made, so that no key is ever derived from it."""
    with pytest.raises(InvalidTokenError) as error:
        make().new_request("A", [1, 2, -3])
    assert (error.value.index, error.value.value) == (2, -3)


# Without caching, other ways in, configuration.


def test_caching_off() -> None:
    """No hashes, no keys, no hits, no statistics; everything else is the same, and all frees go to the front."""
    kv = make(enable_caching=False)
    a = prefill(kv, "A", range(9))
    b = prefill(kv, "B", range(9))
    assert (table(kv, "A"), table(kv, "B")) == ([1, 2, 3], [4, 5, 6])
    assert (a.block_hashes, keyed(kv), stats(kv)) == ([], [], (0, 0, 0))
    assert (a.num_cached_tokens, b.num_cached_tokens) == (0, 0)
    assert kv.withdraw_promises(b) == []
    kv.free(a)
    assert free_order(kv) == [3, 2, 1, 7, 8, 9]


def test_several_groups_without_caching() -> None:
    """Each group has its table, with its own block size, from one pool; a refusal counts all groups together."""
    groups = tuple(KVCacheGroupSpec((name,), FullAttentionSpec(size)) for name, size in (("a", 4), ("b", 2)))
    kv = KVCacheManager(KVCacheConfig(8, groups), enable_caching=False)
    a = kv.new_request("A", range(7))
    assert kv.allocate_slots(a, 8) is not None
    assert kv.get_block_ids("A") == ([1, 2], [3, 4, 5, 6])
    a.num_computed_tokens = 8
    before = manager_state(kv)
    assert kv.allocate_slots(a, 1) is None  # one new block for each group, one block left
    assert manager_state(kv) == before
    kv.free(a)
    assert kv.block_pool.num_free_blocks == 7


def test_a_group_that_has_room_asks_for_nothing() -> None:
    """The groups' last blocks fill at different times: one block is free, one group needs one, and that is enough."""
    groups = tuple(KVCacheGroupSpec((name,), FullAttentionSpec(size)) for name, size in (("a", 4), ("b", 2)))
    kv = KVCacheManager(KVCacheConfig(7, groups), enable_caching=False)
    a = kv.new_request("A", range(7))
    assert kv.allocate_slots(a, 6) is not None
    assert (kv.get_block_ids("A"), free_order(kv)) == (([1, 2], [3, 4, 5]), [6])
    a.num_computed_tokens = 6
    new_blocks = kv.allocate_slots(a, 1)
    assert new_blocks is not None
    assert new_blocks.get_block_ids() == ([], [6])


def test_a_group_publishes_under_its_own_number() -> None:
    """One pool, two groups of layers: what group 1 has published group 1 finds, and group 0 does not."""
    pool = BlockPool(8)
    spec = FullAttentionSpec(2)
    groups = [FullAttentionManager(spec, pool, group_id) for group_id in (0, 1)]
    request = make(block_size=2).new_request("A", range(5))
    groups[1].allocate_new_computed_blocks("A", [])
    assert [block.block_id for block in groups[1].allocate_new_blocks("A", 5)] == [1, 2, 3]
    groups[1].cache_blocks(request, 5)
    hits = [group.find_longest_cache_hit(request.block_hashes, 4) for group in groups]
    assert [[block.block_id for block in hit] for hit in hits] == [[], [1, 2]]


def test_a_request_without_tokens() -> None:
    """A trace knows hashes and lengths only; it goes the same way and finds the same prefixes."""
    kv = make()
    kv.free(prefill(kv, "A", range(9)))
    names = kv.new_request("names", range(9)).block_hashes
    b = Request("B", num_tokens=9, block_hashes=names)
    blocks, num_hit = kv.get_computed_blocks(b)
    assert (ids(blocks), num_hit) == ([1, 2], 8)
    assert ids(kv.allocate_slots(b, 1, num_hit, blocks)) == [3]


def test_reset_waits_for_the_last_request() -> None:
    """True and all is forgotten, or False and nothing is."""
    kv = make()
    a = prefill(kv, "A", range(9))
    before = manager_state(kv)
    assert not kv.reset_prefix_cache()
    assert manager_state(kv) == before
    kv.free(a)
    assert kv.reset_prefix_cache()
    assert (keyed(kv), stats(kv)) == ([], (1, 9, 0))


def test_settings_that_cannot_work() -> None:
    """Refused when the cache is built, not at the first request."""
    group = KVCacheGroupSpec(("layer",), FullAttentionSpec(4))
    with pytest.raises(ConfigError, match="num_blocks is 1: the null block takes one"):
        KVCacheConfig(1, (group,))
    with pytest.raises(ConfigError, match=r"^a KV cache needs at least one group of layers$"):
        KVCacheConfig(4, ())
    for lookahead in (-1, 2):
        with pytest.raises(ConfigError, match=f"num_hash_lookahead_tokens is {lookahead}, it must be 0 or 1"):
            KVCacheConfig(4, (group,), num_hash_lookahead_tokens=lookahead)
    drafter = KVCacheGroupSpec(("layer",), FullAttentionSpec(4), is_eagle_group=True)
    with pytest.raises(ConfigError, match="a retention interval keeps the blocks of a hit, but not the next one"):
        KVCacheConfig(4, (drafter,), 8)
    chunks = KVCacheGroupSpec(("layer",), ChunkedLocalAttentionSpec(4, attention_chunk_size=8), is_eagle_group=True)
    with pytest.raises(ConfigError, match="is_eagle_group: a drafter has no layers of ChunkedLocalAttentionSpec"):
        KVCacheConfig(4, (chunks,))
    with pytest.raises(ConfigError, match="unknown hash function 'md5'"):
        KVCacheManager.for_full_attention(4, 4, hash_name="md5")
    for name in ("block_size", "num_kv_heads", "head_size", "dtype_bytes"):
        sizes: dict[str, Any] = {"block_size": 4, name: 0}
        with pytest.raises(ConfigError, match=f"{name} is 0, it must be at least 1"):
            FullAttentionSpec(**sizes)


def test_bytes_of_a_block() -> None:
    """Llama-3-8B: 8 KV heads of 128, bf16, 16 tokens per block: 64 KiB per layer, 2 MiB for its 32 layers."""
    spec = FullAttentionSpec(block_size=16, num_kv_heads=8, head_size=128, dtype_bytes=2)
    assert spec.page_size_bytes == 65_536


def test_withdrawing_spares_the_hit_in_either_order():
    """A request that is aborted before its passed hit was counted takes back its own promises, not its hosts' keys."""
    kv = DebugKVCacheManager(KVCacheManager.for_full_attention(num_blocks=10, block_size=4))
    a = kv.new_request("A", range(12))
    kv.allocate_slots(a, 12)
    a.num_computed_tokens = 12
    b = kv.new_request("B", [*range(12), 90, 91, 92, 93])
    hit, num_hits = kv.get_computed_blocks(b)
    kv.allocate_slots(b, 4, num_hits, hit)
    assert kv.withdraw_promises(b) == []
    kv.free(b)
    assert kv.get_computed_blocks(kv.new_request("C", [*range(12), 0]))[1] == 12


def test_a_running_request_cannot_fall_back_into_its_hit():
    """Counting fewer tokens than were adopted would give out slots in blocks that another request wrote."""
    kv = DebugKVCacheManager(KVCacheManager.for_full_attention(num_blocks=10, block_size=4))
    a = kv.new_request("A", range(12))
    kv.allocate_slots(a, 12)
    a.num_computed_tokens = 12
    b = kv.new_request("B", [*range(12), 90])
    hit, num_hits = kv.get_computed_blocks(b)
    kv.allocate_slots(b, 1, num_hits, hit)
    b.num_computed_tokens = 0
    with pytest.raises(AllocationError):
        kv.allocate_slots(b, 13)
    assert kv.get_block_ids("B") == ([1, 2, 3, 4],)


def test_a_free_that_fails_changes_nothing() -> None:
    """A running request's block was freed behind the manager's back: `free` raises and changes nothing."""
    kv = make()
    a = prefill(kv, "A", range(9))
    kv.block_pool.free_blocks(kv.get_blocks("A").blocks[0][1:2])
    before = manager_state(kv)
    with pytest.raises(BlockStateError) as error:
        kv.free(a)
    assert error.value.block_ids == [2]
    assert manager_state(kv) == before
    assert list(kv.requests) == ["A"]

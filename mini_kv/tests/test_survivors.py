"""Bugs that the tests once let through, each put into the manager on purpose: a story for each that fails on it."""

from collections.abc import Sequence

import pytest

from mini_kv.core.block import KVCacheBlock
from mini_kv.core.errors import AllocationError, ConfigError
from mini_kv.core.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    MambaSpec,
    SlidingWindowSpec,
)
from mini_kv.core.kv_cache_manager import KVCacheBlocks, KVCacheManager
from mini_kv.core.request import Request
from mini_kv.tests.remembered import remembered
from mini_kv.tests.test_copy_on_write import decode, fork, hold, make_kv

FULL = KVCacheGroupSpec(("full",), FullAttentionSpec(4))


def test_a_fork_has_adopted_what_its_parent_computed():
    """It cannot fall back behind it: these blocks are not its own to write."""
    kv = make_kv()
    a = hold(kv, "A", 10)
    b = fork(kv, a, "B")
    assert b.num_cached_tokens == 10
    for num_computed_tokens in (0, 8, 9):
        b.num_computed_tokens = num_computed_tokens
        with pytest.raises(AllocationError, match=f"{num_computed_tokens} tokens are said to be .* it adopted 10"):
            kv.allocate_slots(b, 1)


def test_a_fork_that_is_given_up_before_its_step_leaves_its_parents_keys():
    """What it adopted is computed, whatever its own count says by then."""
    kv = make_kv()
    a = hold(kv, "A", 10)
    b = fork(kv, a, "B")
    b.num_computed_tokens = 0
    assert kv.withdraw_promises(b) == []
    assert [kv.block_pool.blocks[block_id].block_hash is not None for block_id in (1, 2, 3)] == [True, True, False]


KINDS = {
    "full": (FullAttentionSpec(4),),
    "full and window": (FullAttentionSpec(4), SlidingWindowSpec(2, sliding_window=3)),
    "states": (MambaSpec(4, shapes=((2,),), dtypes_bytes=(2,)),),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_manager_remembers_nothing_of_a_request_that_is_gone(kind: str):
    groups = tuple(KVCacheGroupSpec((f"layer {index}",), spec) for index, spec in enumerate(KINDS[kind]))
    kv = KVCacheManager(KVCacheConfig(20, groups))
    a = hold(kv, "gone A", 8 if kind == "states" else 10)  # a state is promised where a block ends
    if kind != "states":
        b, c = fork(kv, a, "gone B"), fork(kv, a, "gone C")
        decode(kv, b)  # it has its own block now; A and C still share
        kv.finish_kv_cache_block_copies()
        kv.free(b)
        kv.free(c)
    assert {"gone A"} <= remembered(kv)
    kv.free(a)
    assert [name for name in remembered(kv) if name.startswith("gone")] == []


def test_an_empty_salt_is_refused_with_the_name_of_its_request():
    with pytest.raises(ConfigError, match="the cache_salt of request 'A' is empty"):
        make_kv().new_request("A", [1], cache_salt="")


def test_a_newcomer_leaves_the_watermark_free_whether_or_not_all_of_it_must_fit():
    kv = KVCacheManager(KVCacheConfig(11, (FULL,)), watermark=0.3)  # 3 of 10 blocks
    a = kv.new_request("A", range(32))
    assert kv.allocate_slots(a, 29) is None
    assert kv.allocate_slots(a, 28) is not None
    assert kv.block_pool.num_free_blocks == 3


def test_a_manager_without_caching_has_a_pool_without_caching():
    kv = KVCacheManager.for_full_attention(10, 4, enable_caching=False)
    assert kv.block_pool.enable_caching is False
    kv.free(hold(kv, "A", 8))
    assert kv.get_computed_blocks(kv.new_request("B", range(9)))[1] == 0


def test_a_hit_with_a_block_left_of_the_window_is_refused_with_what_is_wrong():
    group = KVCacheGroupSpec(("window",), SlidingWindowSpec(4, sliding_window=4))
    kv = KVCacheManager(KVCacheConfig(10, (group,)))
    kv.free(hold(kv, "A", 12))
    b = kv.new_request("B", range(13))
    hit, num_hit_tokens = kv.get_computed_blocks(b)
    assert (hit.get_block_ids(), num_hit_tokens) == (([0, 0, 3],), 12)
    wrong = KVCacheBlocks(([kv.block_pool.blocks[1], *hit.blocks[0][1:]],))
    with pytest.raises(AllocationError, match="block 1 of the hit is at a place that group 0 does not read") as error:
        kv.allocate_slots(b, 1, num_hit_tokens, wrong)
    assert error.value.request_id == "B"


class AdmitsItsOwnWay(KVCacheManager):
    """Does not note what a request has adopted, as a learner's may not."""

    def _admit(self, request: Request, num_hit_tokens: int, hit: tuple[Sequence[KVCacheBlock], ...]) -> None:
        self.coordinator.allocate_new_computed_blocks(request.request_id, hit)
        self.requests[request.request_id] = request


def test_promises_are_withdrawn_also_where_adopted_tokens_are_not_noted():
    kv = AdmitsItsOwnWay.for_full_attention(10, 4)
    a = hold(kv, "A", 8)
    a.num_computed_tokens = 4
    assert kv.withdraw_promises(a) == []
    assert [kv.block_pool.blocks[block_id].block_hash is not None for block_id in (1, 2)] == [True, False]

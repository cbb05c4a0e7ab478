"""The ledger: silent on a sound cache, and each check proven able to fail by breaking one thing by hand."""

from collections.abc import Callable

import pytest

from mini_kv.core.block import BlockHashWithGroupId, KVCacheBlock
from mini_kv.core.errors import BlockStateError, KVCacheError
from mini_kv.core.free_queue import FreeKVCacheBlockQueue
from mini_kv.core.invariants import (
    LEDGER,
    InvariantViolationError,
    Violation,
    check_invariants,
    find_pool_violations,
    find_violations,
    holders_of,
    tables_of,
)
from mini_kv.core.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from mini_kv.core.kv_cache_manager import KVCacheManager
from mini_kv.core.parts import KVCacheParts

SomeKey = BlockHashWithGroupId(b"k" * 36)


class LyingQueue(FreeKVCacheBlockQueue):
    """Says that its blocks are `walk`, once that is set; raises it if it is an error."""

    walk: list[KVCacheBlock] | KVCacheError | None = None

    def get_all_free_blocks(self) -> list[KVCacheBlock]:
        if isinstance(self.walk, KVCacheError):
            raise self.walk
        return super().get_all_free_blocks() if self.walk is None else self.walk


def queue_of(kv: KVCacheManager) -> LyingQueue:
    queue = kv.block_pool.free_block_queue
    assert isinstance(queue, LyingQueue)
    return queue


def sound_cache() -> KVCacheManager:
    """A holds blocks 1 2 3, B holds 1 4; 5 is cached-free, 6 to 8 are free and empty."""
    config = KVCacheConfig(9, (KVCacheGroupSpec(("layers",), FullAttentionSpec(2)),))
    kv = KVCacheManager(config, parts=KVCacheParts(make_queue=LyingQueue))
    for name, token_ids in (("A", [1, 1, 2, 2, 3]), ("B", [1, 1, 7]), ("C", [9, 9])):
        request = kv.new_request(name, token_ids)
        blocks, num_hit = kv.get_computed_blocks(request)
        assert kv.allocate_slots(request, len(token_ids) - num_hit, num_hit, blocks) is not None
        request.num_computed_tokens = len(token_ids)
    kv.free(kv.requests["C"])
    assert {name: kv.get_block_ids(name)[0] for name in kv.requests} == {"A": [1, 2, 3], "B": [1, 4]}
    return kv


def block(kv: KVCacheManager, block_id: int) -> KVCacheBlock:
    return kv.block_pool.blocks[block_id]


def test_the_ledger_has_numbers_without_gaps() -> None:
    """I1 to I18, each with its words."""
    assert list(LEDGER) == [f"I{number}" for number in range(1, 19)]
    assert all(": " in words for words in LEDGER.values())


def test_a_sound_cache_is_silent() -> None:
    """Held, shared, cached-free and empty blocks: nothing to report, also when all is over."""
    kv = sound_cache()
    assert list(find_violations(kv)) == []
    for request in list(kv.requests.values()):
        kv.free(request)
    assert list(find_violations(kv)) == []
    check_invariants(kv)


# What is broken, how, and what the ledger says first: number and blocks.


def reference_too_many(kv: KVCacheManager) -> None:
    block(kv, 2).ref_cnt = 2


def reference_negative(kv: KVCacheManager) -> None:
    kv.block_pool.free_block_queue.remove(block(kv, 6))
    block(kv, 6).ref_cnt = -1


def twice_in_one_table(kv: KVCacheManager) -> None:
    kv.coordinator.single_type_managers[0].req_to_blocks["A"].append(block(kv, 3))
    block(kv, 3).ref_cnt = 2


def held_and_free(kv: KVCacheManager) -> None:
    kv.block_pool.free_block_queue.append_n([block(kv, 2)])


def lost(kv: KVCacheManager) -> None:
    kv.block_pool.free_block_queue.remove(block(kv, 7))


def null_block_free(kv: KVCacheManager) -> None:
    kv.block_pool.free_block_queue.append_n([block(kv, 0)])


def no_link_back(kv: KVCacheManager) -> None:
    block(kv, 7).prev_free_block = block(kv, 5)


def loop_in_the_queue(kv: KVCacheManager) -> None:
    block(kv, 8).next_free_block = block(kv, 6)


def walk_that_names_a_block(kv: KVCacheManager) -> None:
    queue_of(kv).walk = BlockStateError("the walk ends at block 7", [7])


def twice_in_the_queue(kv: KVCacheManager) -> None:
    # 6 7 8 5 becomes 6 7 8 6: as long as before, so that only counting finds it
    queue_of(kv).walk = [block(kv, block_id) for block_id in (6, 7, 8, 6)]


def wrong_count(kv: KVCacheManager) -> None:
    queue = queue_of(kv)
    queue.walk = queue.get_all_free_blocks()
    queue.num_free_blocks += 1


def key_dropped_in_the_block_only(kv: KVCacheManager) -> None:
    block(kv, 5).block_hash = None


def key_changed_in_the_block_only(kv: KVCacheManager) -> None:
    block(kv, 5).block_hash = SomeKey


def key_unknown_to_the_index(kv: KVCacheManager) -> None:
    block(kv, 6).block_hash = SomeKey


def null_block_cached(kv: KVCacheManager) -> None:
    block(kv, 0).block_hash = SomeKey
    kv.block_pool.cached_block_hash_to_block.insert(SomeKey, block(kv, 0))


def foreign_block_cached(kv: KVCacheManager) -> None:
    foreign = KVCacheBlock(99)
    foreign.block_hash = SomeKey
    kv.block_pool.cached_block_hash_to_block.insert(SomeKey, foreign)


def partial_block_cached(kv: KVCacheManager) -> None:
    block(kv, 3).block_hash = SomeKey
    kv.block_pool.cached_block_hash_to_block.insert(SomeKey, block(kv, 3))


def another_prefix_in_a_table(kv: KVCacheManager) -> None:
    key = block(kv, 2).block_hash
    assert key is not None
    kv.block_pool.cached_block_hash_to_block.pop(key, 2)
    block(kv, 2).block_hash = SomeKey
    kv.block_pool.cached_block_hash_to_block.insert(SomeKey, block(kv, 2))


def table_left_over(kv: KVCacheManager) -> None:
    kv.coordinator.single_type_managers[0].req_to_blocks["gone"] = []


def count_left_over(kv: KVCacheManager) -> None:
    kv.coordinator.single_type_managers[0].num_cached_block |= {"gone": 0, "and gone": 0}


@pytest.mark.parametrize(
    ("break_it", "invariant_id", "block_ids", "message"),
    [
        (reference_too_many, "I1", (2,), "block 2 has ref_cnt 2 but is held by A"),
        (reference_negative, "I1", (6,), "block 6 has ref_cnt -1 but is held by no table"),
        (twice_in_one_table, "I1", (3,), "block 3 stands 2 times in one table of A"),
        (held_and_free, "I2", (2,), "block 2 is held by A and is also in the free queue"),
        (lost, "I2", (7,), "no table holds block 7, but it is not in the free queue: it is lost"),
        (null_block_free, "I2", (0,), "the null block is in the free queue"),
        (no_link_back, "I2", (6, 7), "block 7 follows block 6, but does not link back to it"),
        (loop_in_the_queue, "I2", (), "the links of the free queue are broken after 5 blocks"),
        (walk_that_names_a_block, "I2", (7,), "the walk ends at block 7"),
        (twice_in_the_queue, "I2", (6,), "block 6 is 2 times in the free queue"),
        (wrong_count, "I3", (), "5 free + 4 held + 1 null is not 9 blocks"),
        (
            key_dropped_in_the_block_only,
            "I4",
            (5,),
            "the index finds block 5 under 91a408d2, but the block carries no key",
        ),
        (
            key_changed_in_the_block_only,
            "I4",
            (5,),
            "the index finds block 5 under 91a408d2, but the block carries another key",
        ),
        (key_unknown_to_the_index, "I4", (6,), "block 6 carries a key that is not in the index"),
        (null_block_cached, "I4", (0,), "the null block is in the index"),
        (foreign_block_cached, "I4", (), "the index has a block 99 that is not in the pool"),
        (partial_block_cached, "I5", (3,), "block 3 is in the index, but A has not filled it"),
        (another_prefix_in_a_table, "I5", (2,), "block 2 of A is in the index under another prefix's hash"),
        (table_left_over, "I14", (), "tables are left of requests that are over: gone"),
        (count_left_over, "I14", (), "tables are left of requests that are over: and gone, gone"),
    ],
)
def test_each_check_can_fail(
    break_it: Callable[[KVCacheManager], None], invariant_id: str, block_ids: tuple[int, ...], message: str
) -> None:
    """One thing broken by hand: the right number first, with the blocks to look at, and what is wrong in words."""
    kv = sound_cache()
    break_it(kv)
    first = next(find_violations(kv))
    assert first == Violation(invariant_id, message, block_ids)
    with pytest.raises(InvariantViolationError) as error:
        check_invariants(kv, ["free(C)"])
    assert error.value.violation == first
    assert error.value.history == ["free(C)"]


def test_a_leak_is_found_when_all_is_over() -> None:
    """A reference that no table accounts for: I1 at once, I14 when no request is left."""
    kv = sound_cache()
    kv.block_pool.touch([block(kv, 8)])
    for request in list(kv.requests.values()):
        kv.free(request)
    assert list(find_violations(kv)) == [
        Violation("I1", "block 8 has ref_cnt 1 but is held by no table", (8,)),
        Violation("I14", "no request is left, but blocks [8] are still held: they leaked", (8,)),
    ]


def test_all_that_is_broken_is_found() -> None:
    """The finder goes on after the first finding; each says its number and what it saw."""
    kv = sound_cache()
    block(kv, 2).ref_cnt = 3
    block(kv, 6).block_hash = SomeKey
    assert [str(violation) for violation in find_violations(kv)] == [
        "I1 broken: block 2 has ref_cnt 3 but is held by A",
        "I4 broken: block 6 carries a key that is not in the index",
    ]


def test_a_free_block_that_is_in_no_table_and_no_queue_is_wrong_three_times() -> None:
    kv = sound_cache()
    block(kv, 8).ref_cnt = 1
    assert [str(violation) for violation in find_violations(kv)] == [
        "I1 broken: block 8 has ref_cnt 1 but is held by no table",
        "I2 broken: block 8 is held by 1 references and is also in the free queue",
        "I3 broken: 4 free + 5 held + 1 null is not 9 blocks",
    ]


def test_the_error_tells_the_story() -> None:
    """What is broken, the invariant in words, and the calls before it; it is one of our own errors."""
    error = InvariantViolationError(Violation("I1", "block 2 has ref_cnt 3", (2,)), ["free(A)", "free(B)"])
    assert isinstance(error, KVCacheError)
    assert not isinstance(error, RuntimeError)
    assert str(error).splitlines() == [
        "I1 broken: block 2 has ref_cnt 3",
        f"  (I1 {LEDGER['I1']})",
        "  after free(A)",
        "  after free(B)",
    ]


def test_holders_are_named() -> None:
    """The holders of a block, in the order of admission; no request holds a free one."""
    kv = sound_cache()
    tables = tables_of(kv)
    assert [holders_of(block(kv, block_id), tables) for block_id in (1, 2, 4, 5)] == [["A", "B"], ["A"], ["B"], []]


def test_a_bare_pool_can_be_checked_too() -> None:
    """Labs keep their own tables: the pool's checks take them as they are."""
    kv = sound_cache()
    pool = kv.block_pool
    assert list(find_pool_violations(pool, tables_of(kv))) == []
    tables = {"A": kv.get_blocks("A").blocks}
    assert [violation.block_ids for violation in find_pool_violations(pool, tables)] == [(1,), (4,)]


def test_a_torn_queue_is_reported_once() -> None:
    """A walk that does not end says nothing about the blocks: one finding, not one for each block."""
    kv = sound_cache()
    loop_in_the_queue(kv)
    assert [violation.invariant_id for violation in find_violations(kv)] == ["I2"]


class ListQueue:
    """Another policy's queue: the same verbs, no links."""

    def __init__(self, blocks: list[KVCacheBlock]) -> None:
        self.blocks = blocks

    @property
    def num_free_blocks(self) -> int:
        return len(self.blocks)

    def get_all_free_blocks(self) -> list[KVCacheBlock]:
        return list(self.blocks)


def test_a_queue_without_links_is_checked_by_what_it_holds() -> None:
    """Links are one way to keep an order; the ledger asks which blocks are in it, however they are kept."""
    kv = sound_cache()
    queue = ListQueue(kv.block_pool.free_block_queue.get_all_free_blocks())
    kv.block_pool.free_block_queue = queue  # type: ignore[assignment]
    assert list(find_violations(kv)) == []
    queue.blocks.pop(0)
    assert [(violation.invariant_id, violation.block_ids) for violation in find_violations(kv)] == [
        ("I2", (6,)),
        ("I3", ()),
    ]

"""The pool: who is free, in which order, who can be found by content, and when that ends."""

from collections.abc import Callable
from typing import Any

import pytest

from mini_kv.core.block import BlockHash, KVCacheBlock
from mini_kv.core.block_hash import make_block_hash_with_group_id
from mini_kv.core.block_pool import BlockHashToBlockMap, BlockPool
from mini_kv.core.errors import BlockStateError, ConfigError, KVCacheError, OutOfBlocksError

NAMES = [BlockHash(bytes([letter]) * 32) for letter in b"abcdef"]
"""Stand-ins for the names of prefixes."""


def ids(blocks: list[KVCacheBlock] | None) -> list[int] | None:
    return None if blocks is None else [block.block_id for block in blocks]


def free_order(pool: BlockPool) -> list[int]:
    return [block.block_id for block in pool.free_block_queue.get_all_free_blocks()]


def state(pool: BlockPool) -> dict[str, Any]:
    return {
        "free": free_order(pool),
        "blocks": [(block.ref_cnt, block.block_hash) for block in pool.blocks],
        "index": [(key, ids(blocks)) for key, blocks in pool.cached_block_hash_to_block.items()],
    }


def test_a_new_pool() -> None:
    """Block 0 is set apart as the null block; all others are free, in order."""
    pool = BlockPool(5)
    assert free_order(pool) == [1, 2, 3, 4]
    assert [block.is_null for block in pool.blocks] == [True, False, False, False, False]
    assert pool.null_block is pool.blocks[0]
    assert (pool.num_free_blocks, pool.usage) == (4, 0.0)
    assert pool.enable_caching
    assert repr(pool.blocks[2]) == "KVCacheBlock(block_id=2, ref_cnt=0, block_hash=None)"


@pytest.mark.parametrize("num_blocks", [1, 0, -3])
def test_a_pool_needs_a_block_to_give(num_blocks: int) -> None:
    """One block would be the null block alone; two are the smallest pool."""
    with pytest.raises(ConfigError) as error:
        BlockPool(num_blocks)
    assert f"num_gpu_blocks is {num_blocks}" in str(error.value)
    assert free_order(BlockPool(2)) == [1]


def test_the_pool_takes_the_block_factory() -> None:
    """An observer's blocks are used as they are."""

    class Watched(KVCacheBlock):
        __slots__ = ()

    assert {type(block) for block in BlockPool(3, new_block=Watched).blocks} == {Watched}


def test_life_of_a_block() -> None:
    """Free, held, cached, cached-free, revived, cached-free, evicted: one block through all of its states."""
    pool = BlockPool(4)
    (block,) = pool.get_new_blocks(1)
    assert (block.block_id, block.ref_cnt, block.block_hash) == (1, 1, None)

    pool.cache_full_blocks([block], NAMES, 0, 1)
    key = make_block_hash_with_group_id(NAMES[0], 0)
    assert (block.ref_cnt, block.block_hash) == (1, key)
    assert repr(block) == "KVCacheBlock(block_id=1, ref_cnt=1, block_hash=61616161)"

    pool.free_blocks([block])
    assert (block.ref_cnt, block.block_hash) == (0, key)
    assert free_order(pool) == [2, 3, 1]
    assert ids(pool.get_cached_block(NAMES[0], [0])) == [1]

    pool.touch([block])
    pool.touch([block])
    assert block.ref_cnt == 2
    assert free_order(pool) == [2, 3]

    pool.free_blocks([block])
    assert free_order(pool) == [2, 3]
    pool.free_blocks([block])
    assert free_order(pool) == [2, 3, 1]

    assert ids(pool.get_new_blocks(3)) == [2, 3, 1]
    assert (block.ref_cnt, block.block_hash) == (1, None)
    assert pool.get_cached_block(NAMES[0], [0]) is None
    assert len(pool.cached_block_hash_to_block) == 0
    assert pool.usage == 1.0


def test_where_freed_blocks_go() -> None:
    """Without a key to the front, with one to the back, each list in the order given; shared ones stay away."""
    pool = BlockPool(9)
    taken = pool.get_new_blocks(6)
    pool.cache_full_blocks(taken, NAMES, 0, 4)
    pool.touch([taken[1]])
    assert free_order(pool) == [7, 8]

    pool.free_blocks(reversed(taken))  # 6 5 have no key; 4 3 1 have one; 2 is held once more

    assert free_order(pool) == [6, 5, 7, 8, 4, 3, 1]
    assert [block.ref_cnt for block in pool.blocks] == [0, 0, 1, 0, 0, 0, 0, 0, 0]


def test_a_later_free_goes_in_front_of_an_earlier_one() -> None:
    """Keyless blocks: last in, first out; keyed ones: first in, first out."""
    pool = BlockPool(7)
    a, b, c, d = pool.get_new_blocks(4)
    pool.cache_full_blocks([a, b], NAMES, 0, 2)
    for block in (a, c, b, d):
        pool.free_blocks([block])
    assert free_order(pool) == [4, 3, 5, 6, 1, 2]


def test_the_null_block_is_never_counted() -> None:
    """A table may show the placeholder anywhere; touching and freeing it mean nothing."""
    pool = BlockPool(3)
    (block,) = pool.get_new_blocks(1)
    pool.touch([pool.null_block, block])
    pool.free_blocks([pool.null_block, block, pool.null_block])
    assert [block.ref_cnt for block in pool.blocks] == [0, 1, 0]
    assert free_order(pool) == [2]


def test_too_many_are_refused_whole() -> None:
    """Nothing is taken and no key is lost, although the cached-free block was next."""
    pool = BlockPool(4)
    taken = pool.get_new_blocks(3)
    pool.cache_full_blocks(taken, NAMES, 0, 3)
    pool.free_blocks(taken[:2])
    before = state(pool)
    with pytest.raises(OutOfBlocksError) as error:
        pool.get_new_blocks(3)
    assert (error.value.requested, error.value.free) == (3, 2)
    assert state(pool) == before


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 0], [0, 1, 0]])
def test_a_wrong_free_changes_nothing(order: list[int]) -> None:
    """A block that is free, or given twice, spoils the whole call, also when good blocks come first."""
    pool = BlockPool(5)
    taken = pool.get_new_blocks(3)
    pool.free_blocks([taken[2]])
    before = state(pool)
    with pytest.raises(BlockStateError) as error:
        pool.free_blocks([taken[index] for index in order])
    assert error.value.block_ids == ([3] if 2 in order else [1, 2, 1])
    assert state(pool) == before


def test_a_key_is_given_once() -> None:
    """A block that has a key spoils the whole call: the block before it in the list gets none either."""
    pool = BlockPool(5)
    taken = pool.get_new_blocks(3)
    pool.cache_full_blocks(taken[1:2], NAMES[1:], 0, 1)
    before = state(pool)
    with pytest.raises(BlockStateError) as error:
        pool.cache_full_blocks(taken, NAMES, 0, 3)
    assert error.value.block_ids == [2]
    assert state(pool) == before


def test_each_error_names_the_block() -> None:
    """A learner meets these words first: they say which block, or what was wrong with the call."""
    pool = BlockPool(5)
    one, two = pool.get_new_blocks(2)
    pool.cache_full_blocks([one], NAMES, 0, 1)
    calls: list[tuple[Callable[[], object], str]] = [
        (lambda: pool.get_new_blocks(3), "3 blocks requested, 2 free"),
        (lambda: pool.free_blocks([two, two]), "twice"),
        (lambda: pool.free_blocks([pool.blocks[4]]), "block 4 is freed, but no table holds it"),
        (lambda: pool.cache_full_blocks([one], NAMES, 0, 1), "block 1 has a block hash already"),
        (lambda: pool.evict_blocks([7]), "there is no block 7; ids go from 0 to 4"),
    ]
    for call, words in calls:
        with pytest.raises(KVCacheError) as error:
            call()
        assert words in str(error.value)


def test_publishing_goes_on_where_it_stopped() -> None:
    """Blocks before `num_cached_blocks` and from `num_full_blocks` on are left alone."""
    pool = BlockPool(6)
    taken = pool.get_new_blocks(4)
    pool.cache_full_blocks(taken, NAMES, 0, 1)
    pool.cache_full_blocks(taken, NAMES, 1, 3)
    pool.cache_full_blocks(taken, NAMES, 3, 3)
    found = [pool.get_cached_block(name, [0]) for name in NAMES[:4]]
    assert [ids(blocks) for blocks in found] == [[1], [2], [3], None]


def test_groups_do_not_find_each_others_blocks() -> None:
    """A lookup over several groups needs the block in all of them."""
    pool = BlockPool(6)
    one, two = pool.get_new_blocks(2)
    pool.cache_full_blocks([one], NAMES, 0, 1, kv_cache_group_id=0)
    assert ids(pool.get_cached_block(NAMES[0], [0])) == [1]
    assert pool.get_cached_block(NAMES[0], [1]) is None
    assert pool.get_cached_block(NAMES[0], [0, 1]) is None
    pool.cache_full_blocks([two], NAMES, 0, 1, kv_cache_group_id=1)
    assert ids(pool.get_cached_block(NAMES[0], [0, 1])) == [1, 2]
    assert ids(pool.get_cached_block(NAMES[0], [1, 0])) == [2, 1]


def test_duplicates_are_kept_and_leave_one_by_one() -> None:
    """Three blocks of one content: the oldest answers, and each is evicted alone, in any order."""
    pool = BlockPool(5)
    taken = pool.get_new_blocks(3)
    for block in taken:
        pool.cache_full_blocks([block], NAMES, 0, 1)
    index = pool.cached_block_hash_to_block
    key = make_block_hash_with_group_id(NAMES[0], 0)
    assert [(key, ids(blocks)) for key, blocks in index.items()] == [(key, [1, 2, 3])]
    assert len(index) == 1

    answers = []
    for block_id in (2, 1, 3):
        answers.append(ids(pool.get_cached_block(NAMES[0], [0])))
        pool.evict_blocks([block_id])
    assert answers == [[1], [1], [3]]
    assert pool.get_cached_block(NAMES[0], [0]) is None
    assert len(index) == 0


def test_eviction_takes_the_key_and_nothing_else() -> None:
    """Held or free, the block stays where it is; evicting twice, or what has no key, does nothing."""
    pool = BlockPool(5)
    taken = pool.get_new_blocks(3)
    pool.cache_full_blocks(taken, NAMES, 0, 2)
    pool.free_blocks(taken[1:2])
    assert free_order(pool) == [4, 2]

    pool.evict_blocks(iter([1, 2, 3, 0, 1]))

    assert free_order(pool) == [4, 2]
    assert [(block.ref_cnt, block.block_hash) for block in pool.blocks] == [
        (0, None),
        (1, None),
        (0, None),
        (1, None),
        (0, None),
    ]
    assert pool.cached_block_hash_to_block.items() == []


@pytest.mark.parametrize("unknown", [[5], [-1], [99, 5]])
def test_evicting_what_is_no_block(unknown: list[int]) -> None:
    """A wrong id spoils the whole call; -1 is not the last block."""
    pool = BlockPool(5)
    pool.cache_full_blocks(pool.get_new_blocks(1), NAMES, 0, 1)
    before = state(pool)
    with pytest.raises(BlockStateError) as error:
        pool.evict_blocks([1, *unknown])
    assert error.value.block_ids == unknown
    assert state(pool) == before


def test_reset_forgets_all_keys_and_keeps_the_order() -> None:
    """After a change of weights nothing may be found; the queue has no reason to change."""
    pool = BlockPool(5)
    taken = pool.get_new_blocks(2)
    pool.cache_full_blocks(taken, NAMES, 0, 2)
    pool.free_blocks(taken)
    assert pool.reset_prefix_cache()
    assert free_order(pool) == [3, 4, 1, 2]
    assert [block.block_hash for block in pool.blocks] == [None] * 5
    assert len(pool.cached_block_hash_to_block) == 0
    assert [pool.get_cached_block(name, [0]) for name in NAMES[:2]] == [None, None]


def test_reset_is_refused_while_a_block_is_held() -> None:
    """One held block without a key is enough."""
    pool = BlockPool(5)
    taken = pool.get_new_blocks(2)
    pool.cache_full_blocks(taken, NAMES, 0, 1)
    pool.free_blocks(taken[:1])
    before = state(pool)
    assert not pool.reset_prefix_cache()
    assert state(pool) == before


def test_the_index_says_what_it_could_not_remove() -> None:
    """Popping needs key and block: a wrong block under a right key stays."""
    index = BlockHashToBlockMap()
    key = make_block_hash_with_group_id(NAMES[0], 0)
    one, two = KVCacheBlock(1), KVCacheBlock(2)
    assert index.pop(key, 1) is None
    index.insert(key, one)
    assert index.pop(key, 2) is None
    index.insert(key, two)
    assert index.pop(key, 3) is None
    assert [(key, [one, two])] == index.items()
    assert index.pop(key, 1) is one
    assert index.get_one_block(key) is two
    index.clear()
    assert index.get_one_block(key) is None

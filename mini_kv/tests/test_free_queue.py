"""The free queue: order, removal from the middle, refusal, and that none of it walks the queue."""

import random
from collections.abc import Callable
from typing import Any

import pytest

from mini_kv.core.block import KVCacheBlock
from mini_kv.core.errors import BlockStateError, KVCacheError, OutOfBlocksError
from mini_kv.core.free_queue import FreeKVCacheBlockQueue


def make(num_blocks: int) -> tuple[FreeKVCacheBlockQueue, list[KVCacheBlock]]:
    blocks = [KVCacheBlock(block_id) for block_id in range(num_blocks)]
    return FreeKVCacheBlockQueue(blocks), blocks


def order(queue: FreeKVCacheBlockQueue) -> list[int]:
    """Return the ids from front to back, after checking that the walk back is the reverse."""
    forward = queue.get_all_free_blocks()
    backward = []
    block = queue._tail.prev_free_block
    while block is not None and block is not queue._head:
        backward.append(block)
        block = block.prev_free_block
    assert backward == forward[::-1]
    assert queue.num_free_blocks == len(forward)
    return [block.block_id for block in forward]


def test_starts_in_the_order_given() -> None:
    """A new pool hands out its blocks by number."""
    queue, _ = make(4)
    assert order(queue) == [0, 1, 2, 3]


def test_an_empty_queue_is_a_queue() -> None:
    """The sentinels alone: nothing to walk, and the first block in is both front and back."""
    queue, _ = make(0)
    assert order(queue) == []
    queue.append(KVCacheBlock(7))
    assert order(queue) == [7]


def test_taken_from_the_front_put_to_the_back() -> None:
    """A block that is used and freed waits until all others have had their turn."""
    queue, _ = make(3)
    first = queue.popleft()
    assert first.block_id == 0
    queue.append(first)
    assert order(queue) == [1, 2, 0]


def test_a_hit_leaves_from_the_middle() -> None:
    """Removal closes the gap wherever the block stands, at both ends too."""
    queue, blocks = make(5)
    queue.remove(blocks[2])
    assert order(queue) == [0, 1, 3, 4]
    queue.remove(blocks[0])
    queue.remove(blocks[4])
    assert order(queue) == [1, 3]
    queue.remove(blocks[1])
    queue.remove(blocks[3])
    assert order(queue) == []


def test_what_leaves_keeps_no_links() -> None:
    """A block outside the queue has no neighbours: that is how the queue knows that it is outside."""
    queue, blocks = make(4)
    queue.popleft_n(2)
    queue.remove(blocks[3])
    outside = [blocks[0], blocks[1], blocks[3]]
    assert [(block.prev_free_block, block.next_free_block) for block in outside] == [(None, None)] * 3
    assert order(queue) == [2]


def test_several_at_once_keep_their_order() -> None:
    """Lists go to the front and to the back as they are, not reversed and not one by one."""
    queue, _ = make(6)
    taken = queue.popleft_n(4)
    assert [block.block_id for block in taken] == [0, 1, 2, 3]
    queue.prepend_n([taken[3], taken[1]])
    queue.append_n([taken[2], taken[0]])
    assert order(queue) == [3, 1, 4, 5, 2, 0]


def test_nothing_is_a_number_of_blocks_too() -> None:
    """Taking none and adding none change nothing, in an empty queue as well."""
    for num_blocks in (0, 2):
        queue, _ = make(num_blocks)
        assert queue.popleft_n(0) == []
        queue.append_n([])
        queue.prepend_n([])
        assert order(queue) == list(range(num_blocks))


@pytest.mark.parametrize("requested", [4, 100, -1])
def test_too_many_are_refused_whole(requested: int) -> None:
    """All or nothing: the error carries both numbers and the queue is as before."""
    queue, _ = make(3)
    with pytest.raises(OutOfBlocksError) as error:
        queue.popleft_n(requested)
    assert (error.value.requested, error.value.free) == (requested, 3)
    assert order(queue) == [0, 1, 2]


def test_popleft_of_an_empty_queue() -> None:
    """One block is too many if there is none."""
    queue, _ = make(0)
    with pytest.raises(OutOfBlocksError) as error:
        queue.popleft()
    assert (error.value.requested, error.value.free) == (1, 0)


@pytest.mark.parametrize("add", ["append", "append_n", "prepend_n"])
def test_a_block_enters_once(add: str) -> None:
    """A second entry would tie the list into a loop; it is refused, and those before it in the call come out again."""
    queue, blocks = make(3)
    outsider = KVCacheBlock(9)
    with pytest.raises(BlockStateError) as error:
        getattr(queue, add)(blocks[1] if add == "append" else [outsider, blocks[1]])
    assert error.value.block_ids == [1]
    assert order(queue) == [0, 1, 2]
    assert outsider.next_free_block is None


@pytest.mark.parametrize("add", ["append_n", "prepend_n"])
def test_the_same_block_twice_in_one_list(add: str) -> None:
    """None of the list enters: forwards and backwards the queue is what it was, and each block can enter later."""
    queue, _ = make(2)
    x, y, z = KVCacheBlock(7), KVCacheBlock(8), KVCacheBlock(9)
    for twice in ([x, x], [x, y, x], [x, y, z, y]):
        with pytest.raises(BlockStateError) as error:
            getattr(queue, add)(twice)
        assert error.value.block_ids == [twice[-1].block_id]
        assert order(queue) == [0, 1]
        assert [(block.prev_free_block, block.next_free_block) for block in (x, y, z)] == [(None, None)] * 3
    getattr(queue, add)([z, y, x])
    assert order(queue) == ([0, 1, 9, 8, 7] if add == "append_n" else [9, 8, 7, 0, 1])


def test_only_what_is_in_the_queue_leaves_it() -> None:
    """Removing a block twice, or one that never was there, is misuse."""
    queue, blocks = make(3)
    queue.remove(blocks[1])
    for stranger in (blocks[1], KVCacheBlock(9)):
        with pytest.raises(BlockStateError) as error:
            queue.remove(stranger)
        assert error.value.block_ids == [stranger.block_id]
    assert order(queue) == [0, 2]


def test_a_torn_list_is_noticed() -> None:
    """Broken links end in an error, not in a walk without end or a short list."""
    queue, blocks = make(4)
    blocks[2].next_free_block = blocks[1]  # a loop
    with pytest.raises(BlockStateError):
        queue.get_all_free_blocks()

    queue, blocks = make(4)
    blocks[1].next_free_block = None  # an early end
    with pytest.raises(BlockStateError):
        queue.get_all_free_blocks()
    with pytest.raises(BlockStateError) as error:
        queue.popleft_n(3)
    assert error.value.block_ids == [1]

    queue, _ = make(1)
    queue._head.next_free_block = None
    with pytest.raises(BlockStateError):
        queue.popleft()

    queue, blocks = make(3)
    blocks[1].prev_free_block = None  # half in the queue, half out of it
    with pytest.raises(BlockStateError) as error:
        queue.remove(blocks[1])
    assert error.value.block_ids == [1]


@pytest.mark.parametrize("wrong_by", [-2, -1, 1, 2])
def test_a_wrong_count_is_noticed(wrong_by: int) -> None:
    """The links are whole and the counter is not: the walk trusts neither alone."""
    queue, _ = make(4)
    queue.num_free_blocks += wrong_by
    with pytest.raises(BlockStateError):
        queue.get_all_free_blocks()


def test_each_error_names_the_block() -> None:
    """A learner meets these words first: they say which block, or what was wrong with the call."""
    queue, blocks = make(4)
    outsider = KVCacheBlock(9)
    torn, torn_blocks = make(4)
    torn_blocks[1].next_free_block = None
    endless, _ = make(1)
    endless._head.next_free_block = None
    calls: list[tuple[Callable[[], object], str]] = [
        (lambda: queue.popleft_n(5), "5 blocks requested, 4 free"),
        (lambda: queue.remove(outsider), "block 9 is not in the free queue"),
        (lambda: queue.append(blocks[1]), "block 1 is in the free queue already"),
        (lambda: queue.append_n([outsider, outsider]), "block 9 is in the free queue already, or given twice"),
        (torn.get_all_free_blocks, "broken after 2 blocks"),
        (lambda: torn.popleft_n(3), "links of the free queue are broken"),
        (endless.popleft, "broken at its end"),
    ]
    for call, words in calls:
        with pytest.raises(KVCacheError) as error:
            call()
        assert words in str(error.value)


class CountingBlock(KVCacheBlock):
    """A block that counts how often any block's links are read or written."""

    __slots__ = ()
    touches = 0

    def __getattribute__(self, name: str) -> Any:
        if name.endswith("_free_block"):
            CountingBlock.touches += 1
        return super().__getattribute__(name)

    def __setattr__(self, name: str, value: object) -> None:
        if name.endswith("_free_block"):
            CountingBlock.touches += 1
        super().__setattr__(name, value)


def cost(num_blocks: int, action: Callable[[FreeKVCacheBlockQueue, list[KVCacheBlock]], object]) -> int:
    blocks: list[KVCacheBlock] = [CountingBlock(block_id) for block_id in range(num_blocks)]
    queue = FreeKVCacheBlockQueue(blocks)
    CountingBlock.touches = 0
    action(queue, blocks)
    return CountingBlock.touches


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "action", "links"),
    [
        ("popleft", lambda queue, blocks: queue.popleft(), 5),
        ("remove", lambda queue, blocks: queue.remove(blocks[len(blocks) // 2]), 6),
        ("append", lambda queue, blocks: queue.append(CountingBlock(-2)), 7),
        ("prepend_n", lambda queue, blocks: queue.prepend_n([CountingBlock(-2)]), 7),
        ("popleft_n(4)", lambda queue, blocks: queue.popleft_n(4), 4 * 4),
    ],
)
def test_cost_does_not_grow_with_the_queue(
    what: str, action: Callable[[FreeKVCacheBlockQueue, list[KVCacheBlock]], object], links: int
) -> None:
    """O(1) by counting links read and written, since a stopwatch would measure the machine."""
    counts = [cost(num_blocks, action) for num_blocks in (10, 100, 10_000)]
    assert counts[0] == counts[1] == counts[2] <= links, what


def test_random_trace_against_a_list() -> None:
    """A Python list, slow and plain, and 5,000 operations: the same order after each."""
    rng = random.Random(1)
    queue, blocks = make(12)
    model = list(range(12))
    for _ in range(5000):
        outside = [block_id for block_id in range(12) if block_id not in model]
        some = rng.sample(outside, rng.randint(0, len(outside)))
        action = rng.randrange(4)
        if action == 0:
            number = rng.randint(0, len(model))
            assert [block.block_id for block in queue.popleft_n(number)] == model[:number]
            del model[:number]
        elif action == 1 and model:
            chosen = rng.choice(model)
            queue.remove(blocks[chosen])
            model.remove(chosen)
        elif action == 2:
            queue.append_n([blocks[block_id] for block_id in some])
            model += some
        elif action == 3:
            queue.prepend_n([blocks[block_id] for block_id in some])
            model[:0] = some
        assert order(queue) == model

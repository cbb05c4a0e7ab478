"""lab-02: the queue you can pull from the middle. Read the numbered tests in order: they are its biography.

Queues are written as the numbers of their blocks, front first: in [3, 0, 5, 1], block 3 is reused next. A test calls
your queue through a `QueueUnderTest`. Its blocks record each access, so a test sees whether a call walks the queue.
"""

import random

from mini_kv.core.block import BlockHash, KVCacheBlock
from mini_kv.core.block_pool import BlockPool
from mini_kv.core.errors import BlockStateError, OutOfBlocksError
from mini_kv.course import points
from mini_kv.course.labkit.fixture import LabUnderTest
from mini_kv.course.labkit.lives import check_life, seeds

from .helpers import QueueUnderTest, Step, Watch, numbers, order, outcome, play, random_life

INIT = "FreeKVCacheBlockQueue.__init__"
GET_ALL = "FreeKVCacheBlockQueue.get_all_free_blocks"
POPLEFT = "FreeKVCacheBlockQueue.popleft"
POPLEFT_N = "FreeKVCacheBlockQueue.popleft_n"
REMOVE = "FreeKVCacheBlockQueue.remove"
APPEND = "FreeKVCacheBlockQueue.append"
APPEND_N = "FreeKVCacheBlockQueue.append_n"
PREPEND_N = "FreeKVCacheBlockQueue.prepend_n"
FIRST = "test_1_a_new_queue_keeps_the_order_that_it_is_given"  # without it, no other test can see a queue


# The biography ------------------------------------------------------------------------------------------------------


@points(2, INIT, rule=1)
def test_1_a_new_queue_keeps_the_order_that_it_is_given(lab: LabUnderTest) -> None:
    """The order that is given counts, not the numbers of the blocks."""
    queue = QueueUnderTest(lab, [3, 0, 5, 1])
    lab.expect("num_free_blocks of a new queue of 4", 4, queue.learners.num_free_blocks, rule=3)
    found = order(queue.learners)
    if found != [3, 0, 5, 1]:
        left = queue.learners.num_free_blocks
        lab.fail("a new queue of blocks 3, 0, 5, 1", [3, 0, 5, 1], found, seen=left)


@points(2, GET_ALL, rule=2, after=FIRST)
def test_2_looking_changes_nothing(lab: LabUnderTest) -> None:
    """The caller empties the list that it got, then asks again."""
    queue = QueueUnderTest(lab, [3, 0, 5, 1])
    queue.learners.get_all_free_blocks().clear()
    queue.expect([3, 0, 5, 1], "queue after get_all_free_blocks()")
    kept = queue.learners.get_all_free_blocks()
    queue.learners.get_all_free_blocks()
    lab.expect("a list that the caller has kept", [3, 0, 5, 1], numbers(kept))
    if kept is queue.learners.get_all_free_blocks():
        lab.fail("two looks", "two lists", "one list, given twice")


@points(2, POPLEFT, rule=4, after=FIRST)
def test_3_new_blocks_come_from_the_front(lab: LabUnderTest) -> None:
    """The blocks are taken in the order of the queue, until none is left."""
    queue = QueueUnderTest(lab, [3, 0, 5, 1])
    left = [3, 0, 5, 1]
    while left:
        what = f"popleft() from {left}"
        taken = queue.do(what, "popleft")
        lab.expect(f"block taken by {what}", left.pop(0), taken)
        queue.expect(left, f"queue after {what}")


@points(2, APPEND, rule=7, after=FIRST, why="an appended block is reused after all blocks that are in the queue now")
def test_4_a_freed_block_goes_to_the_back(lab: LabUnderTest) -> None:
    """Block 7 is appended to 4 and 2, then block 1."""
    queue = QueueUnderTest(lab, [4, 2], outside=[7, 1])
    queue.do("append(7) to [4, 2]", "append", 7)
    queue.expect([4, 2, 7], "[4, 2] after append(7)")
    queue.do("append(1) to [4, 2, 7]", "append", 1)
    queue.expect([4, 2, 7, 1], "[4, 2, 7] after append(1)")


@points(4, REMOVE, rule=6, after=FIRST, why="its two neighbours are linked to each other")
def test_5_a_hit_leaves_from_wherever_it_stands(lab: LabUnderTest) -> None:
    """A block is removed from the middle, from the front, from the back. Then the two others are removed."""
    queue = QueueUnderTest(lab, [3, 0, 5, 1, 4])
    left = [3, 0, 5, 1, 4]
    for hit in (5, 3, 4, 1, 0):
        before = list(left)
        left.remove(hit)
        queue.do(f"remove({hit}) from {before}", "remove", hit)
        queue.expect(left, f"{before} after remove({hit})")


@points(2, POPLEFT_N, rule=5, after=FIRST)
def test_6_several_leave_at_once(lab: LabUnderTest) -> None:
    """Three of five are taken, then 0, then the last two."""
    queue = QueueUnderTest(lab, [3, 0, 5, 1, 4])
    left = [3, 0, 5, 1, 4]
    for n in (3, 0, 2):
        what = f"popleft_n({n}) from {left}"
        want, left = left[:n], left[n:]
        lab.expect(f"blocks taken by {what}", want, queue.do(what, "popleft_n", n))
        queue.expect(left, f"queue after {what}")


@points(2, APPEND_N, rule=7, after=FIRST)
def test_7_several_enter_at_the_back(lab: LabUnderTest) -> None:
    """The queue keeps the order of the list, which may be empty."""
    for before, ids in (([6, 2], [7, 1, 4]), ([6, 2], []), ([], [5, 0])):
        queue = QueueUnderTest(lab, before, outside=ids)
        queue.do(f"append_n({ids}) to {before}", "append_n", ids)
        queue.expect([*before, *ids], f"{before} after append_n({ids})")


@points(3, PREPEND_N, rule=8, after=FIRST, why="blocks without a hash are reused first")
def test_8_worthless_blocks_go_in_front(lab: LabUnderTest) -> None:
    """Two uncached blocks are prepended, then one more. Each list keeps its order, and the later list is in front."""
    queue = QueueUnderTest(lab, [6, 2], outside=[9, 4, 7])
    now = [6, 2]
    for ids in ([9, 4], [7], []):
        queue.do(f"prepend_n({ids}) to {now}", "prepend_n", ids)
        queue.expect([*ids, *now], f"{now} after prepend_n({ids})")
        now = [*ids, *now]
    queue = QueueUnderTest(lab, [], outside=[5, 0])
    queue.do("prepend_n([5, 0]) to []", "prepend_n", [5, 0])
    queue.expect([5, 0], "[] after prepend_n([5, 0])")


@points(2, REMOVE, rule=6, after=FIRST, why="the pool needs only the queue's methods")
def test_9_the_pool_runs_on_your_queue(lab: LabUnderTest) -> None:
    """The engine's pool with your queue: take three blocks, free them, pull one out of the middle."""
    pool = BlockPool(9, new_block=Watch().block)
    pool.free_block_queue.popleft_n(8)  # out of the engine's queue, into yours
    pool.free_block_queue = lab.FreeKVCacheBlockQueue(pool.blocks[1:])
    tables: dict[str, list[KVCacheBlock]] = {}
    lab.watch_pool(pool, tables)

    tables["A"] = pool.get_new_blocks(3)
    pool.cache_full_blocks(tables["A"], [BlockHash(b"first"), BlockHash(b"second")], 0, 2)
    lab.check_pool(pool, tables)
    lab.expect("A's block table", [1, 2, 3], numbers(tables["A"]))

    pool.free_blocks(reversed(tables.pop("A")))
    lab.check_pool(pool, tables)
    lab.expect(
        "free queue without A",
        [3, 4, 5, 6, 7, 8, 2, 1],
        order(pool.free_block_queue),
        why="the pool prepends block 3, which is not cached, and appends 2 and 1, which are: tail first",
        rule=8,
    )
    tables["B"] = [pool.blocks[2]]
    pool.touch(tables["B"])
    lab.check_pool(pool, tables)
    lab.expect("free queue after a hit on block 2", [3, 4, 5, 6, 7, 8, 1], order(pool.free_block_queue))

    tables["C"] = pool.get_new_blocks(7)
    lab.check_pool(pool, tables)
    lab.expect("C's block table, all that is left", [3, 4, 5, 6, 7, 8, 1], numbers(tables["C"]))


# The adversary ------------------------------------------------------------------------------------------------------


@points(1, INIT, rule=1, stage="adversary", after=FIRST, why="a pool with all blocks in use has an empty queue")
def test_an_empty_queue_is_a_queue(lab: LabUnderTest) -> None:
    """A queue of no blocks is empty. One block is then its front and its back."""
    queue = QueueUnderTest(lab, [], outside=[7])
    queue.expect([], "a new queue of no blocks")
    queue.do("append(7) to an empty queue", "append", 7)
    queue.expect([7], "an empty queue after append(7)")


@points(3, REMOVE, rule=12, stage="adversary", after=FIRST, why="remove() needs the block and its two neighbours")
def test_pulling_one_of_ten_thousand_looks_at_three(lab: LabUnderTest) -> None:
    """The block itself and its two neighbours. Four are allowed, five thousand are not."""
    queue = QueueUnderTest(lab, range(10_000))
    for place in (5000, 1, 9998):
        queue.watch.seen.clear()
        queue.do(f"remove({place}) from 10,000", "remove", place)
        queue.expect_looks(4, f"remove({place}), in a queue of 10,000,")


@points(1, POPLEFT, rule=12, stage="adversary", after=FIRST, why="it needs the front block and the next")
def test_taking_one_does_not_walk(lab: LabUnderTest) -> None:
    """popleft() looks at four blocks at most, and num_free_blocks at none."""
    queue = QueueUnderTest(lab, range(1000))
    queue.watch.seen.clear()
    queue.call("popleft")
    queue.expect_looks(4, "popleft(), in a queue of 1000,")
    lab.expect("num_free_blocks afterwards", 999, queue.learners.num_free_blocks)
    queue.expect_looks(4, "num_free_blocks, after popleft(),")


@points(1, POPLEFT_N, rule=12, stage="adversary", after=FIRST, why="it needs five blocks and the next")
def test_taking_several_does_not_walk(lab: LabUnderTest) -> None:
    """popleft_n(5) looks at nine blocks at most, however long the queue is."""
    queue = QueueUnderTest(lab, range(1000))
    queue.watch.seen.clear()
    queue.call("popleft_n", 5)
    queue.expect_looks(9, "popleft_n(5), in a queue of 1000,")


@points(1, APPEND_N, rule=12, stage="adversary", after=FIRST, why="each end is found from its sentinel")
def test_adding_does_not_walk(lab: LabUnderTest) -> None:
    """Adding five blocks at either end looks at nine blocks at most."""
    whys = {"append_n": "the back is found from the tail", "prepend_n": "the front is found from the head"}
    for enter, why in whys.items():
        queue = QueueUnderTest(lab, range(1000), outside=range(1000, 1005))
        queue.watch.seen.clear()
        queue.call(enter, range(1000, 1005))
        queue.expect_looks(9, f"{enter}() of 5 blocks, in a queue of 1000,", why)


@points(2, POPLEFT, rule=4, stage="adversary", after=FIRST, why="the tail sentinel is not a block")
def test_an_empty_queue_has_nothing_to_give(lab: LabUnderTest) -> None:
    """popleft() raises `OutOfBlocksError` after the last block, and in a new queue of no blocks."""
    for block_ids in ([8], []):
        queue = QueueUnderTest(lab, block_ids)
        for block_id in block_ids:
            taken = queue.do(f"popleft() from {block_ids}", "popleft")
            lab.expect(f"block taken by popleft() from {block_ids}", block_id, taken)
        queue.refuses("popleft() of an empty queue", OutOfBlocksError, "popleft")


@points(3, POPLEFT_N, rule=5, stage="adversary", after=FIRST, why="half an allocation serves no request")
def test_too_many_are_refused_whole(lab: LabUnderTest) -> None:
    """One block too many, many too many, and a negative number are refused. Then two blocks are taken, and the last."""
    queue = QueueUnderTest(lab, [3, 0, 5])
    for n in (4, 100):
        queue.refuses(f"popleft_n({n}) of 3 blocks", OutOfBlocksError, "popleft_n", n)
    why = "subtracting -1 would count a block that does not exist"
    queue.refuses("popleft_n(-1) of 3 blocks", OutOfBlocksError, "popleft_n", -1, why=why)
    taken = queue.do("popleft_n(2) from [3, 0, 5]", "popleft_n", 2)
    lab.expect("blocks taken by popleft_n(2) from [3, 0, 5]", [3, 0], taken)
    taken = queue.do("popleft_n(1) from [5]", "popleft_n", 1)
    lab.expect("blocks taken by popleft_n(1) from [5]", [5], taken)
    queue.refuses("popleft_n(1) of no block", OutOfBlocksError, "popleft_n", 1)


@points(3, REMOVE, rule=6, stage="adversary", after=FIRST, why="it is the caller's bug")
def test_only_what_is_in_the_queue_leaves_it(lab: LabUnderTest) -> None:
    """Removing a block a second time is an error, and so is removing one that was never added."""
    queue = QueueUnderTest(lab, [3, 0, 5, 1, 4], outside=[9])
    for gone in (5, 3, 4):
        queue.do(f"remove({gone})", "remove", gone)
        queue.refuses(f"second remove({gone})", BlockStateError, "remove", gone)
    queue.refuses("remove(9), which was never in,", BlockStateError, "remove", 9)


@points(2, APPEND, rule=9, stage="adversary", after=FIRST, why="a block that is in twice is allocated twice")
def test_a_block_enters_once(lab: LabUnderTest) -> None:
    """Appending the front, the middle or the back of the queue is an error."""
    queue = QueueUnderTest(lab, [3, 0, 5])
    for block_id in (3, 0, 5):
        what = f"append({block_id}) to [3, 0, 5]"
        queue.refuses(what, BlockStateError, "append", block_id)


@points(2, APPEND_N, rule=9, stage="adversary", after=FIRST, why="check the whole list, then link it")
def test_a_list_with_one_wrong_block_is_refused_whole(lab: LabUnderTest) -> None:
    """A list has a new block and one that is in the queue: neither is added. The new one can be added later."""
    queue = QueueUnderTest(lab, [3, 0, 5], outside=[8])
    queue.refuses("append_n([8, 0]) to [3, 0, 5]", BlockStateError, "append_n", [8, 0])
    queue.do("append_n([8]) after that", "append_n", [8])
    queue.expect([3, 0, 5, 8], "[3, 0, 5] after the refused append_n([8, 0]) and append_n([8])")


@points(2, APPEND_N, rule=9, stage="adversary", after=FIRST, why="in the queue once, counted twice: vllm #42571")
def test_the_same_block_twice_in_one_list(lab: LabUnderTest) -> None:
    """The bug of vllm #42571. The block is in no queue yet, so a look at its links is not enough."""
    queue = QueueUnderTest(lab, [3, 0, 5], outside=[8, 9])
    queue.refuses("append_n([8, 9, 8]) to [3, 0, 5]", BlockStateError, "append_n", [8, 9, 8])
    queue.do("append_n([8, 9]) after that", "append_n", [8, 9])
    queue.expect([3, 0, 5, 8, 9], "[3, 0, 5] after the refused append_n([8, 9, 8]) and append_n([8, 9])")


@points(2, PREPEND_N, rule=9, stage="adversary", after=FIRST)
def test_the_front_is_guarded_too(lab: LabUnderTest) -> None:
    """prepend_n refuses a block that is in the queue, and one that is in the list twice."""
    cases = ([8, 5], [3], [8, 8])
    seen = [outcome(QueueUnderTest(lab, [3, 0, 5], outside=[8]).call, "prepend_n", ids) for ids in cases]
    queue = QueueUnderTest(lab, [3, 0, 5], outside=[8])
    for ids in cases:
        queue.refuses(f"prepend_n({ids}) to [3, 0, 5]", BlockStateError, "prepend_n", ids, seen=seen)
    queue.do("prepend_n([8]) after that", "prepend_n", [8])
    queue.expect([8, 3, 0, 5], "[3, 0, 5] after three refusals and prepend_n([8])")


@points(2, POPLEFT_N, rule=11, stage="adversary", after=FIRST, why="the new front is linked to the head")
def test_after_taking_the_new_front_can_be_removed(lab: LabUnderTest) -> None:
    """The new front is removed at once, and the blocks that were taken are appended again."""
    queue = QueueUnderTest(lab, [3, 0, 5, 1, 4])
    queue.do("popleft_n(2) from [3, 0, 5, 1, 4]", "popleft_n", 2)
    queue.do("remove(5) from [5, 1, 4], left by popleft_n(2)", "remove", 5)
    queue.expect([1, 4], "[5, 1, 4], left by popleft_n(2), after remove(5)")
    queue.do("append_n([0, 3]) of the two that popleft_n(2) took", "append_n", [0, 3])
    queue.expect([1, 4, 0, 3], "[1, 4] after append_n([0, 3]) of the two that were taken")


@points(1, PREPEND_N, rule=11, stage="adversary", after=FIRST, why="the old front now has a block before it")
def test_after_prepending_any_block_can_be_removed(lab: LabUnderTest) -> None:
    """The old front is removed at once, then the new front, then the other new block."""
    queue = QueueUnderTest(lab, [3, 0], outside=[8, 9])
    queue.do("prepend_n([9, 8]) to [3, 0]", "prepend_n", [9, 8])
    now = [9, 8, 3, 0]
    for gone in (3, 9, 8):
        left = [block_id for block_id in now if block_id != gone]
        queue.do(f"remove({gone}) from {now}", "remove", gone)
        queue.expect(left, f"{now} after remove({gone})")
        now = left


# The property -------------------------------------------------------------------------------------------------------


@points(3, REMOVE, rule=6, stage="property", after=FIRST, why="a plain list does this: NaiveQueue in helpers.py")
def test_random_traces_agree_with_a_list(lab: LabUnderTest) -> None:
    """Forty random sequences of calls, wrong ones included, each compared step by step with a Python list."""
    start = [4, 2, 0]

    def live(life: list[Step]) -> None:
        play(QueueUnderTest(lab, start, outside=[1, 3, 5, 6, 7]), start, life)

    for seed in seeds(40):
        check_life(
            lab, live, random_life(random.Random(seed)), f"in the life of seed {seed}, which starts with {start}"
        )

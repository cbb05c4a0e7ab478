"""lab-03: which tables contain a block, and when is it free? Read the numbered tests in order: they are its biography.

A pool of 10 blocks, the null block included, has blocks 0 to 9: 1 to 9 can be used. A table is the list of a request's
blocks.
"""

from mini_kv.core.errors import BlockStateError, OutOfBlocksError
from mini_kv.course import points
from mini_kv.course.labkit.fixture import LabUnderTest

from .helpers import Desk, compare_lives

# The biography ------------------------------------------------------------------------------------------------------


@points(3, "BlockPool.num_free_blocks", rule=2)
def test_1_a_new_pool(lab: LabUnderTest) -> None:
    """A pool of 10 blocks, the null block included, has 9 free blocks. A block in two tables is one block in use."""
    desk = Desk(lab, 10)
    lab.expect("free blocks of a new pool of 10", 9, desk.pool.num_free_blocks, rule=1)
    desk.takes("A", 4)
    lab.expect("free blocks when A holds 4", 5, desk.pool.num_free_blocks)
    desk.shares("B", [1, 2, 3])
    lab.expect(
        "free blocks when B holds 3 of A's",
        5,
        desk.pool.num_free_blocks,
        why="seven references, but four blocks in use: sharing a block takes no memory",
    )
    desk.takes("C", 5)
    lab.expect("free blocks when all are held", 0, desk.pool.num_free_blocks)


@points(4, "BlockPool.get_new_blocks", rule=4)
def test_2_new_blocks_come_from_the_front(lab: LabUnderTest) -> None:
    """A takes three blocks and B two, from the front of the queue, in its order, each with one reference."""
    desk = Desk(lab, 10, "get_new_blocks")
    lab.expect("A's blocks", [1, 2, 3], desk.takes("A", 3))
    lab.expect("B's blocks", [4, 5], desk.takes("B", 2), why="A's three have left the queue")
    lab.expect("free queue", [6, 7, 8, 9], desk.free_queue())


@points(4, "BlockPool.usage", rule=3, why="of 10 blocks, the null block included, 9 can be used: divide by 9")
def test_3_usage_goes_from_nothing_to_all(lab: LabUnderTest) -> None:
    """Usage is 0.0 in a new pool, a third with 3 of 9 blocks in use, and 1.0, not 0.9, when no block is free."""
    desk = Desk(lab, 10)
    lab.expect("usage of a new pool", 0.0, desk.pool.usage)
    desk.takes("A", 3)
    lab.expect("usage when 3 of 9 blocks are held", 1 / 3, desk.pool.usage)
    desk.shares("B", [1, 2, 3])
    lab.expect("usage when B shares A's 3 blocks", 1 / 3, desk.pool.usage, why="sharing takes no new block")
    desk.takes("C", 6)
    lab.expect("usage when nothing is free", 1.0, desk.pool.usage)


@points(4, "BlockPool.touch", rule=6)
def test_4_a_second_holder(lab: LabUnderTest) -> None:
    """B shares two of A's blocks, then C shares all three. Only the counts change, not the queue."""
    desk = Desk(lab, 10, "touch")
    desk.takes("A", 3)
    desk.shares("B", [1, 2])
    lab.expect("references of blocks 1, 2, 3", [2, 2, 1], desk.references([1, 2, 3]))
    desk.shares("C", [1, 2, 3])
    lab.expect("references of blocks 1, 2, 3", [3, 3, 2], desk.references([1, 2, 3]))
    lab.expect("free queue", [4, 5, 6, 7, 8, 9], desk.free_queue(), why="sharing a block in use takes no memory")


@points(5, "BlockPool.free_blocks", rule=8)
def test_5_two_holders_one_leaves(lab: LabUnderTest) -> None:
    """A is freed, and the shared blocks stay in use. When B is freed too, they are free."""
    desk = Desk(lab, 10, "free_blocks")
    desk.takes("A", 3)
    desk.shares("B", [1, 2])
    desk.takes("B", 1)  # its table: 1 2 4
    desk.leaves("A")
    lab.expect("references of blocks 1, 2, 3 without A", [1, 1, 0], desk.references([1, 2, 3]))
    lab.expect("free queue without A", [3, 5, 6, 7, 8, 9], desk.free_queue(), why="1 and 2 are B's; 3 was A's alone")
    desk.leaves("B")
    lab.expect(
        "free queue without A and B",
        [4, 2, 1, 3, 5, 6, 7, 8, 9],
        desk.free_queue(),
        why="B's table is freed from its tail, 4 2 1; freed blocks go to the front of the queue, in the order given",
    )


@points(4, "BlockPool.touch", rule=6, why="a block in a table must not be in the queue, or it is allocated again")
def test_6_a_free_block_is_pulled_out_of_the_middle(lab: LabUnderTest) -> None:
    """Blocks 1 to 5 are free, and A's KV is still in them. B and C touch some, from the middle of the queue too."""
    desk = Desk(lab, 10, "touch")
    desk.takes("A", 5)
    desk.leaves("A")
    lab.expect("free queue without A", [5, 4, 3, 2, 1, 6, 7, 8, 9], desk.free_queue())
    desk.shares("B", [3, 1])
    lab.expect("free queue when B holds 3 and 1", [5, 4, 2, 6, 7, 8, 9], desk.free_queue())
    desk.shares("C", [1, 2])
    lab.expect("references of blocks 1, 2, 3", [2, 1, 1], desk.references([1, 2, 3]))
    lab.expect("free queue when C holds 1 and 2", [5, 4, 6, 7, 8, 9], desk.free_queue())


@points(4, "BlockPool.get_new_blocks", rule=5, why="blocks of a refused request would never be freed")
def test_7_one_block_too_few(lab: LabUnderTest) -> None:
    """B needs 4 blocks. With 4 or 5 free it gets them. With 3 free the call raises, and the 3 stay in the queue."""
    for num_free, want in ((5, [3, 4, 5, 6]), (4, [3, 4, 5, 6])):
        desk = Desk(lab, num_free + 3, "get_new_blocks")
        desk.takes("A", 2)
        lab.expect(f"B's 4 blocks, {num_free} free", want, desk.takes("B", 4))
    desk = Desk(lab, 6, "get_new_blocks")
    desk.takes("A", 2)
    desk.refuses(OutOfBlocksError, "get_new_blocks", 4)
    lab.expect("B's 3 blocks, 3 free", [3, 4, 5], desk.takes("B", 3), why="the refusal left all three in the queue")
    desk.refuses(OutOfBlocksError, "get_new_blocks", 1)


@points(4, "BlockPool.free_blocks", rule=10, why="a second free would free another request's block")
def test_8_freed_twice(lab: LabUnderTest) -> None:
    """A's blocks are freed twice: the second call raises and changes nothing."""
    desk = Desk(lab, 10, "free_blocks")
    desk.takes("A", 2)
    table = desk.tables["A"]
    desk.leaves("A")
    desk.refuses(BlockStateError, "free_blocks", reversed(table))


@points(2, "BlockPool.free_blocks", rule=9)
def test_9_the_null_block_is_never_freed(lab: LabUnderTest) -> None:
    """The null block is in the first two places of A's table, as with a sliding window. Then A is freed."""
    desk = Desk(lab, 6, "free_blocks")
    desk.takes("A", 2)
    desk.tables["A"] = [desk.pool.null_block, desk.pool.null_block, *desk.tables["A"]]
    desk.leaves("A")
    lab.expect("free queue", [2, 1, 3, 4, 5], desk.free_queue(), why="2 and 1 as given; null blocks are skipped")


# The adversary ------------------------------------------------------------------------------------------------------


@points(2, "BlockPool.get_new_blocks", rule=4, stage="adversary", why="the queue decides, not the ids")
def test_the_order_is_the_queues(lab: LabUnderTest) -> None:
    """The ids are out of order, and one request needs no block at all."""
    desk = Desk(lab, 8, "get_new_blocks")
    desk.order_queue([5, 2, 7, 1, 6, 3, 4])
    lab.expect("A's blocks", [5, 2, 7], desk.takes("A", 3))
    lab.expect("B's blocks", [], desk.takes("B", 0), rule=5)
    lab.expect("C's blocks", [1, 6, 3, 4], desk.takes("C", 4), why="the last four blocks can be allocated too")
    lab.expect("D's blocks", [], desk.takes("D", 0), why="a request for 0 blocks is never refused", rule=5)


@points(2, "BlockPool.touch", rule=6, stage="adversary", why="first, last or alone: one case")
def test_the_ends_of_the_queue(lab: LabUnderTest) -> None:
    """The last block is taken out of the queue, then the first, then all others."""
    desk = Desk(lab, 5, "touch")
    desk.order_queue([2, 1, 3, 4])
    desk.shares("A", [4])
    lab.expect("free queue without its last", [2, 1, 3], desk.free_queue())
    desk.shares("B", [2])
    lab.expect("free queue without its first", [1, 3], desk.free_queue())
    desk.shares("C", [3, 4, 1])
    lab.expect("free queue", [], desk.free_queue())
    desk.shares("D", [1, 2, 3, 4])
    lab.expect("references of blocks 1 to 4", [2, 2, 2, 3], desk.references([1, 2, 3, 4]))


@points(1, "BlockPool.touch", rule=9, stage="adversary")
def test_touching_the_null_block(lab: LabUnderTest) -> None:
    """B shares a table that contains the null block twice."""
    desk = Desk(lab, 6, "touch")
    desk.takes("A", 2)
    desk.shares("B", [0, 0, 1, 2])
    lab.expect("references of blocks 1, 2", [2, 2], desk.references([1, 2]))
    lab.expect("references of the null block", [0], desk.references([0]), why="null-block references are not counted")
    lab.expect("free queue", [3, 4, 5], desk.free_queue())


@points(2, "BlockPool.free_blocks", rule=10, stage="adversary", why="check the whole list first")
def test_one_wrong_block_spoils_the_call(lab: LabUnderTest) -> None:
    """A free block is among A's blocks, at the end, in the middle, in front. Nothing may be freed."""
    for place in (2, 1, 0):
        desk = Desk(lab, 8, "free_blocks")
        desk.takes("A", 2)
        desk.shares("B", [1])
        wrong = [desk.pool.blocks[2], desk.pool.blocks[1]]
        wrong.insert(place, desk.pool.blocks[6])
        desk.refuses(BlockStateError, "free_blocks", wrong)


@points(2, "BlockPool.free_blocks", rule=10, stage="adversary", why="a table has a block once")
def test_the_same_block_twice_in_one_call(lab: LabUnderTest) -> None:
    """A block that is in the list twice is an error, whether one table contains it or two."""
    desk = Desk(lab, 6, "free_blocks")
    desk.takes("A", 2)
    one, two = desk.tables["A"]
    desk.refuses(BlockStateError, "free_blocks", [two, one, two])
    desk.shares("B", [1, 2])
    desk.refuses(BlockStateError, "free_blocks", [two, one, two])
    desk.refuses(BlockStateError, "free_blocks", iter([one, one]))


@points(2, "BlockPool.free_blocks", rule=8, stage="adversary")
def test_three_leave_in_another_order(lab: LabUnderTest) -> None:
    """Three tables share blocks, ids are out of order, one table has a gap. Predict the whole queue on paper."""
    desk = Desk(lab, 10, "free_blocks")
    desk.order_queue([4, 7, 1, 9, 6, 2, 5, 8, 3])
    desk.takes("A", 4)  # 4 7 1 9
    desk.shares("B", [0, 7, 1])
    desk.takes("B", 2)  # 0 7 1 6 2
    desk.shares("C", [4, 7, 2])
    desk.takes("C", 1)  # 4 7 2 5
    for name in ("B", "A", "C"):
        desk.leaves(name)
    lab.expect("free queue without B, A and C", [5, 2, 7, 4, 9, 1, 6, 8, 3], desk.free_queue())


@points(1, "BlockPool.num_free_blocks", rule=2, stage="adversary", why="the free queue counts its blocks")
def test_asking_costs_nothing(lab: LabUnderTest) -> None:
    """In a pool of 1,000 blocks, the null block included, `num_free_blocks` reads none of them."""
    desk = Desk(lab, 1000)
    desk.count_reads()
    lab.expect("free blocks of a new pool of 1,000", 999, desk.pool.num_free_blocks, why="the null block is not free")
    if desk.reads > 20:
        lab.fail("fields of blocks that were read to answer", "at most 20", desk.reads)


@points(1, "BlockPool.touch", rule=7, stage="adversary", why="the queue needs no walk")
def test_pulling_one_block_costs_the_same_in_any_queue(lab: LabUnderTest) -> None:
    """One block leaves the middle of 999: its neighbours are linked, and no other block is read."""
    desk = Desk(lab, 1000, "touch")
    desk.count_reads()
    desk.pool.touch([desk.pool.blocks[500]])
    reads = desk.reads
    desk.calls.append("touch([500]) for A")
    desk.tables["A"] = [desk.pool.blocks[500]]
    desk.check()
    if reads > 50:
        lab.fail("fields of blocks that were read to touch one", "at most 50", reads)


# The property -------------------------------------------------------------------------------------------------------


@points(1, "BlockPool.get_new_blocks", rule=4, stage="property")
def test_random_lives_of_get_new_blocks(lab: LabUnderTest) -> None:
    """Forty random sequences of calls on a small pool are compared, step by step, with a model of plain lists."""
    compare_lives(lab, "get_new_blocks")


@points(1, "BlockPool.touch", rule=6, stage="property")
def test_random_lives_of_touch(lab: LabUnderTest) -> None:
    """The same, with your `touch`."""
    compare_lives(lab, "touch")


@points(1, "BlockPool.free_blocks", rule=8, stage="property")
def test_random_lives_of_free_blocks(lab: LabUnderTest) -> None:
    """The same, with your `free_blocks`."""
    compare_lives(lab, "free_blocks")

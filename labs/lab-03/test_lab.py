"""lab-03: who holds a block, and when is it free? Read the numbered tests in order: they are its biography.

A pool of 10 is block 0, the null block, and 1 to 9. A table is the list of the blocks that one request holds.
"""

import os
import random
from collections.abc import Callable, Iterable
from typing import Any

from mini_kv.core.block import KVCacheBlock
from mini_kv.core.block_pool import BlockPool
from mini_kv.core.errors import BlockStateError, OutOfBlocksError
from mini_kv.core.free_queue import FreeKVCacheBlockQueue
from mini_kv.core.invariants import InvariantViolationError, Violation
from mini_kv.labkit import LabTodo, points
from mini_kv.labkit.fixture import LabFailure, LabUnderTest
from mini_kv.labkit.shrink import shrink

# The biography ------------------------------------------------------------------------------------------------------


@points(3, "BlockPool.num_free_blocks", why="free is a block that nobody holds; the null block is not there to be held")
def test_1_a_new_pool(lab: LabUnderTest) -> None:
    """Ten blocks, nine of them free; a block that two tables hold is still one block."""
    desk = Desk(lab, 10)
    lab.expect("free blocks of a new pool of 10", 9, desk.pool.num_free_blocks)
    desk.takes("A", 4)
    lab.expect("free blocks when A holds 4", 5, desk.pool.num_free_blocks)
    desk.shares("B", [1, 2, 3])
    lab.expect(
        "free blocks when B holds 3 of A's",
        5,
        desk.pool.num_free_blocks,
        why="seven references, but four blocks: sharing costs no memory, which is why one does it",
    )
    desk.takes("C", 5)
    lab.expect("free blocks when all are held", 0, desk.pool.num_free_blocks)


@points(4, "BlockPool.get_new_blocks", why="a new block has left the queue, and one table holds it")
def test_2_new_blocks_come_from_the_front(lab: LabUnderTest) -> None:
    """A takes three, B takes two: the front of the queue, in its order, each with one reference."""
    desk = Desk(lab, 10, "get_new_blocks")
    lab.expect("A's blocks", [1, 2, 3], desk.takes("A", 3))
    lab.expect("B's blocks", [4, 5], desk.takes("B", 2), why="A's three have left the queue")
    lab.expect("free queue", [6, 7, 8, 9], desk.free_queue())


@points(4, "BlockPool.usage", why="usage compares what is held with what can be held, and block 0 cannot")
def test_3_usage_goes_from_nothing_to_all(lab: LabUnderTest) -> None:
    """0.0 when new, a third, and 1.0 when nothing is left: not 0.9."""
    desk = Desk(lab, 10)
    lab.expect("usage of a new pool", 0.0, desk.pool.usage)
    desk.takes("A", 3)
    lab.expect("usage when 3 of 9 blocks are held", 1 / 3, desk.pool.usage)
    desk.shares("B", [1, 2, 3])
    lab.expect("usage when B shares A's 3 blocks", 1 / 3, desk.pool.usage, why="sharing takes no block")
    desk.takes("C", 6)
    lab.expect("usage when nothing is free", 1.0, desk.pool.usage)


@points(4, "BlockPool.touch", why="a reference is a table: two tables hold the block, so its count is two")
def test_4_a_second_holder(lab: LabUnderTest) -> None:
    """B shares two of A's blocks, then C all three: only the counts change, the queue does not."""
    desk = Desk(lab, 10, "touch")
    desk.takes("A", 3)
    desk.shares("B", [1, 2])
    lab.expect("references of blocks 1, 2, 3", [2, 2, 1], desk.references([1, 2, 3]))
    desk.shares("C", [1, 2, 3])
    lab.expect("references of blocks 1, 2, 3", [3, 3, 2], desk.references([1, 2, 3]))
    lab.expect("free queue", [4, 5, 6, 7, 8, 9], desk.free_queue(), why="a block that is held already costs nothing")


@points(5, "BlockPool.free_blocks", why="who leaves takes one reference away; only the last one out frees the block")
def test_5_two_holders_one_leaves(lab: LabUnderTest) -> None:
    """A leaves, and B goes on reading what they shared; when B leaves too, the blocks are free."""
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
        why="B's table goes home from its tail, 4 2 1, and what comes home stands in front, in the order given",
    )


@points(4, "BlockPool.touch", why="a block that somebody holds must not wait in the queue to be handed out")
def test_6_a_free_block_is_pulled_out_of_the_middle(lab: LabUnderTest) -> None:
    """Nobody holds 5, but what A wrote is still in it; B wants it back, from the middle of the queue."""
    desk = Desk(lab, 10, "touch")
    desk.takes("A", 5)
    desk.leaves("A")
    lab.expect("free queue without A", [5, 4, 3, 2, 1, 6, 7, 8, 9], desk.free_queue())
    desk.shares("B", [3, 1])
    lab.expect("free queue when B holds 3 and 1", [5, 4, 2, 6, 7, 8, 9], desk.free_queue())
    desk.shares("C", [1, 2])
    lab.expect("references of blocks 1, 2, 3", [2, 1, 1], desk.references([1, 2, 3]))
    lab.expect("free queue when C holds 1 and 2", [5, 4, 6, 7, 8, 9], desk.free_queue())


@points(4, "BlockPool.get_new_blocks", why="all or nothing: who was refused holds no block and never gives one back")
def test_7_one_block_too_few(lab: LabUnderTest) -> None:
    """B needs 4 blocks. With 4 or 5 free it gets them; with 3 it gets an exception, and the 3 stay where they are."""
    for num_free, want in ((5, [3, 4, 5, 6]), (4, [3, 4, 5, 6])):
        desk = Desk(lab, num_free + 3, "get_new_blocks")
        desk.takes("A", 2)
        lab.expect(f"B's 4 blocks, {num_free} free", want, desk.takes("B", 4))
    desk = Desk(lab, 6, "get_new_blocks")
    desk.takes("A", 2)
    desk.refuses(OutOfBlocksError, "get_new_blocks", 4)
    lab.expect("B's 3 blocks, 3 free", [3, 4, 5], desk.takes("B", 3), why="the refusal left all three in the queue")
    desk.refuses(OutOfBlocksError, "get_new_blocks", 1)


@points(4, "BlockPool.free_blocks", why="a second free is somebody's bug; kept quiet, it becomes somebody else's")
def test_8_freed_twice(lab: LabUnderTest) -> None:
    """A's blocks are freed, then freed again by mistake: an exception, and nothing has changed."""
    desk = Desk(lab, 10, "free_blocks")
    desk.takes("A", 2)
    table = desk.tables["A"]
    desk.leaves("A")
    desk.refuses(BlockStateError, "free_blocks", reversed(table))


@points(2, "BlockPool.free_blocks", why="the null block fills gaps in tables; never taken, it cannot come home")
def test_9_nobody_frees_the_null_block(lab: LabUnderTest) -> None:
    """A sliding window has put the null block in place of A's first two blocks; then A leaves."""
    desk = Desk(lab, 6, "free_blocks")
    desk.takes("A", 2)
    desk.tables["A"] = [desk.pool.null_block, desk.pool.null_block, *desk.tables["A"]]
    desk.leaves("A")
    lab.expect("free queue", [2, 1, 3, 4, 5], desk.free_queue(), why="2 and 1 come home as given; gaps do not")


# The adversary ------------------------------------------------------------------------------------------------------


@points(2, "BlockPool.get_new_blocks", stage="adversary", why="the queue alone decides who is next, not the numbers")
def test_the_order_is_the_queues(lab: LabUnderTest) -> None:
    """Ids out of order, and a request that needs no block at all."""
    desk = Desk(lab, 8, "get_new_blocks")
    desk.order_queue([5, 2, 7, 1, 6, 3, 4])
    lab.expect("A's blocks", [5, 2, 7], desk.takes("A", 3))
    lab.expect("B's blocks", [], desk.takes("B", 0))
    lab.expect("C's blocks", [1, 6, 3, 4], desk.takes("C", 4), why="the last four are as good as any")
    lab.expect("D's blocks", [], desk.takes("D", 0), why="no block is needed, so none is missing")


@points(2, "BlockPool.touch", stage="adversary", why="take out this very block, whether it is first, last or alone")
def test_the_ends_of_the_queue(lab: LabUnderTest) -> None:
    """The first, the last, and then the only free block."""
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


@points(1, "BlockPool.touch", stage="adversary", why="the null block is in no queue, so it cannot be taken out of one")
def test_touching_the_null_block(lab: LabUnderTest) -> None:
    """B shares a table in which the null block stands twice."""
    desk = Desk(lab, 6, "touch")
    desk.takes("A", 2)
    desk.shares("B", [0, 0, 1, 2])
    lab.expect("references of blocks 1, 2", [2, 2], desk.references([1, 2]))
    lab.expect("references of the null block", [0], desk.references([0]), why="nobody counts them: it is nobody's")
    lab.expect("free queue", [3, 4, 5], desk.free_queue())


@points(2, "BlockPool.free_blocks", stage="adversary", why="look at the whole list before changing the first block")
def test_one_wrong_block_spoils_the_call(lab: LabUnderTest) -> None:
    """A block that nobody holds stands among A's: at the end, in the middle, in front. Nothing may be freed."""
    for place in (2, 1, 0):
        desk = Desk(lab, 8, "free_blocks")
        desk.takes("A", 2)
        desk.shares("B", [1])
        wrong = [desk.pool.blocks[2], desk.pool.blocks[1]]
        wrong.insert(place, desk.pool.blocks[6])
        desk.refuses(BlockStateError, "free_blocks", wrong)


@points(2, "BlockPool.free_blocks", stage="adversary", why="one call is one table, and a table holds a block once")
def test_the_same_block_twice_in_one_call(lab: LabUnderTest) -> None:
    """Whether one table holds the block or two, the second mention is a mistake in the list."""
    desk = Desk(lab, 6, "free_blocks")
    desk.takes("A", 2)
    one, two = desk.tables["A"]
    desk.refuses(BlockStateError, "free_blocks", [two, one, two])
    desk.shares("B", [1, 2])
    desk.refuses(BlockStateError, "free_blocks", [two, one, two])
    desk.refuses(BlockStateError, "free_blocks", iter([one, one]))


@points(
    2, "BlockPool.free_blocks", stage="adversary", why="each call puts its blocks in front of those that were there"
)
def test_three_leave_in_another_order(lab: LabUnderTest) -> None:
    """Three tables that share, ids out of order, gaps in one. Predict the whole queue on paper before you look."""
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


@points(1, "BlockPool.num_free_blocks", stage="adversary", why="the answer is known already; it need not be counted")
def test_asking_costs_nothing(lab: LabUnderTest) -> None:
    """In a pool of 1,000 blocks, how many does the question look at?"""
    desk = Desk(lab, 1000)
    desk.count_reads()
    before = CountedBlock.reads
    lab.expect("free blocks of a new pool of 1,000", 999, desk.pool.num_free_blocks, why="the null block is not free")
    reads = CountedBlock.reads - before
    if reads > 20:
        lab.fail("fields of blocks that were read to answer", "at most 20", reads)


@points(1, "BlockPool.touch", stage="adversary", why="a queue that can be pulled from the middle need not be walked")
def test_pulling_one_block_costs_the_same_in_any_queue(lab: LabUnderTest) -> None:
    """One block out of the middle of 999: its neighbours know each other afterwards, and nobody else was asked."""
    desk = Desk(lab, 1000, "touch")
    desk.count_reads()
    before = CountedBlock.reads
    desk.pool.touch([desk.pool.blocks[500]])
    reads = CountedBlock.reads - before
    desk.calls.append("touch([500]) for A")
    desk.tables["A"] = [desk.pool.blocks[500]]
    desk.check()
    if reads > 50:
        lab.fail("fields of blocks that were read to touch one", "at most 50", reads)


# The property -------------------------------------------------------------------------------------------------------


@points(1, "BlockPool.get_new_blocks", stage="property", why="all or nothing, from the front, each with one reference")
def test_random_lives_of_get_new_blocks(lab: LabUnderTest) -> None:
    """Forty random lives of a small pool, each compared step by step with a model made of plain lists."""
    compare_random_lives(lab, "get_new_blocks")


@points(1, "BlockPool.touch", stage="property", why="one reference more for each; if it was in the queue, out of it")
def test_random_lives_of_touch(lab: LabUnderTest) -> None:
    """The same, with your `touch`."""
    compare_random_lives(lab, "touch")


@points(
    1,
    "BlockPool.free_blocks",
    stage="property",
    why="one reference less for each; those at 0 go in front as given",
)
def test_random_lives_of_free_blocks(lab: LabUnderTest) -> None:
    """The same, with your `free_blocks`."""
    compare_random_lives(lab, "free_blocks")


Step = tuple[str, str, int]
"""What happens, to whom, and a number that each kind of step reads in its own way."""


def compare_random_lives(lab: LabUnderTest, learners: str) -> None:
    """Play forty lives; of the first that goes wrong, play the shortest part that still does, and say what happened."""
    for seed in seeds(40):
        life = random_life(random.Random(seed))
        if not goes_wrong(lab, learners, life):
            continue
        shortest = shrink(life, lambda shorter: goes_wrong(lab, learners, shorter))
        desk = Desk(lab, 9, learners)
        try:
            play(desk, shortest)
        except (LabFailure, InvariantViolationError):
            raise
        except Exception as error:
            lab.fail(f"{desk.told()}, in the life of seed {seed}", "no exception", error)


def seeds(count: int) -> list[int]:
    """Return the seeds to try; LAB_SEED=n in the environment starts somewhere else."""
    first = int(os.environ.get("LAB_SEED", "0"))
    return list(range(first, first + count))


def random_life(rng: random.Random) -> list[Step]:
    """Return steps of several requests that come, share, leave, and now and then are wrong."""
    kinds = rng.choices(("take", "share", "revive", "leave", "wrong"), (4, 4, 2, 5, 1), k=25)
    return [(kind, f"R{number}", rng.randrange(60)) for number, kind in enumerate(kinds)]


def goes_wrong(lab: LabUnderTest, learners: str, life: list[Step]) -> bool:
    """Return whether the learner's code differs from the model, breaks an invariant or breaks down."""
    try:
        play(Desk(lab, 9, learners), life)
    except LabTodo:
        raise
    except Exception:
        return True
    return False


def play(desk: "Desk", life: list[Step]) -> None:
    """Play the steps on the learner's pool and on the model; a step that means nothing now is left out."""
    model = NaivePool(9)
    for kind, name, number in life:
        holders = sorted(model.tables)
        if kind == "take":
            want = model.take(name, number % 5)
            if want is None:
                desk.refuses(OutOfBlocksError, "get_new_blocks", number % 5)
            else:
                got = desk.takes(name, number % 5)
                desk.lab.expect(f"{name}'s blocks, after {desk.told()}", want, got)
        elif kind == "share" and holders:
            table = model.tables[holders[number % len(holders)]]
            desk.shares(name, model.share(name, table[: 1 + number // 12]))
        elif kind == "revive" and model.free:
            desk.shares(name, model.share(name, model.free[number % len(model.free) :][:2]))
        elif kind == "leave" and holders:
            desk.leaves(holders[number % len(holders)])
            model.leave(holders[number % len(holders)])
        elif kind == "wrong" and holders and model.free:
            wrong = [*model.tables[holders[number % len(holders)]], model.free[number % len(model.free)]]
            desk.refuses(BlockStateError, "free_blocks", [desk.pool.blocks[block_id] for block_id in wrong])
        desk.lab.expect(f"free queue, after {desk.told()}", model.free, desk.free_queue())


class NaivePool:
    """The same pool without links or counts: a block is held if it stands in a table."""

    def __init__(self, num_gpu_blocks: int) -> None:
        self.free = list(range(1, num_gpu_blocks))
        self.tables: dict[str, list[int]] = {}

    def take(self, name: str, num_blocks: int) -> list[int] | None:
        """Return the new table; None if too few blocks are free."""
        if num_blocks > len(self.free):
            return None
        self.tables[name], self.free = self.free[:num_blocks], self.free[num_blocks:]
        return self.tables[name]

    def share(self, name: str, ids: list[int]) -> list[int]:
        """Return the new table, of blocks that are held or free."""
        self.tables[name] = list(ids)
        self.free = [block_id for block_id in self.free if block_id not in ids]
        return self.tables[name]

    def leave(self, name: str) -> None:
        """Let a table go, tail first, to the front."""
        table = self.tables.pop(name)
        held = {block_id for other in self.tables.values() for block_id in other}
        self.free = [block_id for block_id in reversed(table) if block_id not in held] + self.free


# What the tests above stand on --------------------------------------------------------------------------------------


class Desk:
    """A pool, and who holds which of its blocks: written down here, never read off the blocks.

    Only the method named in `learners` is the learner's. For the others the engine's pool stands in, on the same blocks
    and the same queue, so that a mistake in one method does not fail the tests of another.
    """

    def __init__(self, lab: LabUnderTest, num_gpu_blocks: int, learners: str = "") -> None:
        self.lab = lab
        self.pool = lab.BlockPool(num_gpu_blocks, enable_caching=False)
        self.learners = learners
        self.tables: dict[str, list[KVCacheBlock]] = {}
        self.calls: list[str] = []
        lab.watch_pool(self.pool, self.tables)
        self.check()

    def takes(self, name: str, num_blocks: int) -> list[int]:
        """Let `name` take new blocks; return their ids."""
        self.calls.append(f"get_new_blocks({num_blocks}) for {name}")
        blocks = self._method("get_new_blocks")(num_blocks)
        if not are_blocks(blocks):
            self.lab.fail(f"what get_new_blocks({num_blocks}) returned", f"a list of {num_blocks} KVCacheBlock", blocks)
        self.tables[name] = [*self.tables.get(name, []), *blocks]
        self.check()
        return ids_of(blocks)

    def shares(self, name: str, ids: list[int]) -> None:
        """Let `name` hold these blocks as well, whoever else does."""
        self.calls.append(f"touch({ids}) for {name}")
        blocks = [self.pool.blocks[block_id] for block_id in ids]
        self._method("touch")(blocks)
        self.tables[name] = [*self.tables.get(name, []), *blocks]
        self.check()

    def leaves(self, name: str) -> None:
        """Let `name` give back its table, from the tail to the head."""
        self.calls.append(f"free_blocks({ids_of(reversed(self.tables[name]))}) for {name}")
        self._method("free_blocks")(reversed(self.tables[name]))
        del self.tables[name]
        self.check()

    def refuses(self, error: type[Exception], method: str, argument: Any) -> None:
        """Make a call that must raise `error` and change nothing."""
        told = argument
        if not isinstance(argument, int):
            blocks = list(argument)
            told, argument = ids_of(blocks), iter(blocks)
        call = f"{method}({told})"
        queue, counts = self.free_queue(), self.references(range(1, len(self.pool.blocks)))
        try:
            result = self._method(method)(argument)
        except LabTodo:
            raise
        except error:
            self._check_unchanged(f"{call} raised", queue, counts)
        except Exception as other:
            self.lab.fail(f"what {call} raised, after {self.told()}", error.__name__, other)
        else:
            self._check_unchanged(f"{call} should have raised {error.__name__}", queue, counts)
            returned = ids_of(result) if are_blocks(result) else result
            self.lab.fail(f"what {call} returned, after {self.told()}", f"{error.__name__} raised", returned)
        self.calls.append(f"{call} raised")
        self.check()

    def free_queue(self) -> list[int]:
        """Return the ids in the free queue, the next to be handed out first."""
        return ids_of(self.pool.free_block_queue.get_all_free_blocks())

    def references(self, ids: Iterable[int]) -> list[int]:
        """Return the counts of these blocks."""
        return [self.pool.blocks[block_id].ref_cnt for block_id in ids]

    def order_queue(self, ids: list[int]) -> None:
        """Put the blocks of a new pool into this order, so that no number tells a block's place."""
        self.pool.free_block_queue.popleft_n(len(ids))
        self.pool.free_block_queue.append_n([self.pool.blocks[block_id] for block_id in ids])

    def count_reads(self) -> None:
        """Put blocks into the untouched pool that count how often they are looked at."""
        blocks = [CountedBlock(block_id) for block_id in range(len(self.pool.blocks))]
        blocks[0].is_null = True
        self.pool.blocks, self.pool.null_block = blocks, blocks[0]
        self.pool.free_block_queue = FreeKVCacheBlockQueue(blocks[1:])

    def told(self) -> str:
        """Return the last calls, for a message."""
        return ("... " if len(self.calls) > 6 else "") + ("; ".join(self.calls[-6:]) or "nothing")

    def check(self) -> None:
        """Raise for the first invariant that is broken, with the calls that led there."""
        try:
            self.lab.check_pool(self._engines_pool(), self.tables)
        except InvariantViolationError as error:
            self._violated(error.violation.invariant_id, error.violation.message)

    def _check_unchanged(self, call: str, queue: list[int], counts: list[int]) -> None:
        after = self.references(range(1, len(self.pool.blocks)))
        changed = [
            f"block {block_id} had ref_cnt {before} and has {now}"
            for block_id, (before, now) in enumerate(zip(counts, after, strict=True), start=1)
            if now != before
        ]
        if changed:
            self._violated("I11", f"{call}, but {', '.join(changed[:3])}")
        if self.free_queue() != queue:
            self._violated("I11", f"{call}, but the free queue was {queue} and is {self.free_queue()}")

    def _violated(self, invariant_id: str, message: str) -> None:
        raise InvariantViolationError(Violation(invariant_id, f"{message}, after {self.told()}")) from None

    def _method(self, name: str) -> Callable[..., Any]:
        owner = self.pool if name == self.learners else self._engines_pool()
        return getattr(owner, name)  # type: ignore[no-any-return]  # a method of either pool

    def _engines_pool(self) -> BlockPool:
        """Return the engine's pool on the same blocks and the same queue: what is there, whoever moved it."""
        pool = BlockPool(2, enable_caching=False)
        pool.blocks, pool.null_block = self.pool.blocks, self.pool.null_block
        pool.free_block_queue = self.pool.free_block_queue
        return pool


class CountedBlock(KVCacheBlock):
    """A block that counts how often a field of any such block is read."""

    __slots__ = ()
    reads = 0

    def __getattribute__(self, name: str) -> Any:
        CountedBlock.reads += 1
        return super().__getattribute__(name)


def are_blocks(value: object) -> bool:
    """Return whether it is a list of blocks and nothing else."""
    return type(value) is list and all(isinstance(item, KVCacheBlock) for item in value)


def ids_of(blocks: Iterable[KVCacheBlock]) -> list[int]:
    """Return the numbers of the blocks, which is how a drawing names them."""
    return [block.block_id for block in blocks]

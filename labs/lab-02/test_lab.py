"""lab-02: the queue you can pull from the middle. Read the numbered tests in order: they are its biography.

Queues are written as the numbers of their blocks, front first: in [3, 0, 5, 1], block 3 is reused next. The blocks here
note who looks at them (`WatchedBlock`, at the end); that is how a test sees whether an operation walks the queue.
"""

import os
import random
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from mini_kv.core.block import BlockHash, KVCacheBlock
from mini_kv.core.block_pool import BlockPool
from mini_kv.core.errors import BlockStateError, KVCacheError, OutOfBlocksError
from mini_kv.labkit import LabTodo, points
from mini_kv.labkit.fixture import LabUnderTest, same
from mini_kv.labkit.shrink import shrink

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


@points(2, INIT, why="the order that is given is the order of reuse; the numbers of the blocks do not matter")
def test_1_a_new_queue_keeps_the_order_that_it_is_given(lab: LabUnderTest) -> None:
    """Four blocks go in out of order, and stand there out of order."""
    queue = make(lab, [3, 0, 5, 1]).queue
    lab.expect("num_free_blocks of a new queue of 4", 4, queue.num_free_blocks, why="an attribute, up to date always")
    lab.expect("a new queue of blocks 3, 0, 5, 1", [3, 0, 5, 1], order(queue))


@points(2, GET_ALL, after=FIRST, why="a look takes nothing out, and the list belongs to who asked for it")
def test_2_looking_changes_nothing(lab: LabUnderTest) -> None:
    """Look twice, spoil the list in between: the queue does not care."""
    queue = make(lab, [3, 0, 5, 1]).queue
    queue.get_all_free_blocks().clear()
    expect_queue(lab, queue, [3, 0, 5, 1], "queue after get_all_free_blocks()")
    kept = queue.get_all_free_blocks()
    queue.get_all_free_blocks()
    lab.expect("a list that somebody has kept", [3, 0, 5, 1], numbers(kept), why="each look makes a list of its own")
    if kept is queue.get_all_free_blocks():
        lab.fail("two looks", "two lists", "one list, given twice")


@points(2, POPLEFT, after=FIRST, why="the front is what has waited longest")
def test_3_new_blocks_come_from_the_front(lab: LabUnderTest) -> None:
    """One, and another, until none is left."""
    queue = make(lab, [3, 0, 5, 1]).queue
    left = [3, 0, 5, 1]
    while left:
        what = f"popleft() from {left}"
        taken = do(lab, what, queue.popleft)
        lab.expect(f"block taken by {what}", left.pop(0), number(taken))
        expect_queue(lab, queue, left, f"queue after {what}")


@points(2, APPEND, after=FIRST, why="what has just been freed waits until all others have had their turn")
def test_4_a_freed_block_goes_to_the_back(lab: LabUnderTest) -> None:
    """Block 7 joins 4 and 2, then block 1."""
    blocks, queue = make(lab, [4, 2], outside=[7, 1]).both
    do(lab, "append(7) to [4, 2]", queue.append, blocks[7])
    expect_queue(lab, queue, [4, 2, 7], "[4, 2] after append(7)")
    do(lab, "append(1) to [4, 2, 7]", queue.append, blocks[1])
    expect_queue(lab, queue, [4, 2, 7, 1], "[4, 2, 7] after append(1)")


@points(4, REMOVE, after=FIRST, why="a hit needs this very block, wherever it stands; the gap closes behind it")
def test_5_a_hit_leaves_from_wherever_it_stands(lab: LabUnderTest) -> None:
    """From the middle, from the front, from the back, and then the two that are left."""
    blocks, queue = make(lab, [3, 0, 5, 1, 4]).both
    left = [3, 0, 5, 1, 4]
    for hit in (5, 3, 4, 1, 0):
        before = list(left)
        left.remove(hit)
        do(lab, f"remove({hit}) from {before}", queue.remove, blocks[hit])
        expect_queue(lab, queue, left, f"{before} after remove({hit})")


@points(2, POPLEFT_N, after=FIRST, why="they come in the order in which popleft() would have given them")
def test_6_several_leave_at_once(lab: LabUnderTest) -> None:
    """Three of five; then none, which is a number too; then the last two."""
    queue = make(lab, [3, 0, 5, 1, 4]).queue
    left = [3, 0, 5, 1, 4]
    for n in (3, 0, 2):
        what = f"popleft_n({n}) from {left}"
        want, left = left[:n], left[n:]
        lab.expect(f"blocks taken by {what}", want, numbers(do(lab, what, queue.popleft_n, n)))
        expect_queue(lab, queue, left, f"queue after {what}")


@points(2, APPEND_N, after=FIRST, why="the order of the list is the caller's decision: the queue only keeps it")
def test_7_several_enter_at_the_back(lab: LabUnderTest) -> None:
    """A request of three blocks is over; it gives them back tail first, and that is how they stand."""
    for before, ids in (([6, 2], [7, 1, 4]), ([6, 2], []), ([], [5, 0])):
        blocks, queue = make(lab, before, outside=ids).both
        do(lab, f"append_n({ids}) to {before}", queue.append_n, [blocks[block_id] for block_id in ids])
        expect_queue(lab, queue, [*before, *ids], f"{before} after append_n({ids})")


@points(3, PREPEND_N, after=FIRST, why="blocks that can never be hit again go in front of those that can: vLLM 0.33")
def test_8_worthless_blocks_go_in_front(lab: LabUnderTest) -> None:
    """Two without a name, then one more: the order of each list stays, and the later list comes first."""
    blocks, queue = make(lab, [6, 2], outside=[9, 4, 7]).both
    now = [6, 2]
    for ids in ([9, 4], [7], []):
        do(lab, f"prepend_n({ids}) to {now}", queue.prepend_n, [blocks[block_id] for block_id in ids])
        expect_queue(lab, queue, [*ids, *now], f"{now} after prepend_n({ids})")
        now = [*ids, *now]
    blocks, queue = make(lab, [], outside=[5, 0]).both
    do(lab, "prepend_n([5, 0]) to []", queue.prepend_n, [blocks[5], blocks[0]])
    expect_queue(lab, queue, [5, 0], "[] after prepend_n([5, 0])")


@points(2, REMOVE, after=FIRST, why="the pool of mini_kv runs on any object with the queue's verbs: now on yours")
def test_9_the_pool_runs_on_your_queue(lab: LabUnderTest) -> None:
    """The engine's own pool, with your queue inside: take three, free them, bring one back from the middle."""
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
        why="the pool prepends block 3, which has no name, and appends 2 and 1, which have: tail first",
    )
    tables["B"] = [pool.blocks[2]]
    pool.touch(tables["B"])
    lab.check_pool(pool, tables)
    lab.expect("free queue after a hit on block 2", [3, 4, 5, 6, 7, 8, 1], order(pool.free_block_queue))

    tables["C"] = pool.get_new_blocks(7)
    lab.check_pool(pool, tables)
    lab.expect("C's block table, all that is left", [3, 4, 5, 6, 7, 8, 1], numbers(tables["C"]))


# The adversary ------------------------------------------------------------------------------------------------------


@points(1, INIT, stage="adversary", after=FIRST, why="a pool that is all in use has an empty queue, and goes on")
def test_an_empty_queue_is_a_queue(lab: LabUnderTest) -> None:
    """Two sentinels and nothing between them; then the first block, which is front and back at once."""
    blocks, queue = make(lab, [], outside=[7]).both
    expect_queue(lab, queue, [], "a new queue of no blocks")
    do(lab, "append(7) to an empty queue", queue.append, blocks[7])
    expect_queue(lab, queue, [7], "an empty queue after append(7)")


@points(3, REMOVE, stage="adversary", after=FIRST, why="a block's neighbours are all that its leaving concerns")
def test_pulling_one_of_ten_thousand_looks_at_three(lab: LabUnderTest) -> None:
    """The block itself and its two neighbours. Four would do; five thousand would not."""
    blocks, queue, watch = make(lab, range(10_000))
    for place in (5000, 1, 9998):
        watch.seen.clear()
        do(lab, f"remove({place}) from 10,000", queue.remove, blocks[place])
        expect_looks(lab, watch, 4, f"remove({place}), in a queue of 10,000,")


@points(1, POPLEFT, stage="adversary", after=FIRST, why="taking the front concerns the front and what follows it")
def test_taking_one_does_not_walk(lab: LabUnderTest) -> None:
    """Nor does asking how many there are."""
    _, queue, watch = make(lab, range(1000))
    watch.seen.clear()
    queue.popleft()
    expect_looks(lab, watch, 4, "popleft(), in a queue of 1000,")
    lab.expect("num_free_blocks afterwards", 999, queue.num_free_blocks)
    expect_looks(lab, watch, 4, "num_free_blocks, after popleft(),")


@points(1, POPLEFT_N, stage="adversary", after=FIRST, why="taking five concerns those five and the one that follows")
def test_taking_several_does_not_walk(lab: LabUnderTest) -> None:
    """Whatever the length of the queue."""
    _, queue, watch = make(lab, range(1000))
    watch.seen.clear()
    queue.popleft_n(5)
    expect_looks(lab, watch, 9, "popleft_n(5), in a queue of 1000,")


@points(1, APPEND_N, stage="adversary", after=FIRST, why="the back is found from the tail, not from the front")
def test_adding_does_not_walk(lab: LabUnderTest) -> None:
    """At either end; whether a block is in already can be seen from the block."""
    for enter in ("append_n", "prepend_n"):
        blocks, queue, watch = make(lab, range(1000), outside=range(1000, 1005))
        newcomers = [blocks[block_id] for block_id in range(1000, 1005)]
        watch.seen.clear()
        put(queue, enter, newcomers)
        expect_looks(lab, watch, 9, f"{enter}() of 5 blocks, in a queue of 1000,")


@points(
    2,
    POPLEFT,
    stage="adversary",
    after=FIRST,
    why="an empty queue has no front: what follows the head is the end marker",
)
def test_an_empty_queue_has_nothing_to_give(lab: LabUnderTest) -> None:
    """The last block is given; after it, `OutOfBlocksError`. A queue that was empty from the start says the same."""
    for block_ids in ([8], []):
        queue = make(lab, block_ids).queue
        for block_id in block_ids:
            taken = do(lab, f"popleft() from {block_ids}", queue.popleft)
            lab.expect(f"block taken by popleft() from {block_ids}", block_id, number(taken))
        expect_refusal(lab, queue, "popleft() of an empty queue", OutOfBlocksError, queue.popleft)


@points(3, POPLEFT_N, stage="adversary", after=FIRST, why="all or nothing: half an allocation is nobody's")
def test_too_many_are_refused_whole(lab: LabUnderTest) -> None:
    """One less than there are, one more, many more, and a number that is none: less than zero."""
    queue = make(lab, [3, 0, 5]).queue
    for n in (4, 100):
        expect_refusal(lab, queue, f"popleft_n({n}) of 3 blocks", OutOfBlocksError, queue.popleft_n, n)
    why = "taking -1 from the count would make a block out of nothing; somebody has subtracted the wrong way"
    expect_refusal(lab, queue, "popleft_n(-1) of 3 blocks", OutOfBlocksError, queue.popleft_n, -1, why=why)
    taken = do(lab, "popleft_n(2) from [3, 0, 5]", queue.popleft_n, 2)
    lab.expect("blocks taken by popleft_n(2) from [3, 0, 5]", [3, 0], numbers(taken))
    taken = do(lab, "popleft_n(1) from [5]", queue.popleft_n, 1)
    lab.expect("blocks taken by popleft_n(1) from [5]", [5], numbers(taken))
    expect_refusal(lab, queue, "popleft_n(1) of no block", OutOfBlocksError, queue.popleft_n, 1)


@points(
    3, REMOVE, stage="adversary", after=FIRST, why="who is out cannot leave: a second free is a bug of the caller's"
)
def test_only_what_is_in_the_queue_leaves_it(lab: LabUnderTest) -> None:
    """Removed already, from the middle or from an end, and never been in: an error each time, and nothing moves."""
    blocks, queue = make(lab, [3, 0, 5, 1, 4], outside=[9]).both
    for gone in (5, 3, 4):
        do(lab, f"remove({gone})", queue.remove, blocks[gone])
        expect_refusal(lab, queue, f"second remove({gone})", BlockStateError, queue.remove, blocks[gone])
    expect_refusal(lab, queue, "remove(9), which was never in,", BlockStateError, queue.remove, blocks[9])


@points(2, APPEND, stage="adversary", after=FIRST, why="a second place in the queue is a second owner in the future")
def test_a_block_enters_once(lab: LabUnderTest) -> None:
    """Front, middle and back of the queue, freed once more."""
    blocks, queue = make(lab, [3, 0, 5]).both
    for block_id in (3, 0, 5):
        what = f"append({block_id}) to [3, 0, 5]"
        expect_refusal(lab, queue, what, BlockStateError, queue.append, blocks[block_id])


@points(2, APPEND_N, stage="adversary", after=FIRST, why="a list is checked as a whole before one block is linked")
def test_a_list_with_one_wrong_block_is_refused_whole(lab: LabUnderTest) -> None:
    """A newcomer, then one that is in: neither enters, and the newcomer is still free to come."""
    blocks, queue = make(lab, [3, 0, 5], outside=[8]).both
    wrong = [blocks[8], blocks[0]]
    expect_refusal(lab, queue, "append_n([8, 0]) to [3, 0, 5]", BlockStateError, queue.append_n, wrong)
    do(lab, "append_n([8]) after that", queue.append_n, [blocks[8]])
    expect_queue(lab, queue, [3, 0, 5, 8], "[3, 0, 5] after the refused append_n([8, 0]) and append_n([8])")


@points(2, APPEND_N, stage="adversary", after=FIRST, why="a block that stands once and counts twice: vllm #42571")
def test_the_same_block_twice_in_one_list(lab: LabUnderTest) -> None:
    """The incident of this lab's page. The block is in no queue yet, so looking at its links is not enough."""
    blocks, queue = make(lab, [3, 0, 5], outside=[8, 9]).both
    twice = [blocks[8], blocks[9], blocks[8]]
    expect_refusal(lab, queue, "append_n([8, 9, 8]) to [3, 0, 5]", BlockStateError, queue.append_n, twice)
    do(lab, "append_n([8, 9]) after that", queue.append_n, [blocks[8], blocks[9]])
    expect_queue(lab, queue, [3, 0, 5, 8, 9], "[3, 0, 5] after the refused append_n([8, 9, 8]) and append_n([8, 9])")


@points(2, PREPEND_N, stage="adversary", after=FIRST, why="in front no other rules hold than at the back")
def test_the_front_is_guarded_too(lab: LabUnderTest) -> None:
    """One that is in, and one given twice."""
    blocks, queue = make(lab, [3, 0, 5], outside=[8]).both
    for ids in ([8, 5], [3], [8, 8]):
        wrong = [blocks[block_id] for block_id in ids]
        expect_refusal(lab, queue, f"prepend_n({ids}) to [3, 0, 5]", BlockStateError, queue.prepend_n, wrong)
    do(lab, "prepend_n([8]) after that", queue.prepend_n, [blocks[8]])
    expect_queue(lab, queue, [8, 3, 0, 5], "[3, 0, 5] after three refusals and prepend_n([8])")


@points(
    2, POPLEFT_N, stage="adversary", after=FIRST, why="what leaves takes its links along; who stays is linked both ways"
)
def test_after_taking_everybody_is_free_to_move(lab: LabUnderTest) -> None:
    """The new front is pulled out at once, and what was taken comes back."""
    blocks, queue = make(lab, [3, 0, 5, 1, 4]).both
    do(lab, "popleft_n(2) from [3, 0, 5, 1, 4]", queue.popleft_n, 2)
    do(lab, "remove(5) from [5, 1, 4], left by popleft_n(2)", queue.remove, blocks[5])
    expect_queue(lab, queue, [1, 4], "[5, 1, 4], left by popleft_n(2), after remove(5)")
    do(lab, "append_n([0, 3]) of the two that popleft_n(2) took", queue.append_n, [blocks[0], blocks[3]])
    expect_queue(lab, queue, [1, 4, 0, 3], "[1, 4] after append_n([0, 3]) of the two that were taken")


@points(1, PREPEND_N, stage="adversary", after=FIRST, why="the old front has a neighbour before it now")
def test_after_prepending_everybody_is_free_to_move(lab: LabUnderTest) -> None:
    """The old front is pulled out at once, then the new one, then what came last."""
    blocks, queue = make(lab, [3, 0], outside=[8, 9]).both
    do(lab, "prepend_n([9, 8]) to [3, 0]", queue.prepend_n, [blocks[9], blocks[8]])
    now = [9, 8, 3, 0]
    for gone in (3, 9, 8):
        left = [block_id for block_id in now if block_id != gone]
        do(lab, f"remove({gone}) from {now}", queue.remove, blocks[gone])
        expect_queue(lab, queue, left, f"{now} after remove({gone})")
        now = left


# The property -------------------------------------------------------------------------------------------------------


@points(3, REMOVE, stage="property", after=FIRST, why="NaiveQueue, at the end of the test file, is a plain list")
def test_random_traces_agree_with_a_list(lab: LabUnderTest) -> None:
    """Forty random lives of a small queue, misuse included, each compared step by step with a Python list."""
    for seed in seeds(40):
        trace = random_trace(random.Random(seed))
        if play(lab, trace) is None:
            continue
        shortest = shrink(trace, lambda shorter: play(lab, shorter) is not None)
        what, want, got = play(lab, shortest) or ("", "", "")
        told = "; ".join(str(step) for step in shortest)
        lab.fail(f"{what}, in the trace of seed {seed}, shortened to: start {START}; {told}", want, got)


START = [4, 2, 0]
"""The queue that every random life starts with; there are eight blocks in all."""


def seeds(count: int) -> list[int]:
    """Return the seeds to try; LAB_SEED=n in the environment starts somewhere else."""
    first = int(os.environ.get("LAB_SEED", "0"))
    return list(range(first, first + count))


@dataclass(frozen=True)
class Step:
    """A call: its name and the numbers in it, of blocks or, in popleft_n, how many."""

    verb: str
    ids: tuple[int, ...] = ()

    def __str__(self) -> str:
        given = ", ".join(map(str, self.ids))
        return f"{self.verb}([{given}])" if self.verb in ("append_n", "prepend_n") else f"{self.verb}({given})"


def random_trace(rng: random.Random) -> list[Step]:
    """Return 25 calls about eight blocks; about a third of them turn out to be misuse."""
    trace = []
    for _ in range(25):
        verb = rng.choice(("popleft", "popleft_n", "remove", "remove", "append", "append_n", "prepend_n"))
        if verb == "popleft":
            ids: list[int] = []
        elif verb == "popleft_n":
            ids = [rng.choice((-1, 0, 1, 2, 3, 5))]
        elif verb in ("remove", "append"):
            ids = [rng.randrange(8)]
        else:
            ids = [rng.randrange(8) for _ in range(rng.randint(0, 3))]
        trace.append(Step(verb, tuple(ids)))
    return trace


def play(lab: LabUnderTest, trace: list[Step]) -> tuple[str, object, object] | None:
    """Play the trace on the learner's queue and on a list; return the first difference: what, expected, got."""
    blocks, queue = make(lab, START, outside=[1, 3, 5, 6, 7]).both
    model = NaiveQueue(START)
    for step in trace:
        want, got = model.do(step), outcome(call, queue, step, blocks)
        if not same(want, got):
            return f"what {step} gives", want, got
        if not same(model.ids, outcome(order, queue)):
            return f"queue after {step}", model.ids, outcome(order, queue)
        if not same(len(model.ids), queue.num_free_blocks):
            return f"num_free_blocks after {step}", len(model.ids), queue.num_free_blocks
    return None


def call(queue: Any, step: Step, blocks: dict[int, KVCacheBlock]) -> object:
    """Make the call on the learner's queue; return the numbers of the blocks that it gives, or None."""
    if step.verb == "popleft":
        return [number(queue.popleft())]
    if step.verb == "popleft_n":
        return numbers(queue.popleft_n(step.ids[0]))
    if step.verb == "remove":
        return queue.remove(blocks[step.ids[0]])
    return put(queue, step.verb, [blocks[block_id] for block_id in step.ids])


def do(lab: LabUnderTest, what: str, function: Callable[..., object], *args: object) -> object:
    """Make a call that must succeed; say which one it was if it does not, and where it broke down."""
    try:
        return function(*args)
    except LabTodo:
        raise
    except Exception as error:
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename != __file__]
        where = f"raised in {frames[-1].name}, line {frames[-1].lineno}: {frames[-1].line}" if frames else ""
        lab.fail(what, "no error", told(error), where)


class Told(str):
    """What happened, in words; shown without quotes."""

    __slots__ = ()
    __repr__ = str.__str__


def outcome(function: Callable[..., object], *args: object) -> object:
    """Return what the call gives, or the error that it raises, told in words."""
    try:
        return function(*args)
    except LabTodo:
        raise
    except Exception as error:
        return told(error)


def told(error: Exception) -> Told:
    """Return the error in words; of the two that are the learner's to raise, the name alone."""
    if isinstance(error, OutOfBlocksError | BlockStateError):
        return Told(type(error).__name__)
    return Told(f"{type(error).__name__}: {error}")


class NaiveQueue:
    """A Python list of numbers: slow, and plainly right."""

    def __init__(self, ids: list[int]) -> None:
        self.ids = list(ids)

    def do(self, step: Step) -> object:
        """Change the list as the call should; return what it should give: numbers, None or the name of an error."""
        if step.verb in ("popleft", "popleft_n"):
            n = step.ids[0] if step.ids else 1
            if not 0 <= n <= len(self.ids):
                return Told("OutOfBlocksError")
            taken, self.ids = self.ids[:n], self.ids[n:]
            return taken
        if step.verb == "remove":
            if step.ids[0] not in self.ids:
                return Told("BlockStateError")
            self.ids.remove(step.ids[0])
        else:
            if len({*step.ids, *self.ids}) != len(step.ids) + len(self.ids):
                return Told("BlockStateError")
            self.ids = [*step.ids, *self.ids] if step.verb == "prepend_n" else [*self.ids, *step.ids]
        return None


# What the tests above stand on --------------------------------------------------------------------------------------


class EndlessWalkError(KVCacheError):
    """One test has looked at blocks so often that the links must go round in a circle."""


@dataclass
class Watch:
    """Notes which blocks are looked at, by number."""

    seen: set[int] = field(default_factory=set)
    num_looks: int = 0
    num_blocks: int = 0

    def block(self, block_id: int) -> KVCacheBlock:
        """Return a new block that reports here."""
        self.num_blocks += 1
        return WatchedBlock(block_id, self)

    def note(self, block_id: int) -> None:
        """Somebody looks at this block."""
        self.seen.add(block_id)
        self.num_looks += 1
        if self.num_looks > 5000 + 100 * self.num_blocks:
            raise EndlessWalkError(f"{self.num_looks:,} looks at {self.num_blocks} blocks: the links form a circle?")


def _watched(name: str) -> Any:
    """Return the attribute of that name, as `KVCacheBlock` has it, with a note to the watch at each look."""
    slot = vars(KVCacheBlock)[name]

    def get(block: Any) -> Any:
        block.watch.note(block.own_id)
        return slot.__get__(block)

    def put(block: Any, value: object) -> None:
        block.watch.note(block.own_id)
        slot.__set__(block, value)

    return property(get, put)


class WatchedBlock(KVCacheBlock):
    """A block that notes every look at its links or its number, every comparison with another, every hash."""

    __slots__ = ("own_id", "watch")

    def __init__(self, block_id: int, watch: Watch) -> None:
        self.watch, self.own_id = watch, block_id
        super().__init__(WatchedId(block_id))
        self.block_id.watch = watch

    block_id = _watched("block_id")
    prev_free_block = _watched("prev_free_block")
    next_free_block = _watched("next_free_block")

    def __eq__(self, other: object) -> bool:
        self.watch.note(self.own_id)
        return self is other

    def __hash__(self) -> int:
        self.watch.note(self.own_id)
        return object.__hash__(self)


class WatchedId(int):
    """A block's number that notes when it is compared: a search through a list of numbers is a walk as well."""

    watch: Watch | None = None

    def __eq__(self, other: object) -> bool:
        if self.watch is not None:
            self.watch.note(int(self))
        return int(self) == other

    def __hash__(self) -> int:
        return hash(int(self))


@dataclass(frozen=True)
class Made:
    """A learner's queue, all blocks by number, and the watch that they report to."""

    blocks: dict[int, KVCacheBlock]
    queue: Any
    watch: Watch

    @property
    def both(self) -> tuple[dict[int, KVCacheBlock], Any]:
        """The blocks and the queue."""
        return self.blocks, self.queue

    def __iter__(self) -> Any:
        return iter((self.blocks, self.queue, self.watch))


def make(lab: LabUnderTest, inside: Iterable[int], outside: Iterable[int] = ()) -> Made:
    """Return a learner's queue of the blocks `inside`, in this order, with some more blocks outside it."""
    watch = Watch()
    first = [watch.block(block_id) for block_id in inside]
    others = [watch.block(block_id) for block_id in outside]
    blocks = {number(block): block for block in [*first, *others]}
    return Made(blocks, lab.FreeKVCacheBlockQueue(first), watch)  # type: ignore[arg-type]


def put(queue: Any, verb: str, blocks: list[KVCacheBlock]) -> object:
    """Call append, append_n or prepend_n."""
    return queue.append(blocks[0]) if verb == "append" else getattr(queue, verb)(blocks)


def number(block: object) -> object:
    """Return the block's number as a plain int; whatever is no block, as it is, marked as such."""
    return int(block.block_id) if isinstance(block, KVCacheBlock) else f"no block: {block!r}"


def numbers(blocks: object) -> object:
    """Return the numbers of a list of blocks; whatever is no list, as it is."""
    return [number(block) for block in blocks] if isinstance(blocks, list) else blocks


def order(queue: Any) -> object:
    """Return the queue as numbers, the next to be reused first."""
    return numbers(queue.get_all_free_blocks())


def expect_queue(lab: LabUnderTest, queue: Any, want: Sequence[int], what: str, why: str = "") -> None:
    """Expect this order, and a count that agrees with it."""
    lab.expect(what, list(want), outcome(order, queue), why)
    lab.expect(f"num_free_blocks, {what}", len(want), queue.num_free_blocks, "the count follows every change")


def expect_looks(lab: LabUnderTest, watch: Watch, limit: int, what: str) -> None:
    """Expect that at most so many different blocks were looked at."""
    if len(watch.seen) > limit:
        lab.fail(f"blocks that {what} looks at", f"at most {limit}", len(watch.seen))


def expect_refusal(
    lab: LabUnderTest,
    queue: Any,
    what: str,
    error: type[KVCacheError],
    method: Callable[..., object],
    *args: object,
    why: str = "",
) -> None:
    """Expect that the call raises the error and leaves queue and count as they were."""
    before, num_before = order(queue), queue.num_free_blocks
    returned = outcome(method, *args)
    if returned != error.__name__:
        if not isinstance(returned, Told):
            given = numbers(returned) if isinstance(returned, list) else returned and number(returned)
            returned = Told(f"no error; it returned {given}")
        lab.fail(what, f"{error.__name__}, and nothing changed", returned, why)
    lab.expect(f"queue after the refused {what}", before, outcome(order, queue), "a refused call has changed nothing")
    lab.expect(f"num_free_blocks after the refused {what}", num_before, queue.num_free_blocks)

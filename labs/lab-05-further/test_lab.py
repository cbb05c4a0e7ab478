"""lab-05, further: the three verbs of a cached block. Read the numbered tests in order.

Contents are letters. The block hash of "c" after "a" and "b" is written "abc"; "?" is a block that is not full. Each
test puts a pool into a state, calls one of your functions, and looks at all there is: what came back, the queue, the
counts, the index, the hashes.
"""

import random
from functools import partial

from mini_kv.course import points
from mini_kv.course.labkit.fixture import InWords, LabUnderTest
from mini_kv.course.labkit.lives import COMES, LEAVES, Step, check_life, random_life, seeds

from .helpers import Desk, RealPool, prefixes

# The biography ------------------------------------------------------------------------------------------------------


@points(2, "take", rule=1, why="the queue is the eviction policy: take only follows its order")
def test_1_new_blocks_come_from_the_front_of_the_queue(lab: LabUnderTest) -> None:
    """Four blocks, none with a hash, ids out of order: two are taken, then none at all."""
    desk = Desk(lab, 4, queue=[3, 1, 4, 2])
    taken = lab.take(desk.pool, 2)
    desk.sees("take(pool, 2)", ([3, 1], taken), queue=[4, 2], counts=[1, 0, 1, 0], index={})
    taken = lab.take(desk.pool, 0)
    desk.sees("take(pool, 0)", ([], taken), queue=[4, 2], counts=[1, 0, 1, 0], index={})


@points(3, "take", rule=2, after="test_1_new_blocks_come_from_the_front_of_the_queue")
def test_2_nothing_leads_to_a_block_that_is_written_anew(lab: LabUnderTest) -> None:
    """Block 3 holds "ab", and no table holds it. It is handed out: a request that asks for "ab" must not find it."""
    desk = Desk(lab, 4, {"A": [1]}, {1: "a", 3: "ab"}, queue=[3, 2, 4])
    taken = lab.take(desk.pool, 2)
    why = 'block 3 is about to be overwritten: neither the index nor the block may still say "ab"'
    desk.sees("take(pool, 2)", ([3, 2], taken), queue=[4], counts=[1, 1, 1, 0], index={"a": [1]}, why_index=why)


@points(3, "give_back", rule=5, why="a block is useless without the blocks before it, so it is reused first")
def test_3_a_table_lines_up_from_its_tail(lab: LabUnderTest) -> None:
    """A leaves with three full blocks. Blocks 2 and 5 have been free for longer."""
    desk = Desk(lab, 5, {"A": [4, 1, 3]}, {4: "a", 1: "ab", 3: "abc", 5: "x"}, queue=[2, 5])
    desk.leave("A")
    index = {"a": [4], "ab": [1], "abc": [3], "x": [5]}
    desk.sees("give_back of [4, 1, 3]", queue=[2, 5, 3, 1, 4], counts=[0] * 5, index=index)


@points(2, "give_back", rule=5, after="test_3_a_table_lines_up_from_its_tail")
def test_4_a_block_without_a_hash_goes_before_all_that_wait(lab: LabUnderTest) -> None:
    """A's last two blocks have no hash, for it stopped too early: no request can ever find them."""
    desk = Desk(lab, 6, {"A": [4, 1, 3, 6]}, {4: "a", 1: "ab", 5: "x"}, queue=[2, 5])
    desk.leave("A")
    index = {"a": [4], "ab": [1], "x": [5]}
    why = "6 and 3 have no hash and go to the front, tail first; 1 and 4 go to the back, tail first"
    desk.sees("give_back of [4, 1, 3, 6]", queue=[6, 3, 2, 5, 1, 4], counts=[0] * 6, index=index, why=why)


@points(2, "give_back", rule=4, after="test_3_a_table_lines_up_from_its_tail")
def test_5_a_shared_block_stays_with_its_other_holder(lab: LabUnderTest) -> None:
    """A, B and C share their first block, A and B the second, too; B leaves, then A."""
    desk = Desk(lab, 5, {"A": [1, 2, 3], "B": [1, 2, 4], "C": [1]}, {1: "a", 2: "ab", 3: "abc", 4: "abe"})
    index = {"a": [1], "ab": [2], "abc": [3], "abe": [4]}
    desk.leave("B")
    why = "B was the only holder of block 4; 1 and 2 are still in use"
    desk.sees("give_back of [1, 2, 4]", queue=[5, 4], counts=[2, 1, 1, 0, 0], index=index, why=why)
    desk.leave("A")
    why = "block 1 is still C's; 3 and 2 were A's alone by now"
    desk.sees("give_back of [1, 2, 3]", queue=[5, 4, 3, 2], counts=[1, 0, 0, 0, 0], index=index, why=why)
    twins = Desk(lab, 3, {"A": [1, 2], "B": [3, 2]}, {3: "a", 1: "a", 2: "ab"})
    twins.leave("A")
    why = "2 is also B's; 1 has a twin, which B's table contains in its place"
    twins.sees("give_back of [1, 2]", queue=[1], counts=[0, 1, 1], index={"a": [3, 1], "ab": [2]}, why=why)


@points(2, "admit", rule=7, why="a block in use can be shared: it costs a reference and no free block")
def test_6_a_block_that_is_held_is_shared(lab: LabUnderTest) -> None:
    """A and B hold "a" and "ab". C wants no block beyond those; D has the same prefix, then one other block."""
    hashes, index = {4: "a", 2: "ab", 1: "abc"}, {"a": [4], "ab": [2], "abc": [1]}
    desk = Desk(lab, 7, {"A": [4, 2], "B": [4, 2, 1]}, hashes, queue=[5, 3, 7, 6])
    table = desk.admit("C", ["a", "ab"], 2)
    counts = [1, 3, 0, 3, 0, 0, 0]
    desk.sees('admit of "ab"', ([4, 2], table), queue=[5, 3, 7, 6], counts=counts, index=index)
    table = desk.admit("D", ["a", "ab", "abx"], 3)
    counts = [1, 4, 0, 4, 1, 0, 0]
    desk.sees('admit of "abx"', ([4, 2, 5], table), queue=[3, 7, 6], counts=counts, index=index)


@points(2, "admit", rule=8, after="test_6_a_block_that_is_held_is_shared")
def test_7_a_block_that_waits_is_revived_where_it_stands(lab: LabUnderTest) -> None:
    """No request holds "a" and "ab", but they are still cached, in the middle of the queue and at its front."""
    hashes = {4: "a", 2: "ab", 5: "x", 1: "xy"}
    desk = Desk(lab, 6, {}, hashes, queue=[2, 3, 4, 1, 5, 6])
    table = desk.admit("A", ["a", "ab"], 3)
    index = {"a": [4], "ab": [2], "x": [5], "xy": [1]}
    why = "4 and 2 are reused with their hashes; 3 is the first block left in the queue"
    desk.sees('admit of "ab?"', ([4, 2, 3], table), queue=[1, 5, 6], counts=[0, 1, 1, 1, 0, 0], index=index, why=why)


@points(2, "admit", rule=5, after="test_7_a_block_that_waits_is_revived_where_it_stands")
def test_8_the_queue_after_each_step(lab: LabUnderTest) -> None:
    """Eight blocks, five requests, nine steps. Write the queues down on paper first; `predict` asks for them."""
    desk = Desk(lab, 8)
    queues: list[tuple[str, object, object, str]] = []

    def step(text: str, want: list[int], why: str = "") -> None:
        queues.append((f"free queue after step {len(queues) + 1}: {text}", want, list(desk.pool.free_queue), why))

    desk.admit("A", [], 4)
    desk.fill("A", "abcd")
    step("A comes with abcd", [5, 6, 7, 8])
    desk.admit("B", prefixes("abx"), 4)
    desk.fill("B", "abx")
    step("B comes with abx?", [7, 8], "1 and 2 are shared; 5 and 6 are new, and 6 is not full")
    desk.leave("A")
    step("A leaves", [7, 8, 4, 3], "1 and 2 are still B's; 4 and 3 line up tail first")
    desk.leave("B")
    step("B leaves", [6, 7, 8, 4, 3, 5, 2, 1], "6 has no hash and goes in front; 5, 2 and 1 line up tail first")
    desk.admit("C", prefixes("abc"), 4)
    step("C comes with abc?", [7, 8, 4, 5], "1, 2 and 3 are revived from where they stand; 6 is the new block")
    desk.admit("D", [], 3)
    step("D comes with mno", [5], "7, 8 and 4 are handed out, and the hash abcd is gone")
    desk.admit("E", prefixes("abcd"), 5)
    step("E comes with abcd?", [5], "abcd is gone, so E needs two new blocks, and there is one: refused")
    desk.leave("C")
    step("C leaves", [6, 5, 3, 2, 1], "6 has no hash and goes in front of 5")
    desk.admit("E", prefixes("abcd"), 5)
    step("E comes again", [], "1, 2 and 3 are revived, 6 and 5 are taken: exactly what is there")
    lab.expect_all(queues)


# The adversary ------------------------------------------------------------------------------------------------------


@points(1, "take", rule=2, stage="adversary", after="test_2_nothing_leads_to_a_block_that_is_written_anew")
def test_a_twin_can_still_be_found(lab: LabUnderTest) -> None:
    """Blocks 3, 1 and 2 all hold "a", 3 for the longest time, and block 4 holds "ab". The twins are handed out."""
    desk = Desk(lab, 4, {}, {3: "a", 1: "a", 2: "a", 4: "ab"}, queue=[2, 1, 3, 4])
    for block_id, bearers in ((2, [3, 1]), (1, [3]), (3, [])):
        taken = lab.take(desk.pool, 1)
        queue = [*reversed(bearers), 4]
        counts = [int(each not in queue) for each in range(1, 5)]
        index = {"a": bearers, "ab": [4]} if bearers else {"ab": [4]}
        why = "a hash leaves the index with its last block, and not before"
        what = f"take of block {block_id}, one of three twins"
        desk.sees(what, ([block_id], taken), queue=queue, counts=counts, index=index, why_index=why)


@points(2, "take", rule=3, stage="adversary", after="test_1_new_blocks_come_from_the_front_of_the_queue")
def test_take_is_all_or_nothing(lab: LabUnderTest) -> None:
    """Three blocks are free. A call for four returns None, then a call for three succeeds."""
    desk = Desk(lab, 4, {"A": [1]}, {1: "a", 4: "x"}, queue=[3, 4, 2])
    taken = lab.take(desk.pool, 4)
    index = {"a": [1], "x": [4]}
    why = "a refused call takes no block and evicts no block"
    desk.sees("take(pool, 4) with 3 free", (None, taken), queue=[3, 4, 2], counts=[1, 0, 0, 0], index=index, why=why)
    taken = lab.take(desk.pool, 3)
    why = "the last free block can be taken too, and a cached block is as free as any"
    desk.sees("take(pool, 3)", ([3, 4, 2], taken), queue=[], counts=[1] * 4, index={"a": [1]}, why=why)


@points(2, "give_back", rule=6, stage="adversary", after="test_3_a_table_lines_up_from_its_tail")
def test_a_mistake_of_the_caller_changes_nothing(lab: LabUnderTest) -> None:
    """One block of a table is not held, the first or the last. Then a table contains a block twice."""
    hashes, index = {1: "a", 2: "ab"}, {"a": [1], "ab": [2]}
    for table in ([3, 1], [1, 3], [1, 2, 1]):
        desk = Desk(lab, 3, {"A": [1, 2], "B": [1]}, hashes)
        what = f"give_back of {table}"
        why = "no table holds block 3" if 3 in table else "no table holds a block twice"
        came = (InWords("ValueError raised"), desk.mistake(table))
        desk.sees(what, came, queue=[3], counts=[2, 1, 0], index=index, why=f"{why}; an error must change nothing")
    desk = Desk(lab, 3, {"A": [1, 2], "B": [1]}, hashes)
    came = (InWords("nothing raised"), desk.mistake([]))
    desk.sees("give_back of []", came, queue=[3], counts=[2, 1, 0], index=index, why="a table may be empty")


@points(3, "admit", rule=7, stage="adversary", after="test_6_a_block_that_is_held_is_shared")
def test_nothing_after_a_gap_is_shared(lab: LabUnderTest) -> None:
    """The hash "ab" is gone and "abc" is still cached. A table that shares it would have a gap."""
    desk = Desk(lab, 5, {}, {1: "a", 3: "abc"}, queue=[2, 4, 5, 3, 1])
    table = desk.admit("A", prefixes("abc"), 4)
    why = 'the table shares from its beginning; the new block for "ab" comes first, and "abc" is computed after it'
    index, counts = {"abc": [3], "a": [1]}, [1, 1, 0, 1, 1]
    desk.sees('admit of "abc?"', ([1, 2, 4, 5], table), queue=[3], counts=counts, index=index, why=why)


@points(2, "admit", rule=9, stage="adversary", after="test_6_a_block_that_is_held_is_shared")
def test_room_is_what_leaves_the_queue(lab: LabUnderTest) -> None:
    """Three known blocks, one of them held. A table of four takes three blocks from the queue. Two are too few."""
    hashes = {1: "a", 2: "ab", 3: "abc"}
    index = {name: [block_id] for block_id, name in hashes.items()}
    tight = Desk(lab, 4, {"A": [1], "B": [4]}, hashes, queue=[2, 3])
    table = tight.admit("C", prefixes("abc"), 4)
    why = "2 and 3 leave the queue as well when they are revived: with the new block, that makes three"
    what = 'admit of "abc?" with 2 free'
    tight.sees(what, (None, table), queue=[2, 3], counts=[1, 0, 0, 1], index=index, why=why)
    roomy = Desk(lab, 4, {"A": [1]}, hashes, queue=[3, 2, 4])
    table = roomy.admit("C", prefixes("abc"), 4)
    why = "1 is in use and needs no room; 2, 3 and 4 are in the queue"
    what = 'admit of "abc?" with 3 free'
    roomy.sees(what, ([1, 2, 3, 4], table), queue=[], counts=[2, 1, 1, 1], index=index, why=why)
    full = Desk(lab, 3, {"A": [1, 2, 3]}, hashes)
    table = full.admit("C", prefixes("abc"), 3)
    why = "A holds all blocks that C needs, so no block leaves the queue"
    full.sees('admit of "abc" with 0 free', ([1, 2, 3], table), queue=[], counts=[2, 2, 2], index=index, why=why)
    table = full.admit("D", [], 0)
    why = "a call for 0 blocks always succeeds: it returns an empty table, not None"
    full.sees("admit of no blocks with 0 free", ([], table), queue=[], counts=[2, 2, 2], index=index, why=why)


@points(1, "admit", rule=10, stage="adversary", after="test_6_a_block_that_is_held_is_shared")
def test_of_twins_the_oldest_is_shared(lab: LabUnderTest) -> None:
    """Blocks 3, 1 and 4 all hold "a", 3 for the longest time. A holds 1. The second block of B's table is new."""
    desk = Desk(lab, 4, {"A": [1]}, {3: "a", 1: "a", 4: "a"}, queue=[4, 3, 2])
    table = desk.admit("B", ["a"], 2)
    why, index = "the oldest for all: requests share one block, and the others can be evicted", {"a": [3, 1]}
    desk.sees('admit of "a?"', ([3, 4], table), queue=[2], counts=[1, 0, 1, 1], index=index, why=why)


# The property -------------------------------------------------------------------------------------------------------


@points(1, "admit", rule=7, stage="property", after="test_8_the_queue_after_each_step")
def test_random_lives_agree_with_the_engines_pool(lab: LabUnderTest) -> None:
    """Forty random lives of ten blocks, each compared step by step with the engine's `BlockPool`."""
    for seed in seeds(40):
        shares = {COMES: 0.6, LEAVES: 0.4}
        life = random_life(random.Random(seed), 20, shares, options={COMES: {"with blocks not full": [0, 1, 2]}})
        check_life(lab, partial(play, lab), life, f"in the life of seed {seed}")


def play(lab: LabUnderTest, life: list[Step]) -> None:
    """Play the steps on the learner's functions and on the real pool, step by step."""
    desk, real = Desk(lab, 10), RealPool(10)
    for step in life:
        hashes = prefixes("".join(map(str, step.tokens)))
        if step.verb == COMES:
            num_blocks = len(hashes) + step.options["with blocks not full"]
            want = real.admit(step.name, hashes[:-1], num_blocks)
            lab.expect(f"table of {step.name} (None: refused)", want, desk.admit(step.name, hashes[:-1], num_blocks))
            if want is not None:
                real.fill(step.name, hashes)
                desk.fill(step.name, hashes[-1])
        elif step.name in real.tables:
            real.leave(step.name)
            desk.leave(step.name)
        lab.expect(f"free queue after: {step}", real.queue, list(desk.pool.free_queue))

"""lab-04, radix: the prefix index as a tree. Read the numbered tests in order.

Tokens are letters. Each test builds a tree by hand or with your `insert`, calls one of your functions, and compares
everything: the result, the ids at each place (by the letters from the root to it), and the form of the tree.
"""

import random
from functools import partial

from mini_kv.course import points
from mini_kv.course.labkit.fixture import InWords, LabUnderTest
from mini_kv.course.labkit.lives import COMES, LEAVES, Step, check_life, random_life, seeds

from .helpers import Desk, Engine, letters

FORK = [("", "ab", [[1], [2]]), ("ab", "cd", [[3], [4]]), ("ab", "xy", [[5], [6]])]
"""Two prompts that differ after their second block: abcd in blocks 1 2 3 4, abxy in 1 2 5 6."""

# The biography ------------------------------------------------------------------------------------------------------


@points(2, "match", rule=1)
def test_1_a_prompt_is_followed_to_its_end(lab: LabUnderTest) -> None:
    """The lookup follows a run to its end, then the child that matches."""
    desk = Desk(lab, nodes=FORK)
    desk.finds("abcd", [1, 2, 3, 4])
    desk.finds("abxy", [1, 2, 5, 6])
    desk.finds("abcdefg", [1, 2, 3, 4], "behind a leaf nothing is cached")
    desk.finds("q", [])


@points(2, "match", rule=2, after="test_1_a_prompt_is_followed_to_its_end")
def test_2_in_the_middle_of_a_run_it_may_part(lab: LabUnderTest) -> None:
    """A run is found up to the first difference, and nothing after it."""
    desk = Desk(lab, nodes=FORK)
    desk.finds("a", [1], "the prompt ends in the middle of a run")
    desk.finds("ab", [1, 2])
    desk.finds("azcd", [1], "the second block differs, and nothing behind a difference is the same")
    desk.finds("acd", [1], "c and d are cached after ab, and the prompt has no b: the first difference ends the search")
    desk.finds("abcq", [1, 2, 3])
    desk.finds("abq", [1, 2], "no branch goes on like this")


@points(2, "match", rule=1, after="test_1_a_prompt_is_followed_to_its_end")
def test_3_only_whole_blocks_are_found(lab: LabUnderTest) -> None:
    """Blocks of three tokens: a block that is not full, or differs in one token, is not found."""
    desk = Desk(lab, 3, [("", "abcdef", [[8], [3]]), ("abcdef", "ghi", [[5]])])
    desk.finds("ab", [])
    desk.finds("abcde", [8], "de fills no block")
    desk.finds("abcdefg", [8, 3])
    desk.finds("abcdqf", [8], "the second block differs in its middle")
    desk.finds("abcdefghi", [8, 3, 5])


@points(2, "insert", rule=4)
def test_4_a_prompt_enters_an_empty_tree(lab: LabUnderTest) -> None:
    """Three blocks of two tokens are one run. Then a prompt with another beginning is inserted."""
    desk = Desk(lab, 2)
    desk.insert("abcdef", [4, 2, 7])
    desk.holds("insert of abcdef", {"ab": [4], "abcd": [2], "abcdef": [7]})
    desk.insert("xyab", [1, 3])
    desk.holds("insert of xyab", {"ab": [4], "abcd": [2], "abcdef": [7], "xy": [1], "xyab": [3]})


@points(2, "insert", rule=4, after="test_4_a_prompt_enters_an_empty_tree")
def test_5_a_longer_prompt_goes_on_where_a_leaf_ends(lab: LabUnderTest) -> None:
    """The tree holds ab. Then abcd is inserted, then abc."""
    desk = Desk(lab, nodes=[("", "ab", [[1], [2]])])
    desk.insert("abcd", [1, 2, 3, 4])
    want = {"a": [1], "ab": [2], "abc": [3], "abcd": [4]}
    desk.holds("insert of abcd", want, "1 and 2 are in the tree already, and are not added twice")
    desk.insert("abc", [1, 2, 3])
    desk.holds("insert of abc", want, "all of it is known")


@points(3, "insert", rule=6, after="test_4_a_prompt_enters_an_empty_tree")
def test_6_a_run_is_cut_where_two_prompts_part(lab: LabUnderTest) -> None:
    """`abxy` differs from `abcd` in the middle of a run. The nodes below the run stay below its end."""
    desk = Desk(lab, nodes=[("", "abcd", [[1], [2], [3], [4]]), ("abcd", "e", [[5]]), ("abcd", "f", [[6]])])
    desk.insert("abxy", [1, 2, 8, 9])
    want = {"a": [1], "ab": [2], "abc": [3], "abcd": [4], "abcde": [5], "abcdf": [6], "abx": [8], "abxy": [9]}
    desk.holds("insert of abxy", want, "e and f follow abcd, as before")


@points(2, "insert", rule=5, after="test_4_a_prompt_enters_an_empty_tree")
def test_7_another_block_with_the_same_content_is_a_twin(lab: LabUnderTest) -> None:
    """The last block of a cached prompt is computed again: block 9 has the content of block 4."""
    desk = Desk(lab, nodes=FORK)
    desk.insert("abcd", [1, 2, 3, 9])
    desk.holds(
        "insert of abcd with 9 for its last block",
        {"a": [1], "ab": [2], "abc": [3], "abcd": [4, 9], "abx": [5], "abxy": [6]},
        "9 comes after 4, the older one; 1, 2 and 3 are in the tree already",
    )


@points(3, "remove", rule=8)
def test_8_a_tail_goes_and_a_node_with_it(lab: LabUnderTest) -> None:
    """y is removed from `abxy`, then x. Their node is removed with x."""
    desk = Desk(lab, nodes=FORK)
    came = desk.remove(6)
    lab.expect("what came of removing block 6", InWords("nothing raised"), came)
    desk.holds("removing 6", {"a": [1], "ab": [2], "abc": [3], "abcd": [4], "abx": [5]})
    desk.remove(5)
    desk.holds("removing 5", {"a": [1], "ab": [2], "abc": [3], "abcd": [4]}, "a node without a run is removed")


@points(2, "remove", rule=8, after="test_8_a_tail_goes_and_a_node_with_it")
def test_9_a_twin_stays(lab: LabUnderTest) -> None:
    """2 and 7 have one content, in the middle of a run: one can be removed, because the other is still before 3."""
    desk = Desk(lab, nodes=[("", "abc", [[1], [2, 7], [3]])])
    came = desk.remove(2)
    lab.expect("what came of removing block 2, a twin", InWords("nothing raised"), came, "7 holds the same")
    desk.holds("removing 2", {"a": [1], "ab": [7], "abc": [3]})


# The adversary ------------------------------------------------------------------------------------------------------


@points(1, "match", rule=3, stage="adversary", after="test_1_a_prompt_is_followed_to_its_end")
def test_of_twins_the_oldest_is_found(lab: LabUnderTest) -> None:
    """`match` returns 5 and 4, the oldest at their places."""
    desk = Desk(lab, nodes=[("", "ab", [[5, 9, 2], [4, 1, 8]])])
    desk.finds("ab", [5, 4], "all requests share the oldest, so the others can be evicted")


@points(1, "match", rule=2, stage="adversary", after="test_3_only_whole_blocks_are_found")
def test_the_same_block_after_another_beginning_is_another_place(lab: LabUnderTest) -> None:
    """`cd` follows `ab`, and another `cd` begins a prompt. These are two blocks with different KV."""
    desk = Desk(lab, 2, [("", "abcd", [[1], [2]]), ("", "cd", [[3]])])
    desk.finds("cdab", [3], "after cd nothing is cached: 1 holds ab at the start of a prompt")
    desk.finds("abcdcd", [1, 2])


@points(2, "insert", rule=7, stage="adversary", after="test_6_a_run_is_cut_where_two_prompts_part")
def test_a_prompt_costs_two_nodes_at_most(lab: LabUnderTest) -> None:
    """Twenty prompts of sixty blocks add at most forty nodes."""
    desk, rng, next_id = Desk(lab), random.Random(4), 1
    for number in range(1, 21):
        prompt = [rng.randrange(1, 3) for _ in range(60)]
        known = lab.match(desk.tree, prompt)
        num_known = len(known) if isinstance(known, list) else 0
        new = list(range(next_id, next_id + 60 - num_known))
        next_id += len(new)
        lab.insert(desk.tree, prompt, [*(known or []), *new])
        few = InWords("at most two per prompt")
        got = few if desk.tree.num_nodes() <= 2 * number else InWords(f"{desk.tree.num_nodes()} after {number} prompts")
        lab.expect("nodes of the tree", few, got, "a run may hold many blocks; a node is for a fork")


@points(1, "insert", rule=5, stage="adversary", after="test_7_another_block_with_the_same_content_is_a_twin")
def test_a_known_id_is_entered_once_even_behind_a_twin(lab: LabUnderTest) -> None:
    """7 is the younger twin of 2, and a longer prompt with 7 is inserted, then one with 2."""
    desk = Desk(lab, nodes=[("", "ab", [[1], [2, 7]])])
    desk.insert("abc", [1, 7, 4])
    desk.holds("insert of abc in blocks 1, 7, 4", {"a": [1], "ab": [2, 7], "abc": [4]}, "7 stands there already")
    desk.insert("abq", [1, 2, 5])
    want = {"a": [1], "ab": [2, 7], "abc": [4], "abq": [5]}
    desk.holds("insert of abq in blocks 1, 2, 5", want, "2 stands there already, in front of 7")


@points(3, "remove", rule=9, stage="adversary", after="test_8_a_tail_goes_and_a_node_with_it")
def test_what_has_something_behind_it_stays(lab: LabUnderTest) -> None:
    """A block in the middle of a run, one at its end with children, and an unknown block cannot be removed."""
    desk = Desk(lab, nodes=FORK)
    want = desk.seen()
    raised = InWords("ValueError raised")
    for block_id, why in ((1, "2 is behind it"), (2, "3 and 5 are behind it"), (3, "4 is behind it"), (8, "")):
        came = desk.remove(block_id)
        lab.expect(f"what came of removing block {block_id}", raised, came, why or "no block 8 is in the tree")
        desk.holds(f"a refusal to remove {block_id}", want, "after an error the tree is unchanged")


@points(1, "remove", rule=8, stage="adversary", after="test_8_a_tail_goes_and_a_node_with_it")
def test_what_went_can_come_again(lab: LabUnderTest) -> None:
    """A leaf is removed block by block. The same prompt is inserted with other blocks, then one that forks earlier."""
    desk = Desk(lab, nodes=FORK)
    for block_id in (4, 3):
        desk.remove(block_id)
    desk.insert("abcd", [1, 2, 7, 8])
    desk.insert("aq", [1, 9])
    want = {"a": [1], "ab": [2], "abc": [7], "abcd": [8], "abx": [5], "abxy": [6], "aq": [9]}
    desk.holds("two removals and two inserts", want)


# The property -------------------------------------------------------------------------------------------------------


@points(1, "remove", rule=1, stage="property", after="test_9_a_twin_stays")
def test_random_lives_find_what_the_chain_finds(lab: LabUnderTest) -> None:
    """In forty random lives of a pool of 13 blocks, the null block included, the tree finds what the chain finds."""
    for seed in seeds(40):
        life = random_life(random.Random(seed), 24, {COMES: 0.6, LEAVES: 0.4}, max_tail=5)
        check_life(lab, partial(play, lab, 1 + seed % 3), life, f"in the life of seed {seed}")


def play(lab: LabUnderTest, block_size: int, life: list[Step]) -> None:
    """Play the steps on the engine, repeat its evictions and entries in the tree, and compare each lookup."""
    desk, engine = Desk(lab, block_size), Engine(13, block_size)
    for step in life:
        if step.verb == LEAVES:
            engine.leave(step.name)
            continue
        prompt = list(step.tokens)
        got = lab.match(desk.tree, prompt)
        lab.expect(f"blocks that {step.name} finds, tokens {letters(prompt)}", engine.finds(prompt), got)
        admitted = engine.admit(step.name, prompt)
        if admitted is None:
            continue
        evicted, table = admitted
        for block_id in evicted:
            lab.remove(desk.tree, block_id)
        lab.insert(desk.tree, prompt[: len(table) * block_size], table)
        lab.expect(f"faults of the tree's form after {step}", [], desk.tree.faults(), rule=10)

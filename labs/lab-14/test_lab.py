"""lab-14: smaller, then a second home. Read the numbered tests in order.

Contents are letters: the content "a" has the bytes b"A". Each test puts a home and a pool into a state, calls one of
your functions, and compares the result, the home in its order, the leases and the blocks.
"""

import random
from functools import partial

from mini_kv.course import points
from mini_kv.course.given.second_home import digest_of
from mini_kv.course.labkit.fixture import InWords, LabUnderTest
from mini_kv.course.labkit.lives import Step, check_life, seeds

from .helpers import Desk, Twin, as_floats, read, rounded, vectors

NOTHING, ERROR = InWords("nothing raised"), InWords("ValueError raised")

# The biography ------------------------------------------------------------------------------------------------------


@points(3, "quantize", rule=1)
def test_1_the_farthest_number_is_127(lab: LabUnderTest) -> None:
    """One step is a hundredth here: 1.27 is 127 steps. Then the farthest number is below zero."""
    numbers, scale = lab.quantize([1.27, -0.6, 0.014, 0.0])
    lab.expect("numbers of [1.27, -0.6, 0.014, 0.0]", [127, -60, 1, 0], numbers)
    lab.expect("scale of [1.27, -0.6, 0.014, 0.0]", 0.01, round(scale, 9))
    numbers, scale = lab.quantize([0.5, -2.54, 1.0])
    lab.expect("numbers of [0.5, -2.54, 1.0]", [25, -127, 50], numbers, "-2.54 is farthest from zero: a step is 0.02")


@points(2, "quantize", rule=1, after="test_1_the_farthest_number_is_127")
def test_2_every_number_comes_back_within_half_a_scale(lab: LabUnderTest) -> None:
    """Forty random vectors, one number in some of them far larger than the rest."""
    for seed in seeds(40):
        [values] = vectors(random.Random(seed), 1, 16)
        values[seed % 16] *= 1 + 30 * (seed % 2)
        numbers, scale = lab.quantize(values)
        back = as_floats((numbers, scale))
        far = [i for i, value in enumerate(values) if abs(value - back[i]) > scale / 2 * (1 + 1e-9)]
        lab.expect(f"places that are off by more than half a scale, seed {seed}", [], far)
        lab.expect(f"numbers outside -127 to 127, seed {seed}", [], [n for n in numbers if not -127 <= n <= 127])
        scale_want = max(map(abs, values)) / 127
        lab.expect(f"scale, seed {seed}", round(scale_want, 9), round(scale, 9), "all 127 steps are used")


@points(4, "attend", rule=2)
def test_3_attention_over_eight_bits(lab: LabUnderTest) -> None:
    """Three tokens of four numbers, all with the same scales."""
    keys = [([127, 0, 0, 0], 0.01), ([0, 127, 0, 0], 0.01), ([0, 0, -127, 0], 0.01)]
    values = [([100, 0], 0.02), ([0, 100], 0.02), ([50, -50], 0.02)]
    query = [1.0, 2.0, 0.5, 3.0]
    got = lab.attend(query, keys, values)
    lab.expect("what the query reads", rounded(read(query, keys, values)), rounded(got))


@points(3, "attend", rule=2, after="test_3_attention_over_eight_bits")
def test_4_each_token_has_scales_of_its_own(lab: LabUnderTest) -> None:
    """One token is a hundred times larger than the others, in its key or in its value."""
    keys = [([100, 20], 0.001), ([10, 100], 0.1), ([-50, 127], 0.01)]
    values = [([127, 1], 1.0), ([1, 127], 0.01), ([64, -64], 0.1)]
    query = [1.0, -0.5]
    got = lab.attend(query, keys, values)
    why = "each token's key is multiplied by its own scale, and its value by its own"
    lab.expect("what the query reads", rounded(read(query, keys, values)), rounded(got), why)


@points(3, "store", rule=4)
def test_5_a_content_comes_in_as_the_last(lab: LabUnderTest) -> None:
    """Store into a home with room. Then store a content that is there: it counts as used and is unchanged."""
    desk = Desk(lab, 4, "ab")
    came = desk.store("c")
    desk.sees('store of "c"', (True, came), home="abc")
    was = desk.home.entries["a"]
    came = desk.store("a")
    desk.sees('store of "a", which is there', (True, came), home="bca", why="it has just been used")
    lab.expect('the entry of "a" is the one that was there', True, desk.home.entries.get("a") is was)


@points(2, "store", rule=5, after="test_5_a_content_comes_in_as_the_last")
def test_6_the_least_recently_used_makes_room(lab: LabUnderTest) -> None:
    """The home is full. b was used least recently, since a was used again."""
    desk = Desk(lab, 3, "bca")
    came = desk.store("d")
    desk.sees('store of "d" in a full home', (True, came), home="cad", why="b was used least recently")


@points(2, "store", rule=5, after="test_6_the_least_recently_used_makes_room")
def test_7_what_is_leased_is_not_pushed_out(lab: LabUnderTest) -> None:
    """a and b are leased, so c is evicted. When all are leased, nothing changes."""
    desk = Desk(lab, 3, "abc", {"a": 1, "b": 2})
    came = desk.store("x")
    desk.sees('store of "x" while a and b are leased', (True, came), home="abx", leases={"a": 1, "b": 2})
    full = Desk(lab, 2, "ab", {"a": 1, "b": 1})
    came = full.store("c")
    why = "a leased content must stay until it is released"
    full.sees('store of "c" while all are leased', (False, came), home="ab", leases={"a": 1, "b": 1}, why=why)


@points(4, "lease", rule=6)
def test_8_a_lease_returns_the_bytes_and_counts(lab: LabUnderTest) -> None:
    """a is leased twice and b once. x is not there."""
    desk = Desk(lab, 3, "abc")
    for key, home, leases in (("a", "bca", {"a": 1}), ("b", "cab", {"a": 1, "b": 1}), ("a", "cba", {"b": 1, "a": 2})):
        came = desk.lease(key)
        desk.sees(f'lease of "{key}"', (key.upper().encode(), came), home=home, leases=leases)
    came = desk.lease("x")
    desk.sees('lease of "x", which is not there', (None, came), home="cba", leases={"b": 1, "a": 2})


@points(3, "lease", rule=7, after="test_8_a_lease_returns_the_bytes_and_counts")
def test_9_damaged_bytes_are_not_there(lab: LabUnderTest) -> None:
    """A bit of b flipped, and a and c were exchanged: each has the other's bytes."""
    desk = Desk(lab, 4, "abcd")
    desk.damage("b", b"C")
    came = desk.lease("b")
    why = "its digest says that these are not the bytes that were stored"
    desk.sees('lease of "b", damaged', (None, came), home="acd", why=why)
    lab.expect("damaged so far", 1, desk.home.num_damaged)
    a, c = desk.home.entries["a"], desk.home.entries["c"]
    a.payload, a.digest, c.payload, c.digest = c.payload, c.digest, a.payload, a.digest
    came = desk.lease("a")
    why = "bytes and digest agree with each other, and not with the key: it is another content"
    desk.sees('lease of "a", which holds what was stored as "c"', (None, came), home="cd", why=why)
    lab.expect("damaged so far", 2, desk.home.num_damaged)


@points(2, "release", rule=8, why="a lease that is never released keeps its content forever")
def test_10_one_lease_ends(lab: LabUnderTest) -> None:
    """a has two leases: after one release it has one, after two it has none. A third release is a mistake."""
    desk = Desk(lab, 2, "ab", {"a": 2})
    for leases in ({"a": 1}, {}):
        came = desk.release("a")
        desk.sees('release of "a"', (NOTHING, came), home="ab", leases=leases)
    for key in ("a", "x"):
        came = desk.release(key)
        desk.sees(f'release of "{key}", which has no lease', (ERROR, came), home="ab")


@points(4, "promote", rule=9, why="a content has one owner: it moves up, and the block's old content moves down")
def test_11_what_comes_up_changes_places_with_what_goes_down(lab: LabUnderTest) -> None:
    """a and b move into blocks 3 and 1, the next two to be allocated. Block 3 held x, block 1 nothing."""
    desk = Desk(lab, 4, "qab", blocks={1: "", 2: "m", 3: "x", 4: "n"}, free=[3, 1, 4])
    came = desk.promote("ab")
    why = "a is in block 3 now and no longer in the home; x went the other way"
    held = {1: "b", 2: "m", 3: "a", 4: "n"}
    desk.sees('promote of "ab"', ([3, 1], came), home="qx", blocks=held, free=[4], why=why)


@points(2, "promote", rule=9, after="test_11_what_comes_up_changes_places_with_what_goes_down")
def test_12_up_to_the_first_that_is_missing(lab: LabUnderTest) -> None:
    """b is missing, so c and d stay in the home. Then the first key is damaged."""
    desk = Desk(lab, 4, "acd", blocks={1: "", 2: "", 3: ""}, free=[1, 2, 3])
    came = desk.promote("abcd")
    why = "a prefix is useful up to its first gap"
    desk.sees('promote of "abcd"', ([1], came), home="cd", blocks={1: "a", 2: "", 3: ""}, free=[2, 3], why=why)
    desk.damage("c")
    came = desk.promote("cd")
    why = "c is damaged, so it is not there; d stays"
    desk.sees('promote of "cd"', ([], came), home="d", blocks={1: "a", 2: "", 3: ""}, free=[2, 3], why=why)


@points(3, "crossover", rule=11, why="reloading has a fixed cost before the first byte")
def test_13_where_reloading_begins_to_pay(lab: LabUnderTest) -> None:
    """A token takes a second to compute and half a second to reload, and asking takes three seconds."""
    got = lab.crossover(1.0, 0.25, 3.0, 2)
    lab.expect("crossover at 1 s, 0.25 s per byte, 3 s, 2 bytes", 7, got, "6 tokens take 6 s either way; 7 take 6.5 s")
    got = lab.crossover(0.001, 1e-9, 0.0301, 100_000)
    lab.expect("crossover at 1 ms, 1 ns per byte, 30.1 ms, 100,000 bytes", 34, got, "0.9 ms are won per token")


# The adversary ------------------------------------------------------------------------------------------------------


@points(2, "quantize", rule=1, stage="adversary", after="test_1_the_farthest_number_is_127")
def test_a_vector_of_zeros(lab: LabUnderTest) -> None:
    """It has no farthest number, and is restored to zeros."""
    numbers, scale = lab.quantize([0.0, 0.0, 0.0])
    lab.expect("numbers of three zeros", [0, 0, 0], numbers)
    lab.expect("scale of three zeros", 0.0, scale, "an empty token must not become NaN")


@points(2, "attend", rule=3, stage="adversary", after="test_3_attention_over_eight_bits")
def test_large_scores_do_not_overflow(lab: LabUnderTest) -> None:
    """Scores of thousands: the largest has weight 1, and no exponential overflows. Then all of them are below zero."""
    keys = [([127, 0], 40.0), ([127, 1], 40.0), ([-127, 0], 40.0)]
    values = [([1, 0], 1.0), ([0, 1], 1.0), ([127, 127], 1.0)]
    query = [3.0, 2.0]
    got = lab.attend(query, keys, values)
    lab.expect("what the query reads", rounded(read(query, keys, values)), rounded(got))
    keys = [([-127, 0], 40.0), ([-127, 1], 40.0)]
    got = lab.attend(query, keys, values[:2])
    why = "all scores are far below zero: the largest one must have the weight 1 before the sum, not 0"
    lab.expect("what the query reads below zero", rounded(read(query, keys, values[:2])), rounded(got), why)


@points(1, "store", rule=4, stage="adversary", after="test_6_the_least_recently_used_makes_room")
def test_a_full_home_has_room_for_what_it_has(lab: LabUnderTest) -> None:
    """The home is full and b is in it: no entry is evicted. Then b is stored with other bytes."""
    desk = Desk(lab, 3, "abc", {"a": 1, "b": 1, "c": 1})
    came = desk.store("b")
    desk.sees('store of "b", which is there', (True, came), home="acb", leases={"a": 1, "c": 1, "b": 1})
    entry = desk.home.entries["b"]
    entry.payload, entry.digest = b"?", digest_of("b", b"?")
    came = desk.store("b")
    why = "what is there stays as it is, and its lease with it"
    desk.sees('store of "b", with other bytes', (True, came), home="acb", leases={"a": 1, "c": 1, "b": 1}, why=why)
    lab.expect('bytes of "b"', b"?", desk.home.entries["b"].payload, why)


@points(1, "lease", rule=7, stage="adversary", after="test_9_damaged_bytes_are_not_there")
def test_what_is_leased_can_be_damaged(lab: LabUnderTest) -> None:
    """a and b are leased when a bit of a flips. Then another request leases a."""
    desk = Desk(lab, 3, "abc", {"a": 1, "b": 1})
    desk.damage("a")
    came = desk.lease("a")
    why = "the bytes were right at the first lease; these are not, and each lease must check"
    desk.sees('lease of "a", damaged since it was leased', (None, came), home="bc", leases={"b": 1}, why=why)
    lab.expect("damaged so far", 1, desk.home.num_damaged)


@points(2, "promote", rule=10, stage="adversary", after="test_11_what_comes_up_changes_places_with_what_goes_down")
def test_what_goes_down_pushes_out_nothing_that_comes_up(lab: LabUnderTest) -> None:
    """The home is full of the wanted contents, and both blocks hold one: x and y take the places of a and b."""
    desk = Desk(lab, 2, "ba", blocks={1: "x", 2: "y"}, free=[1, 2])
    came = desk.promote("ab")
    why = "b is the least recently used: storing x before b is leased evicts b"
    desk.sees('promote of "ab"', ([1, 2], came), home="xy", blocks={1: "a", 2: "b"}, free=[], why=why)


@points(2, "promote", rule=9, stage="adversary", after="test_11_what_comes_up_changes_places_with_what_goes_down")
def test_only_as_many_as_there_are_free_blocks(lab: LabUnderTest) -> None:
    """Three are wanted and one block is free. Then no block is free. No lease is left."""
    desk = Desk(lab, 4, "abc", blocks={1: "", 2: "m"}, free=[1])
    came = desk.promote("abc")
    desk.sees('promote of "abc" with 1 free', ([1], came), home="bc", blocks={1: "a", 2: "m"}, free=[])
    came = desk.promote("bc")
    desk.sees('promote of "bc" with 0 free', ([], came), home="bc", blocks={1: "a", 2: "m"}, free=[])


@points(2, "crossover", rule=11, stage="adversary", after="test_13_where_reloading_begins_to_pay")
def test_where_it_never_pays_and_where_it_always_does(lab: LabUnderTest) -> None:
    """A tier that is slower per token, one that is as fast, and one without a fixed cost."""
    got = lab.crossover(1.0, 0.5, 0.0, 4)
    lab.expect("crossover of a tier that takes 2 s per token where computing takes 1", None, got)
    got = lab.crossover(1.0, 0.5, 3.0, 2)
    lab.expect("crossover of a tier that takes as long per token", None, got, "the fixed cost is never recovered")
    got = lab.crossover(1.0, 0.25, 0.0, 2)
    lab.expect("crossover of a tier that asks nothing beforehand", 1, got)


# The property -------------------------------------------------------------------------------------------------------


@points(1, "release", rule=8, stage="property", after="test_10_one_lease_ends")
def test_random_lives_of_a_home(lab: LabUnderTest) -> None:
    """Forty random sequences on a home for three. Results, order of use and leases equal those of a twin."""
    for seed in seeds(40):
        rng = random.Random(seed)
        life = [Step(rng.choice(["store", "lease", "release"]), rng.choice("abcdef")) for _ in range(24)]
        check_life(lab, partial(play, lab), life, f"in the life of seed {seed}")


def play(lab: LabUnderTest, life: list[Step]) -> None:
    """Play the steps on the learner's functions and on the twin. A release without a lease is left out."""
    desk, twin = Desk(lab, 3), Twin(3)
    for step in life:
        if step.verb == "release":
            if not twin.leases.get(step.name):
                continue
            twin.release(step.name)
            desk.release(step.name)
            want, got = None, None
        else:
            want = getattr(twin, step.verb)(step.name)
            got = getattr(desk, step.verb)(step.name)
        what = f"{step.verb} {step.name}"
        lab.expect(f"what came of {what}", want, got)
        lab.expect(f"home after {what}, least recently used first", twin.order, list(desk.home.entries))
        lab.expect(f"leases after {what}", dict(sorted(twin.leases.items())), dict(sorted(desk.leased().items())))

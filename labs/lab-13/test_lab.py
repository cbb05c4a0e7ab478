"""lab-13: policy arena. Read the numbered tests in order.

Prompts are words, and a letter fills a block: "abc" and "abx" share two. A request is computed and freed before the
next one begins, unless the test says otherwise. `LFU` has an exact contract, so each test knows the victims in their
order. `Hybrid` is your own rule, and it is measured.
"""

import random
from functools import partial

from mini_kv.course import points
from mini_kv.course.labkit.fixture import LabUnderTest
from mini_kv.course.labkit.lives import check_all, seeds

from .helpers import Cache, LFUCache, SlowLFU, board, drawn

# The biography ------------------------------------------------------------------------------------------------------


@points(3, "LFU.enter", rule=4, why="of equals, the block freed first is evicted first: in a prompt, its tail")
def test_1_equals_go_in_the_order_in_which_they_came(lab: LabUnderTest) -> None:
    """Two words, each used once. The tail of a prompt enters before its head."""
    cache = LFUCache(lab, 6)
    cache.send("abc xyz")
    cache.expect("who goes after abc and xyz", "cbazyx", cache.victims())


@points(3, "LFU.record_hit", rule=2)
def test_2_what_was_found_again_outlives_what_was_not(lab: LabUnderTest) -> None:
    """a is used three times, b twice, c once. Then a word of two letters is found, with both its blocks."""
    cache = LFUCache(lab, 3)
    found = cache.send("a a a b b c")
    cache.expect("letters found of a, a, a, b, b, c", [0, 1, 1, 0, 1, 0], found)
    cache.expect("who goes after a, a, a, b, b, c", "cba", cache.victims())
    cache = LFUCache(lab, 3)
    cache.send("ab ab ab c c")
    why = "a hit of ab is a use of a and of b"
    cache.expect("who goes first after ab three times and c twice", "c", cache.victims(1), why)


@points(3, "LFU.leave", rule=5, why="a block enters again when no request holds it")
def test_3_a_block_that_is_held_is_no_victim(lab: LabUnderTest) -> None:
    """abc waits. ab is found and keeps running. Only c, x and y can be evicted until ab is freed."""
    cache = LFUCache(lab, 6)
    cache.send("abc xy")
    cache.expect("letters found of ab", 2, cache.come("ab"))
    cache.expect("who goes while ab is held, in the order of the alphabet", list("cxy"), sorted(cache.victims(3)))
    cache.go("ab")
    cache.expect("who goes when ab has left, in the order of the alphabet", list("ab"), sorted(cache.victims(2)))


@points(3, "LFU.victim", rule=6, why="the block with the least worth is evicted, not the one that became free first")
def test_4_popularity_beats_age_in_the_queue(lab: LabUnderTest) -> None:
    """There is room for two letters. a is used twice, then b once, and c needs room."""
    cache = LFUCache(lab, 2)
    found = cache.send("a a b c a")
    cache.expect(
        "letters found of a, a, b, c, a", [0, 1, 0, 0, 1], found, "c takes the block of b, which was used once"
    )


@points(3, "LFU.record_miss", rule=1)
def test_5_a_block_forgets_what_stood_in_it(lab: LabUnderTest) -> None:
    """b is used three times and evicted. d gets its block and starts with one use."""
    cache = LFUCache(lab, 2)
    cache.send("a a a a a a a b b b c d e")
    why = "d was in the block that b had left; it has one use, and not four, so it went for e"
    cache.expect("letters found of a, used seven times, after b, b, b, c, d, e", [1], cache.send("a"), why)


@points(5, "LFU.victim", rule=7)
def test_6_what_was_popular_once_does_not_stay_for_ever(lab: LabUnderTest) -> None:
    """a was used four times and never again. Then new letters are used, each once. After how many is a evicted?"""
    cache = LFUCache(lab, 2)
    cache.send("a a a b b b c")
    why = "c evicted a letter of worth 3: the age is 3, and c is worth 4"
    cache.expect("who goes last after a, a, a, b, b, b, c", "c", cache.victims()[-1:], why)
    cache = LFUCache(lab, 2)
    cache.send("a a a a")
    found = []
    for letter in "bcdefgh":
        cache.send(letter)
        found.append("a" in cache.kept())
    del found[4]  # f finds a and e equal: the first test's rule
    why = "b is worth 1. c evicts b: the age is 1, c is worth 2. d evicts c: age 2, worth 3. e evicts d: age 3, worth 4"
    cache.expect("whether a is still cached after b, c, d, e, g, h", [True] * 4 + [False] * 2, found, why)


@points(3, "LFU.record_hit", rule=2)
def test_7_a_use_now_is_worth_more_than_a_use_then(lab: LabUnderTest) -> None:
    """The cache has aged. A letter is found again: all its uses are added to the age of now."""
    cache = LFUCache(lab, 2)
    cache.send("a a a a b c d a d d d")
    why = "the age is 2: a was used five times and is worth 7, d was used four times and is worth 6"
    cache.expect("who goes first after a, a, a, a, b, c, d, a, d, d, d", "d", cache.victims(1), why)
    cache = LFUCache(lab, 3)
    cache.send("b b b a a a a a a a a a c c c c d d")
    why = "d evicted b, which was worth 3; found at age 3, d is worth 3 + 2, and c is worth 4"
    cache.expect("who goes first of a, used nine times, c four times and d twice, later", "c", cache.victims(1), why)


@points(3, "LFU.enter", rule=4, why="a block that is freed again is evicted after its equals")
def test_8_who_comes_back_waits_behind_its_equals(lab: LabUnderTest) -> None:
    """a, b and c are used once. A second request holds a, while b and c are used again."""
    cache = LFUCache(lab, 4)
    cache.send("a b c")
    cache.come("a")
    cache.send("b c")
    cache.go("a")
    cache.expect("who goes: each was used twice", "bca", cache.victims())


# The adversary ------------------------------------------------------------------------------------------------------


@points(1, "LFU.record_hit", rule=2, stage="adversary")
def test_a_block_that_is_held_can_be_found(lab: LabUnderTest) -> None:
    """ab and ac find a, which is still held. d is used twice before the three are freed."""
    cache = LFUCache(lab, 8)
    cache.come("a")
    cache.expect("letters found of ab and ac while a is held", [1, 1], [cache.come("ab"), cache.come("ac")])
    cache.send("d d")
    for word in ("a", "ab", "ac"):
        cache.go(word)
    cache.expect("who goes last: a was used three times, d twice", "a", cache.victims()[-1:])


@points(1, "LFU.leave", rule=4, stage="adversary", why="an entry made before the block's last `leave` is not valid")
def test_a_block_that_left_and_came_back_goes_once(lab: LabUnderTest) -> None:
    """a is found twice and b once. Each block is evicted once, the least used first."""
    cache = LFUCache(lab, 4)
    cache.send("a b a b a c")
    cache.expect("who goes", "cba", cache.victims())


@points(1, "LFU.victim", rule=7, stage="adversary")
def test_several_victims_in_one_call(lab: LabUnderTest) -> None:
    """xy needs two blocks: a, worth 1, and b, worth 3, are evicted in one call. Then xy is found once more."""
    cache = LFUCache(lab, 3)
    cache.send("a b b b d d d d xy xy")
    why = "the age is 3 after both: x and y are worth 3 + 2, and d is worth 4"
    cache.expect("who goes first after a, b three times, d four times, xy twice", "d", cache.victims(1), why)


@points(1, "LFU.record_miss", rule=3, stage="adversary")
def test_worth_is_of_the_last_use(lab: LabUnderTest) -> None:
    """a is computed, and held while others are evicted. When it is freed, the age has grown, its worth has not."""
    cache = LFUCache(lab, 3)
    cache.come("a")
    cache.send("c d e f")
    cache.go("a")
    cache.expect("who goes first", "a", cache.victims(1))


@points(1, "LFU.record_miss", rule=1, stage="adversary")
def test_what_was_computed_has_been_used_once(lab: LabUnderTest) -> None:
    """a has three uses and waits last. c is computed in a cache that has aged, and found once."""
    cache = LFUCache(lab, 3)
    cache.send("a a")
    cache.come("a")
    cache.send("b b c c")
    cache.go("a")
    why = "c evicted b at worth 2, so it was worth 3 when it was computed, and 4 when it was found; a is worth 3"
    cache.expect("who goes first, a used three times or c computed and found", "a", cache.victims(1), why)


@points(4, "LFU.victim", rule=6, stage="property", why="compared with the contract, written down with plain lists")
def test_random_lives_of_lfu(lab: LabUnderTest) -> None:
    """Forty words, sixty times: compare the letters found of each word with a slow LFU."""
    for num_blocks in (4, 6, 8):
        lives = [random_words(random.Random(f"{num_blocks} {seed}")) for seed in seeds(20)]
        check_all(partial(lfu_life, lab, num_blocks), lives)


def random_words(rng: random.Random) -> list[str]:
    """Return forty words, many of which begin alike."""
    return ["".join(rng.choice("ab" if place else "abcd") for place in range(rng.randrange(1, 5))) for _ in range(40)]


def lfu_life(lab: LabUnderTest, num_blocks: int, words: list[str]) -> None:
    """Send the words to the learner's cache and to the slow one."""
    cache, slow = Cache(lab, lab.LFU, num_blocks), SlowLFU(num_blocks)
    for number, word in enumerate(words):
        want, evicted = slow.send(word)
        before = f" after {' '.join(words[:number])}" if number else ""
        what = f"letters found of {word}{before}, with room for {num_blocks} letters"
        lab.expect(what, [want], cache.send(word), why=f"evicted for it: {evicted or 'none'}")


# Yours --------------------------------------------------------------------------------------------------------------


@points(3, "Hybrid.victim", rule=8, stage="adversary")
def test_hybrid_is_sound(lab: LabUnderTest) -> None:
    """Random calls: victims are waiting blocks, each is evicted in the end, and the engine's invariants hold."""
    for seed in seeds(6):
        rng = random.Random(seed)
        cache = Cache(lab, lab.Hybrid, rng.randrange(20, 30))
        for _ in range(300):
            word = "".join(rng.choice("aab" if place else "abcd") for place in range(rng.randrange(1, 6)))
            if word in cache.running:
                cache.go(word)
            elif len(cache.running) < 3:
                cache.come(word)
        for word in list(cache.running):
            cache.go(word)
        waiting = cache.kv.block_pool.free_block_queue.num_free_blocks
        cached = sum(block.block_hash is not None for block in cache.kv.block_pool.blocks)
        lab.expect("blocks that wait when no request is left", len(cache.kv.block_pool.blocks) - 1, waiting)
        lab.expect("victims until none waits", cached, len(cache.victims()))


@points(2, "Hybrid.victim", rule=9, stage="property", why="same calls, same victims: no clock, no random, no set order")
def test_hybrid_does_the_same_again(lab: LabUnderTest) -> None:
    """The same words twice, in two caches with other block objects. Then with other letters in place of these."""
    rng = random.Random(7)
    words = " ".join("".join(rng.choice("abcd") for _ in range(rng.randrange(1, 6))) for _ in range(300))
    runs = []
    for letters in ("abcd", "abcd", "wxyz"):
        cache = Cache(lab, lab.Hybrid, 24)
        found = cache.send(words.translate(str.maketrans("abcd", letters)))
        runs.append([*map(str, found), cache.victims().translate(str.maketrans(letters, "abcd"))])
    lab.expect("the second run", runs[0], runs[1])
    lab.expect("the run with w, x, y, z for a, b, c, d", runs[0], runs[2], "a block hash says what is equal, no more")


@points(4, "Hybrid.victim", rule=10, stage="adversary", why="on which of the six is the ceiling far above LRU?")
def test_hybrid_beats_lru_on_a_workload(lab: LabUnderTest) -> None:
    """The board has six workloads, with the hit rates of LRU and of the ceiling."""
    beats_lru(lab, 1)


@points(6, "Hybrid.victim", rule=10, stage="adversary", why="which of the six workloads suit your rule?")
def test_hybrid_beats_lru_on_two_workloads(lab: LabUnderTest) -> None:
    """The same board. What helps on one workload often costs on another."""
    beats_lru(lab, 2)


def beats_lru(lab: LabUnderTest, number: int) -> None:
    """Play the board, and fail unless this many of its rows are won."""
    rows = board(lab, lab.Hybrid)
    for line in drawn(rows):
        lab.note(line)
    for row in rows:
        if row.yours > row.best + 1e-9:
            why = "no policy passes the ceiling"
            lab.fail(f"words found of {row.name}", f"at most {row.best:.1f} of 100", f"{row.yours:.1f}", why)
    won = [row.name for row in rows if row.yours > row.lru]
    if len(won) < number:
        what = f"workloads on which Hybrid finds more than LRU: {', '.join(won) or 'none'}"
        why = "LRU is good where what was used last is used next"
        lab.fail(what, f"{number} or more", len(won), why, drawn(rows))

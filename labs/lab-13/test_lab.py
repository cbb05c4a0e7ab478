"""lab-13: policy arena. Read the numbered tests in order.

Prompts are words, and a letter fills a block; "abc" and "abx" share two. A request comes, is computed and leaves before
the next one comes, unless the test says otherwise. `LFU` has an exact contract: each test knows who goes, and in which
order. `Hybrid` is yours: it has to be sound, and it is measured.
"""

import random
from functools import partial

from mini_kv.labkit import points
from mini_kv.labkit.fixture import LabUnderTest
from mini_kv.labkit.lives import check_all, seeds

from .helpers import Cache, SlowLFU, board, drawn, expect_also_in_the_long_run

# The biography ------------------------------------------------------------------------------------------------------


@points(3, "LFU.enter", why="of equals, the first that came to wait goes first: in a prompt, that is its tail")
def test_1_equals_go_in_the_order_in_which_they_came(lab: LabUnderTest) -> None:
    """Two words, each used once. The tail of a prompt comes to wait before its head."""
    cache = Cache(lab, lab.LFU, 6)
    cache.send("abc xyz")
    expect_also_in_the_long_run(lab, ("who goes after abc and xyz", "cbazyx", cache.victims(), ""))


@points(3, "LFU.record_hit", why="two uses are worth more than one")
def test_2_what_was_found_again_outlives_what_was_not(lab: LabUnderTest) -> None:
    """The first two letters of abc are used again, by abg."""
    cache = Cache(lab, lab.LFU, 8)
    found = cache.send("abc xyz abg")
    expect_also_in_the_long_run(
        lab,
        ("letters found of abc, xyz, abg", [0, 0, 2], found, ""),
        ("who goes after abc, xyz and abg", "czyxgba", cache.victims(), ""),
    )


@points(3, "LFU.leave", why="it left the waiting blocks when it was found, and waits anew when it is free again")
def test_3_a_block_that_is_held_is_no_victim(lab: LabUnderTest) -> None:
    """abc waits; ab comes back and stays. Two blocks are needed, then abc's rest is all that waits."""
    cache = Cache(lab, lab.LFU, 6)
    cache.send("abc xy")
    lab.expect("letters found of ab", 2, cache.come("ab"))
    meanwhile = cache.victims(3)
    cache.go("ab")
    expect_also_in_the_long_run(
        lab,
        ("who goes while ab is held", "cyx", meanwhile, ""),
        ("who goes when ab has left", "ba", cache.victims(2), ""),
    )


@points(3, "LFU.victim", why="the least worth goes, not the one that has waited longest")
def test_4_popularity_beats_age_in_the_queue(lab: LabUnderTest) -> None:
    """a is used three times, then b, c and d once each, later."""
    cache = Cache(lab, lab.LFU, 4)
    cache.send("a a a b c d")
    found = cache.send("e a")
    expect_also_in_the_long_run(
        lab,
        ("letters found of e and a", [0, 1], found, "e takes the block of b, which was used once"),
        ("who goes", "cdea", cache.victims(), ""),
    )


@points(4, "LFU.record_miss", why="a new content begins with one use, whatever stood in the block before")
def test_5_a_block_forgets_what_stood_in_it(lab: LabUnderTest) -> None:
    """One block for letters: a is used five times, evicted by b; b is no favourite."""
    cache = Cache(lab, lab.LFU, 2)
    cache.send("a a a a a b")
    lab.expect("who goes first after five times a, and b", "b", cache.victims(1))
    cache = Cache(lab, lab.LFU, 2)
    cache.send("aa aa aa xy")
    row = ("letters found of aa, after xy took all there is", [0], cache.send("aa"), "")
    expect_also_in_the_long_run(lab, row)


@points(5, "LFU.victim", why="the cache grows as old as its last victim was worth; newcomers start from there")
def test_6_what_was_popular_once_does_not_stay_for_ever(lab: LabUnderTest) -> None:
    """a was used four times and never again. Letters come and go, each once: after how many is a gone?"""
    cache = Cache(lab, lab.LFU, 2)
    cache.send("a a a a")
    found = []
    for letter in "bcdefgh":
        cache.send(letter)
        kept = [b.block_hash for b in cache.kv.block_pool.blocks if b.block_hash is not None]
        found.append("a" in [cache._letters[key] for key in kept])
    lab.expect("whether a is still cached after b, c, d, e, f, g, h", [True] * 4 + [False] * 3, found)


@points(3, "LFU.record_hit", why="worth is uses on top of the age at the last use")
def test_7_a_use_now_is_worth_more_than_a_use_then(lab: LabUnderTest) -> None:
    """a was used twice at the beginning, b twice just now; f and g were used once, in between. The cache has aged."""
    cache = Cache(lab, lab.LFU, 4)
    cache.send("a a c d e f g b b")
    why = "c, d and e went first, and since then the cache's age is 1: f and g are worth 2, like a, and b is worth 3"
    lab.expect("who goes", "afgb", cache.victims(), why)


@points(3, "LFU.enter", why="who comes back to wait stands behind its equals")
def test_8_who_comes_back_waits_behind_its_equals(lab: LabUnderTest) -> None:
    """a, b, c are used once; a is held for a while by two requests, which leave."""
    cache = Cache(lab, lab.LFU, 4)
    cache.send("a b c")
    cache.come("a")
    cache.send("b c")
    cache.go("a")
    lab.expect("who goes: each was used twice", "bca", cache.victims())


# The adversary ------------------------------------------------------------------------------------------------------


@points(1, "LFU.record_hit", stage="adversary", why="found is found: a block that is held has one use more, too")
def test_a_block_that_is_held_can_be_found(lab: LabUnderTest) -> None:
    """abc finds the letters of ab, which has not left yet. d was used twice before those two leave."""
    cache = Cache(lab, lab.LFU, 8)
    cache.come("ab")
    lab.expect("letters found of abc while ab is held", 2, cache.come("abc"))
    cache.send("d d")
    cache.go("ab")
    cache.go("abc")
    lab.expect("who goes: a, b and d were used twice", "cdba", cache.victims())


@points(1, "LFU.leave", stage="adversary", why="an old entry of a block that was held since is no entry")
def test_a_block_that_left_and_came_back_goes_once(lab: LabUnderTest) -> None:
    """a comes back three times; who is evicted is evicted once, and in the order of its last wait."""
    cache = Cache(lab, lab.LFU, 5)
    cache.send("a b a b a c d")
    lab.expect("who goes", "cdba", cache.victims())


@points(1, "LFU.victim", stage="adversary", why="each victim makes the cache older, also within one call")
def test_several_victims_in_one_call(lab: LabUnderTest) -> None:
    """Five letters wait; a word of four pushes four of them out at once, then the rest is compared."""
    cache = Cache(lab, lab.LFU, 5)
    cache.send("ab ab c d e wxyz")
    lab.expect("letters found of ab and wxyz", [1, 3], cache.send("ab wxyz"), why="c, d, e and b went for wxyz")


@points(1, "LFU.record_miss", stage="adversary", why="worth is made when a block is used, not when it comes to wait")
def test_worth_is_of_the_last_use(lab: LabUnderTest) -> None:
    """ab is computed, and held while others are evicted; when it leaves, the cache has grown older, and ab has not."""
    cache = Cache(lab, lab.LFU, 4)
    cache.come("ab")
    cache.send("c d e f")
    cache.go("ab")
    lab.expect("who goes", "baf", cache.victims())


@points(4, "LFU.victim", stage="property", why="compared with the contract, written down with plain lists")
def test_random_lives_of_lfu(lab: LabUnderTest) -> None:
    """Forty words, sixty times: which letters are found of each word, beside a slow LFU."""
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


@points(3, "Hybrid.victim", stage="adversary", why="whatever your rule is: each waiting block can be chosen, and once")
def test_hybrid_is_sound(lab: LabUnderTest) -> None:
    """Random lives: victims are waiting blocks, all of them come in the end, and the engine's invariants hold."""
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


@points(2, "Hybrid.victim", stage="property", why="replay: no clock, no chance, no order of a set")
def test_hybrid_does_the_same_again(lab: LabUnderTest) -> None:
    """The same words twice, in two caches whose blocks are other objects."""
    rng = random.Random(7)
    words = " ".join("".join(rng.choice("abcd") for _ in range(rng.randrange(1, 6))) for _ in range(300))
    runs = []
    for _ in range(2):
        cache = Cache(lab, lab.Hybrid, 24)
        runs.append([str(cache.send(words)), cache.victims()])
    lab.expect("the second run", runs[0], runs[1])


@points(4, "Hybrid.victim", stage="adversary", why="on which of the five is the ceiling far above LRU?")
def test_hybrid_beats_lru_on_a_workload(lab: LabUnderTest) -> None:
    """The board: five workloads, LRU beside it, and the ceiling that no policy passes."""
    beats_lru(lab, 1)


@points(
    6, "Hybrid.victim", stage="adversary", why="which of the five can your rule not be good at, and which three can it?"
)
def test_hybrid_beats_lru_on_three_workloads(lab: LabUnderTest) -> None:
    """The same board. No simple rule wins three: what helps on one costs on another."""
    beats_lru(lab, 3)


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

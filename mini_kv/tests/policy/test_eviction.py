"""Eviction policies: exact victims in small stories, slow twins on random lives, and the ceiling by brute force.

A prompt is a word: each letter is the content of a block, and a last token of its own makes the whole word findable.
"""

import random
import re
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import count
from pathlib import Path

import pytest

from mini_kv.core.block import BlockHash, BlockHashWithGroupId, KVCacheBlock
from mini_kv.core.block_hash import make_block_hash_with_group_id
from mini_kv.core.errors import BlockStateError, ConfigError, OutOfBlocksError
from mini_kv.core.invariants import check_invariants
from mini_kv.core.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, SlidingWindowSpec
from mini_kv.core.kv_cache_manager import KVCacheManager
from mini_kv.core.request import Request
from mini_kv.policy.belady import belady
from mini_kv.policy.catalogue import POLICIES, HeadFirst, find_policy
from mini_kv.policy.eviction import EvictionPolicy, Policy, parts_of
from mini_kv.policy.ranked import FIFO, LFU, LeafFirst, LFUWithoutAgeing, SeenTwice
from mini_kv.policy.recent_then_used import RecentThenUsed
from mini_kv.policy.sieve import Sieve
from mini_kv.tests.policy.slow_policies import TWINS

FULL = FullAttentionSpec(block_size=2)
WINDOW = SlidingWindowSpec(block_size=2, sliding_window=4)
ALL = list(POLICIES)


class Cache:
    """A cache with room for `num_blocks` letters beside the last token's block, that tells each word's hits."""

    def __init__(self, policy: Policy, num_blocks: int, *specs: FullAttentionSpec | SlidingWindowSpec) -> None:
        groups = tuple(KVCacheGroupSpec((f"layer {i}",), spec) for i, spec in enumerate(specs or (FULL,)))
        self.kv = KVCacheManager(KVCacheConfig(num_blocks + 2, groups), parts=parts_of(policy))
        self.running: list[Request] = []
        self._letters: dict[BlockHashWithGroupId, str] = {}
        self._numbers = count()

    def admit(self, word: str) -> int | None:
        """Compute a word and hold its blocks; return how many letters were hit, `None` if there was no room."""
        tokens = [token for letter in word for token in (ord(letter), ord(letter))] + [0]
        request = self.kv.new_request(f"{word} {next(self._numbers)}", tokens)
        for letter, block_hash in zip(word, request.block_hashes, strict=True):
            self._letters[make_block_hash_with_group_id(block_hash, 0)] = letter
        blocks, num_hits = self.kv.get_computed_blocks(request)
        if self.kv.allocate_slots(request, len(tokens) - num_hits, num_hits, blocks) is None:
            return None
        request.num_computed_tokens = len(tokens)
        self.running.append(request)
        return num_hits // 2

    def end(self, index: int = 0) -> None:
        """End a running request."""
        self.kv.free(self.running.pop(index))

    def send(self, word: str) -> int | None:
        """Compute a word and end it; return how many letters were hit."""
        num_hits = self.admit(word)
        if num_hits is not None:
            self.end(-1)
        return num_hits

    def kept(self) -> str:
        """Return the letters that wait with a block hash, the next victim first."""
        queue = self.kv.block_pool.free_block_queue.get_all_free_blocks()
        return "".join(self._letters[block.block_hash] for block in queue if block.block_hash is not None)


def after(policy: Policy, num_blocks: int, words: str) -> str:
    """Return the letters that are kept after these words, the next victim first."""
    cache = Cache(policy, num_blocks)
    for word in words.split():
        cache.send(word)
    return cache.kept()


STORIES = {
    # room for three letters: a is used twice, then strangers come; b comes back late or never
    "lru": ("cde", "bde", "ade", "xbade"),
    "lru-head-first": ("cde", "bde", "cde", "yabde"),
    "fifo": ("cde", "cde", "ade", "ayxde"),
    "lfu": ("ade", "bde", "ade", "xbade"),
    "seen-twice": ("dea", "eab", "ade", "xdeba"),
    "leaf-first": ("cde", "bde", "ade", "bxade"),
    "sieve": ("dea", "bde", "ade", "xdeba"),
    "hybrid": ("cde", "bde", "ade", "xbade"),
}


@pytest.mark.parametrize("name", ALL)
def test_who_is_left_after_these_words(name: str) -> None:
    """One letter used twice, one that comes back, a word that loses its tail, a word shared in part: who is left."""
    policy = POLICIES[name]
    assert STORIES[name] == (
        after(policy, 3, "a b a c d e"),
        after(policy, 3, "a b a c b d e"),
        after(policy, 3, "abc d e"),
        after(policy, 5, "abc xy ab d e"),
    )


def test_a_head_that_goes_before_its_tail_takes_it_along() -> None:
    """After `abc d e` with room for three, tail first still finds a; head first keeps c, which cannot be found."""
    for policy, hits in ((POLICIES["lru"], 1), (HeadFirst, 0)):
        cache = Cache(policy, 3)
        assert [cache.send(word) for word in ("abc", "d", "e", "abc")] == [0, 0, 0, hits]


@pytest.mark.parametrize("name", ALL)
def test_a_held_block_is_never_a_victim(name: str) -> None:
    """With `ab` running in a pool of four letters, strangers come and go, and a prompt without room is told so."""
    cache = Cache(POLICIES[name], 5)
    cache.admit("ab")
    assert [cache.send(word) for word in ("cd", "ef", "abg", "cdef", "ab")] == [0, 0, 2, None, 2]
    cache.end()
    assert cache.send("ab") == 2


@pytest.mark.parametrize("name", ALL)
def test_an_abandoned_or_misused_queue_stays_as_it_was(name: str) -> None:
    """Too many at once, a block that waits already, one that does not wait: an error that names it, nothing changed."""
    blocks = [KVCacheBlock(i) for i in range(1, 5)]
    queue = POLICIES[name](blocks)
    with pytest.raises(OutOfBlocksError):
        queue.popleft_n(5)
    taken = queue.popleft_n(2)
    for block in taken:
        block.block_hash = BlockHashWithGroupId(bytes([block.block_id]))
    queue.append_n(taken[:1])
    with pytest.raises(BlockStateError, match="block 1 is in the free queue already"):
        queue.append_n(taken)
    with pytest.raises(BlockStateError, match="block 2 is not in the free queue"):
        queue.remove(taken[1])
    assert [block.block_id for block in queue.get_all_free_blocks()] == [3, 4, 1]
    assert queue.num_free_blocks == 3


def lives(cache: Cache, rng: random.Random, num_steps: int) -> Iterator[int | None]:
    """Yield the hits of random words; requests overlap, keys are dropped, the cache is reset."""
    for _ in range(num_steps):
        draw = rng.random()
        if draw < 0.45:
            stem = rng.choice(("abcd", "abxy", "q"))
            yield cache.admit(stem[: rng.randint(1, 4)] + "".join(rng.choices("mno", k=rng.randint(0, 2))))
        elif draw < 0.9:
            if cache.running:
                cache.end(rng.randrange(len(cache.running)))
        elif draw < 0.97:
            cache.kv.evict_blocks([rng.randrange(1, len(cache.kv.block_pool.blocks))])
        else:
            cache.kv.reset_prefix_cache()


@pytest.mark.slow
@pytest.mark.parametrize("specs", [(FULL,), (FULL, WINDOW)], ids=["one group", "with a window"])
@pytest.mark.parametrize("name", ALL)
def test_on_random_lives_nothing_is_lost_and_the_next_victims_are_foretold(
    name: str, specs: tuple[FullAttentionSpec | SlidingWindowSpec, ...]
) -> None:
    """After each step the invariants hold; blocks taken are those that `get_all_free_blocks` had in front."""
    for seed in range(4):
        cache = Cache(POLICIES[name], 9, *specs)
        for _ in lives(cache, random.Random(seed), 150):
            check_invariants(cache.kv)
        while cache.running:
            cache.end()
        queue = cache.kv.block_pool.free_block_queue
        foretold = queue.get_all_free_blocks()
        assert [queue.popleft_n(1)[0] for _ in foretold] == foretold
        assert sorted(block.block_id for block in foretold) == list(range(1, len(cache.kv.block_pool.blocks)))


@pytest.mark.slow
@pytest.mark.parametrize("name", TWINS)
def test_a_policy_equals_its_slow_twin_on_random_lives(name: str) -> None:
    """The twin reads every answer out of a list of all that happened: same hits, same order of the queue throughout."""
    fast, slow = TWINS[name]
    for seed in range(10):
        one, other = Cache(fast, 9), Cache(slow, 9)
        steps = zip(lives(one, random.Random(seed), 150), lives(other, random.Random(seed), 150), strict=True)
        for hits, expected in steps:
            assert hits == expected
            assert ids(one) == ids(other)


def ids(cache: Cache) -> list[int]:
    return [block.block_id for block in cache.kv.block_pool.free_block_queue.get_all_free_blocks()]


def test_the_same_calls_give_the_same_victims() -> None:
    """A policy counts and has no clock and no dice: a life played twice leaves the same queue."""
    for policy in POLICIES.values():
        queues = []
        for _ in range(2):
            cache = Cache(policy, 9)
            for _ in lives(cache, random.Random(5), 300):
                pass
            queues.append(ids(cache))
        assert queues[0] == queues[1]


def test_who_returns_before_a_pool_of_others_has_gone_was_seen_twice() -> None:
    """Room for three letters, so four ghosts at most: a is remembered while it is among the last four evicted."""
    assert after(SeenTwice, 3, "a b c d e a f g h i") == "hia"  # evicted before a returned: a, b
    assert after(SeenTwice, 3, "a b c d e f g h a i j k") == "ijk"  # a, b, c, d, e: a is forgotten


class Told(EvictionPolicy):
    """Evicts what a script says, by place in the queue, so that every choice can be tried."""

    def __init__(self, blocks: Sequence[KVCacheBlock], script: Sequence[int]) -> None:
        self._queue: list[KVCacheBlock] = []
        self.script = script
        self.num_choices: list[int] = []
        super().__init__(blocks)

    def enter(self, block: KVCacheBlock) -> None:
        self._queue.append(block)

    def leave(self, block: KVCacheBlock) -> None:
        self._queue.remove(block)

    def victim(self) -> KVCacheBlock:
        choice = self.script[len(self.num_choices)] if len(self.num_choices) < len(self.script) else 0
        self.num_choices.append(len(self._queue))
        return self._queue.pop(choice)

    def in_order(self) -> list[KVCacheBlock]:
        return list(self._queue)


def best_by_brute_force(words: list[str], num_blocks: int) -> int:
    """Return the most hits that any choice of victims gives: every choice is tried, one after another."""
    best, script = 0, list[int]()
    while True:
        cache = Cache(partial(Told, script=tuple(script)), num_blocks)
        best = max(best, sum(cache.send(word) or 0 for word in words))
        queue = cache.kv.block_pool.free_block_queue
        assert isinstance(queue, Told)
        script += [0] * (len(queue.num_choices) - len(script))
        while script and script[-1] + 1 == queue.num_choices[len(script) - 1]:
            script.pop()
        if not script:
            return best
        script[-1] += 1


def hashes(words: Sequence[str]) -> list[list[BlockHash]]:
    """Return the block hashes of the words, as a cache of this file makes them."""
    cache = Cache(POLICIES["lru"], 3)
    return [cache.kv.new_request(word, [ord(c) for c in word for _ in (0, 1)] + [0]).block_hashes for word in words]


@pytest.mark.slow
def test_belady_is_the_best_that_brute_force_finds() -> None:
    """Twenty random runs of words that share beginnings: no choice of victims gives more hits, and LRU twice fewer."""
    rng = random.Random(3)
    lru_loses = 0
    for _ in range(20):
        words = [rng.choice(("a", "ab", "acd", "x", "yz", "v")) for _ in range(7)]
        cache, lru = (Cache(policy, 3) for policy in (belady(hashes(words)), POLICIES["lru"]))
        num_hits = sum(cache.send(word) or 0 for word in words)
        assert num_hits == best_by_brute_force(words, 3)
        lru_loses += num_hits > sum(lru.send(word) or 0 for word in words)
    assert lru_loses == 2


def test_a_policy_is_found_by_name_or_in_a_file(tmp_path: Path) -> None:
    """A typo gets a suggestion; a file without the class, or a class without the verbs, is told what is missing."""
    file = tmp_path / "mine.py"
    file.write_text(
        "from mini_kv.core.free_queue import FreeKVCacheBlockQueue\n\n"
        "class Stack(FreeKVCacheBlockQueue):\n    def append_n(self, blocks):\n        self.prepend_n(blocks)\n\n"
        "class Empty:\n    pass\n"
    )
    assert after(find_policy(f"{file}:Stack"), 3, "a b c d e") == "e"
    for name, said in {
        "seive": "there is no policy 'seive'; did you mean sieve? there are: lru, ",
        f"{file}:Queue": "has no class Queue",
        f"{file}:Empty": "Empty lacks popleft_n, remove, append_n, prepend_n, get_",
        f"{tmp_path}/none.py:Stack": "there is no file",
    }.items():
        with pytest.raises(ConfigError, match=re.escape(said)):
            find_policy(name)


def test_blocks_of_a_queue_that_is_made_anew_keep_their_order() -> None:
    """When a torn state is mended, the queue is made again of what waits: hashes behind, in the order given."""
    for policy in (FIFO, LFU, LFUWithoutAgeing, SeenTwice, LeafFirst, Sieve, RecentThenUsed):
        blocks = [KVCacheBlock(i) for i in range(1, 6)]
        for block in blocks[2:]:
            block.block_hash = BlockHashWithGroupId(bytes([block.block_id]))
        assert [block.block_id for block in policy(blocks).get_all_free_blocks()] == [1, 2, 3, 4, 5]

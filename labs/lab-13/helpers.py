"""What lab-13 needs: a cache of letters that evicts by the learner's policy, a slow LFU, and the board."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count, takewhile
from typing import Any

from mini_kv.core.block import BlockHashWithGroupId, KVCacheBlock
from mini_kv.core.block_hash import make_block_hash_with_group_id
from mini_kv.core.free_queue import FreeKVCacheBlockQueue
from mini_kv.core.request import Request
from mini_kv.course.given.arena import BLOCK_SIZE, WORKLOADS, ceiling, new_cache, play, workload
from mini_kv.course.labkit.fixture import LabFailure, LabUnderTest
from mini_kv.policy.eviction import EvictionPolicy


class Cache:
    """A cache with room for `num_blocks` letters, and for the last token, that evicts by a policy of the learner's."""

    def __init__(self, lab: LabUnderTest, policy: type[Any], num_blocks: int) -> None:
        self.lab = lab
        self.kv = new_cache(watched(lab, policy), num_blocks)
        self.running: dict[str, Request] = {}
        self._letters: dict[BlockHashWithGroupId, str] = {}
        self._numbers = count(1)

    def come(self, word: str) -> int | None:
        """Compute a request. Return how many of its letters were found, `None` without room."""
        tokens = [token for letter in word for token in [ord(letter)] * BLOCK_SIZE] + [0]
        request = self.kv.new_request(f"{word} {next(self._numbers)}", tokens)
        for letter, block_hash in zip(word, request.block_hashes, strict=True):
            self._letters[make_block_hash_with_group_id(block_hash, 0)] = letter
        blocks, num_hits = self.kv.get_computed_blocks(request)
        if self.kv.allocate_slots(request, len(tokens) - num_hits, num_hits, blocks) is None:
            return None
        request.num_computed_tokens = len(tokens)
        self.running[word] = request
        return num_hits // BLOCK_SIZE

    def go(self, word: str) -> None:
        """Free a request."""
        self.kv.free(self.running.pop(word))

    def send(self, words: str) -> list[int | None]:
        """Run the requests one by one. Return how many letters of each were found."""
        found = []
        for word in words.split():
            found.append(self.come(word))
            if found[-1] is not None:
                self.go(word)
        return found

    def kept(self) -> str:
        """Return the letters that are cached."""
        return "".join(self._letter(block) for block in self.kv.block_pool.blocks if block.block_hash is not None)

    def victims(self, number: int | None = None) -> str:
        """Evict this many letters, or all that wait. Return them in order."""
        queue: Any = self.kv.block_pool.free_block_queue
        queue.popleft_n(queue.num_free_blocks - len(queue._waiting))  # those without a hash
        number = queue.num_free_blocks if number is None else number
        return "".join(self._letter(queue.popleft_n(1)[0]) for _ in range(number))

    def _letter(self, block: KVCacheBlock) -> str:
        return self._letters[block.block_hash] if block.block_hash is not None else "?"


def watched(lab: LabUnderTest, policy: type[Any]) -> type[EvictionPolicy]:
    """Return the policy, with a look at each victim: it must be a block, and it must be waiting."""
    if not issubclass(policy, EvictionPolicy):
        lab.fail(f"the base class of {policy.__name__}", "EvictionPolicy", policy.__base__)

    class Watched(policy):  # type: ignore[misc]  # the learner's
        def victim(self) -> KVCacheBlock:
            block: Any = super().victim()
            if not isinstance(block, KVCacheBlock):
                lab.fail("what victim returned", "a waiting block", block)
            if block not in self._waiting:
                held = f", held by {block.ref_cnt}" if block.ref_cnt else ""
                why = "a block in use, or evicted before, is not waiting: `leave` or `victim` was called for it"
                lab.fail("what victim returned", "a waiting block", f"block {block.block_id}{held}", why)
            return block

    return Watched


@dataclass(eq=False)
class Prefix:
    """A cached block of `SlowLFU`: the letters up to its own, what they are worth, and when they came to wait."""

    name: str
    uses: int
    worth: int
    came: int = 0
    num_holders: int = 1


@dataclass
class SlowLFU:
    """The contract of LFU with plain lists: each lookup scans all cached prefixes."""

    num_blocks: int
    age: int = 0
    num_entered: int = 0
    running: dict[str, list[Prefix]] = field(default_factory=dict)
    cached: list[Prefix] = field(default_factory=list)

    def come(self, word: str) -> tuple[int, str] | None:
        """Admit a word. Return how many of its letters are found, and the prefixes that are evicted for the others."""
        prefixes = [word[:end] for end in range(1, len(word) + 1)]
        by_name = {prefix.name: prefix for prefix in reversed(self.cached)}  # of several the oldest
        found = [by_name[name] for name in takewhile(by_name.__contains__, prefixes)]
        num_new = len(word) - len(found)
        num_kept = sum(prefix.num_holders > 0 or prefix in found for prefix in self.cached)
        room = self.num_blocks - len(self.running)  # each that runs has a block for its last token
        if num_kept + num_new > room:
            return None
        for prefix in found:
            prefix.uses += 1
            prefix.worth = self.age + prefix.uses
            prefix.num_holders += 1
        evicted = []
        while len(self.cached) + num_new > room:
            evicted.append(self.evict())
        new = [Prefix(name, 1, self.age + 1) for name in prefixes[len(found) :]]
        self.cached += new
        self.running[word] = found + new
        return len(found), " ".join(evicted)

    def go(self, word: str) -> None:
        """Free a word, its tail first."""
        for prefix in reversed(self.running.pop(word)):
            prefix.num_holders -= 1
            self.num_entered += 1
            prefix.came = self.num_entered

    def send(self, word: str) -> tuple[int, str]:
        """Admit a word, for which there is room, and free it. Return what `come` does."""
        came = self.come(word)
        assert came is not None
        self.go(word)
        return came

    def evict(self) -> str:
        """Evict the prefix that is worth least, and return it."""
        victim = self.waiting()[0]
        self.cached.remove(victim)
        self.age = victim.worth
        return victim.name

    def waiting(self) -> list[Prefix]:
        """Return the prefixes that wait, the next victim first."""
        waiting = [prefix for prefix in self.cached if prefix.num_holders == 0]
        return sorted(waiting, key=lambda prefix: (prefix.worth, prefix.came))

    def drawn(self) -> str:
        """Return the queue as a line: the last letter of each prefix and its worth."""
        return "  ".join(f"{prefix.name[-1]} {prefix.worth}" for prefix in self.waiting())


class LFUCache(Cache):
    """A cache that evicts by the learner's LFU, and the contract beside it, for the drawing of the queue."""

    def __init__(self, lab: LabUnderTest, num_blocks: int) -> None:
        super().__init__(lab, lab.LFU, num_blocks)
        self.slow = SlowLFU(num_blocks)
        self._drawing: list[str] = []

    def come(self, word: str) -> int | None:
        """As in `Cache`."""
        self.slow.come(word)
        return super().come(word)

    def go(self, word: str) -> None:
        """As in `Cache`."""
        self.slow.go(word)
        super().go(word)

    def victims(self, number: int | None = None) -> str:
        """As in `Cache`. A failure shows the queue as it should have been before."""
        self._drawing = self._drawn()
        gone = super().victims(number)
        for _ in gone[: len(self.slow.waiting())]:
            self.slow.evict()
        return gone

    def expect(self, what: str, want: object, got: object, why: str = "") -> None:
        """Compare. A failure draws the queue, and records a run of 200 words to tell beliefs apart."""
        try:
            self.lab.expect(what, want, got, why)
        except LabFailure as failure:
            failure.picture = self._drawing or self._drawn()
            failure.seen = [_long_run(self.lab, num_blocks) for num_blocks in (2, 3, 4)]
            raise

    def _drawn(self) -> list[str]:
        title = "the queue by the contract, the next victim first: letter and worth"
        return [title, f"  {self.slow.drawn() or 'empty'}   age {self.slow.age}"]


def _long_run(lab: LabUnderTest, num_blocks: int) -> list[str]:
    rng = random.Random(num_blocks)
    words = [word for _ in range(80) for word in [rng.choice(["a", "ab", "c", "d", "xy"])] * rng.randrange(1, 5)]
    try:
        cache = Cache(lab, lab.LFU, num_blocks)
        return [*map(str, cache.send(" ".join(words))), cache.victims()]
    except Exception as error:
        return [f"{type(error).__name__}: {error}"]


@dataclass(frozen=True)
class Row:
    """A workload on the board."""

    name: str
    lru: float
    yours: float
    best: float
    microseconds: float


def board(lab: LabUnderTest, policy: type[Any]) -> list[Row]:
    """Play the six workloads. Return words found, of 100: by LRU, by the policy, and by one that knows the future."""
    rows = []
    for name in WORKLOADS:
        prompts = workload(name)
        yours = play(watched(lab, policy), prompts)
        lru = play(FreeKVCacheBlockQueue, prompts)
        rows.append(Row(name, lru.percent, yours.percent, ceiling(prompts).percent, yours.microseconds))
    return rows


def drawn(rows: Sequence[Row]) -> list[str]:
    """Return the board as lines."""
    lines = [f"{'words found, of 100':<20}{'LRU':>7}{'yours':>8}{'ceiling':>9}   microseconds per word"]
    for row in rows:
        mark = "+" if row.yours > row.lru else "-" if row.yours < row.lru else " "
        lines.append(f"{row.name:<20}{row.lru:7.1f}{row.yours:8.1f}{row.best:9.1f} {mark} {row.microseconds:6.1f}")
    return lines

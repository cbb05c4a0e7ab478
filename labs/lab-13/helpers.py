"""What lab-13 needs: a cache that evicts by the learner's policy, seen in letters; a slow LFU beside it; the board."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from mini_kv.core.block import BlockHashWithGroupId, KVCacheBlock
from mini_kv.core.block_hash import make_block_hash_with_group_id
from mini_kv.core.free_queue import FreeKVCacheBlockQueue
from mini_kv.core.request import Request
from mini_kv.labkit import LabTodo
from mini_kv.labkit.arena import BLOCK_SIZE, WORKLOADS, ceiling, new_cache, play, workload
from mini_kv.labkit.fixture import LabUnderTest
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
        """Let a request come and be computed; return how many of its letters were found, `None` without room."""
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
        """Let a request leave."""
        self.kv.free(self.running.pop(word))

    def send(self, words: str) -> list[int | None]:
        """Let requests come and leave, one after the other; return how many letters were found of each."""
        found = []
        for word in words.split():
            found.append(self.come(word))
            if found[-1] is not None:
                self.go(word)
        return found

    def victims(self, number: int | None = None) -> str:
        """Evict this many letters, or all that wait, and return them in the order in which they went."""
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
                why = "what is held, or was a victim before, is not waiting: `leave` or `victim` has been called for it"
                lab.fail("what victim returned", "a waiting block", f"block {block.block_id}{held}", why)
            return block

    return Watched


@dataclass
class SlowLFU:
    """The contract of LFU with plain lists: words as they are cached, found by looking at all of them."""

    num_blocks: int
    age: int = 0
    num_entered: int = 0
    cached: list[dict[str, Any]] = field(default_factory=list)
    """One entry per cached prefix: its name, uses, worth, and when it came to wait (0: held)."""

    def send(self, word: str) -> tuple[int, str]:
        """Send a word; return how many of its letters are found, and the prefixes that are evicted for the others."""
        prefixes = [word[:end] for end in range(1, len(word) + 1)]
        found: list[dict[str, Any]] = []
        for prefix in prefixes:
            entry = next((entry for entry in self.cached if entry["name"] == prefix), None)
            if entry is None:
                break
            found.append(entry)
        for entry in found:
            entry["uses"] += 1
            entry["worth"] = self.age + entry["uses"]
            entry["came"] = 0
        evicted = []
        num_needed = len(word) - len(found) + 1  # one for the last token
        while len(self.cached) + num_needed > self.num_blocks + 1:
            victim = min((e for e in self.cached if e["came"]), key=lambda e: (e["worth"], e["came"]))
            self.cached.remove(victim)
            self.age = victim["worth"]
            evicted.append(victim["name"])
        new = [{"name": name, "uses": 1, "worth": self.age + 1, "came": 0} for name in prefixes[len(found) :]]
        self.cached += new
        for entry in reversed(found + new):
            self.num_entered += 1
            entry["came"] = self.num_entered
        return len(found), " ".join(evicted)

    def victims(self) -> str:
        """Return the last letters of all prefixes that wait, in the order in which they would go."""
        waiting = sorted((e for e in self.cached if e["came"]), key=lambda e: (e["worth"], e["came"]))
        return "".join(entry["name"][-1] for entry in waiting)


def expect_also_in_the_long_run(lab: LabUnderTest, *rows: tuple[str, object, object, str]) -> None:
    """Compare these rows, and then what becomes of 80 words in two caches: mistakes seldom look alike for so long."""
    more = []
    for num_blocks in (2, 4):
        rng = random.Random(num_blocks)
        words = [word for _ in range(30) for word in [rng.choice(["a", "ab", "c", "d", "xy"])] * rng.randrange(1, 5)]
        slow = SlowLFU(num_blocks)
        want = [*(str(slow.send(word)[0]) for word in words), slow.victims()]
        what = (
            f"letters found of {len(words)} words, {' '.join(words[:8])} ..., with room for {num_blocks}, and who goes"
        )
        more.append((what, want, _long_run(lab, num_blocks, words), ""))
    lab.expect_all([*rows, *more])


def _long_run(lab: LabUnderTest, num_blocks: int, words: list[str]) -> list[str]:
    try:
        cache = Cache(lab, lab.LFU, num_blocks)
        return [*map(str, cache.send(" ".join(words))), cache.victims()]
    except LabTodo:
        raise
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
    """Play the five workloads; return words found, of 100: by LRU, by the policy, and by one that knows the future."""
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

"""Questions of lab-13: which letters the learner's LFU evicts. A letter fills a block, as in the lab's tests."""

import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from mini_kv.core.block_hash import make_block_hash_with_group_id
from mini_kv.core.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from mini_kv.core.kv_cache_manager import KVCacheManager
from mini_kv.course.questions.question import Call, Question, listed
from mini_kv.policy.eviction import parts_of
from mini_kv.story.edge import EdgeKind
from mini_kv.story.recorder import Recorder

LAB = "lab-13"
BLOCK_SIZE = 2
NUM_LETTERS = 5
NUM_WORDS = 12


class _PolicyRun:
    """A cache with room for some letters and for the last token, that evicts by the learner's policy."""

    def __init__(self, policy: Any) -> None:
        self.recorder = Recorder(strict=False)
        config = KVCacheConfig(NUM_LETTERS + 2, (KVCacheGroupSpec(("layers",), FullAttentionSpec(BLOCK_SIZE)),))
        self.kv = KVCacheManager(config, parts=replace(parts_of(policy), new_block=self.recorder.new_block))
        self.words: list[str] = []
        self.letters: dict[str, str] = {}
        """The letter of each block hash, in hex."""

    def send(self, word: str) -> tuple[int, str]:
        """Compute a word and free it. Return the number of its letters that were found, and the evicted letters."""
        tokens = [token for letter in word for token in [ord(letter)] * BLOCK_SIZE] + [0]
        request = self.kv.new_request(f"{word} {len(self.words)}", tokens)
        self.words.append(word)
        for letter, block_hash in zip(word, request.block_hashes, strict=True):
            self.letters[make_block_hash_with_group_id(block_hash, 0).hex()] = letter
        self.recorder.take_edges()
        blocks, num_hits = self.kv.get_computed_blocks(request)
        self.kv.allocate_slots(request, len(tokens) - num_hits, num_hits, blocks)
        edges = self.recorder.take_edges()
        request.num_computed_tokens = len(tokens)
        self.kv.free(request)
        evicted = [self.letters[edge.block_hash or ""] for edge in edges if edge.kind is EdgeKind.EVICTED]
        return num_hits // BLOCK_SIZE, "".join(evicted)


def questions_of_policy(rng: random.Random, policy: Any) -> Iterator[Question]:
    """Yield the questions of one run of words."""
    run = _PolicyRun(policy)
    choice = rng.sample(["ab", "a", "cd", "e", "fgh", "abx", "i", "jk"], 5)
    calls: list[Call] = []
    proof: list[str] = []
    num_evicted = 0
    for _ in range(NUM_WORDS):
        word = rng.choice(choice)
        state = (f"room for {NUM_LETTERS} letters", f"words so far: {listed(run.words)}")
        num_found, evicted = run.send(word)
        calls.append(Call("word", word))
        proof.append(f"{word}: {num_found} found" + (f", {listed(evicted)} evicted" if evicted else ""))
        done = f'A letter fills a block. Each word is computed and ends before the next one. Now "{word}" comes.'
        if evicted:
            ask = f"{done} Which letters are evicted, in order?"
            yield Question(LAB, "evicted letters", ask, state, listed(evicted), tuple(proof), tuple(calls), merit=2)
        if num_found and num_evicted:
            ask = f"{done} How many of its letters are found?"
            merit = 1 + (num_found < len(word))
            yield Question(LAB, "found letters", ask, state, str(num_found), tuple(proof), tuple(calls), merit=merit)
        num_evicted += len(evicted)

"""The cost of two indexes with the same hits: the engine's chain of block hashes, and a radix tree over tokens.

    python -m mini_kv.dev.radix

A thousand prompts of 2,048 tokens in blocks of 16, in pairs that share their first half. It prints microseconds per
prompt (the least of five runs), and bytes per block of the index by `tracemalloc`, including hashes or tokens.
"""

import random
import sys
import time
import tracemalloc
from collections.abc import Callable, Sequence
from typing import Protocol

from mini_kv.core.block import BlockHash, KVCacheBlock
from mini_kv.core.block_hash import get_request_block_hasher, make_block_hash_with_group_id
from mini_kv.core.block_pool import BlockHashToBlockMap
from mini_kv.core.request import Request
from mini_kv.dev.radix_tree import RadixIndex

BLOCK_SIZE = 16
NUM_TOKENS = 2_048
NUM_PROMPTS = 1_000


class Index(Protocol):
    """An index with its timed verbs: lookup of a prompt, entry of its blocks, and their removal, last one first."""

    def match(self, tokens: list[int]) -> list[int]:
        """Return the ids of the blocks with the prompt's cached prefix."""

    def insert(self, tokens: list[int], block_ids: Sequence[int]) -> None:
        """Enter the prompt's blocks, cached ones included."""

    def remove(self, block_id: int) -> None:
        """Remove a block."""


class Chain:
    """The engine's index: a dict from block hashes, and the hash of each block, which it needs to be evicted."""

    def __init__(self, block_size: int) -> None:
        self.hasher = get_request_block_hasher(block_size)
        self.map = BlockHashToBlockMap()
        self.blocks: dict[int, KVCacheBlock] = {}

    def match(self, tokens: list[int]) -> list[int]:
        """Hash the prompt and look up its hashes until the first that is not cached."""
        found = []
        for block_hash in self._hashes(tokens):
            block = self.map.get_one_block(make_block_hash_with_group_id(block_hash, 0))
            if block is None:
                break
            found.append(block.block_id)
        return found

    def insert(self, tokens: list[int], block_ids: Sequence[int]) -> None:
        """Hash the prompt and enter the new hashes."""
        for block_hash, block_id in zip(self._hashes(tokens), block_ids, strict=True):
            if block_id not in self.blocks:
                block = self.blocks[block_id] = KVCacheBlock(block_id)
                block.block_hash = make_block_hash_with_group_id(block_hash, 0)
                self.map.insert(block.block_hash, block)

    def remove(self, block_id: int) -> None:
        """Remove the block's entry."""
        block = self.blocks.pop(block_id)
        assert block.block_hash is not None
        self.map.pop(block.block_hash, block_id)

    def _hashes(self, tokens: list[int]) -> Sequence[BlockHash]:
        return Request("asks", tokens, block_hasher=self.hasher).block_hashes


INDEXES: dict[str, Callable[[int], Index]] = {"chain of hashes": Chain, "radix tree": RadixIndex}


def prompts(num_prompts: int = NUM_PROMPTS, seed: int = 0) -> list[list[int]]:
    """Return prompts in pairs. The two of a pair share their first half."""
    rng = random.Random(seed)
    made = []
    for _ in range(num_prompts // 2):
        half = [rng.randrange(32_000) for _ in range(NUM_TOKENS // 2)]
        made += [half + [rng.randrange(32_000) for _ in range(NUM_TOKENS // 2)] for _ in range(2)]
    return made


def measure(make: Callable[[int], Index], asked: Sequence[list[int]]) -> dict[str, float]:
    """Return the cost of each verb, in microseconds per prompt, and the size of the index, in bytes per block."""
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    index, tables = make(BLOCK_SIZE), []
    next_id = 1
    for tokens in asked:
        known = index.match(tokens)
        num_new = len(tokens) // BLOCK_SIZE - len(known)
        tables.append([*known, *range(next_id, next_id + num_new)])
        next_id += num_new
        index.insert([*tokens], tables[-1])
    kept = (tracemalloc.get_traced_memory()[0] - before - sys.getsizeof(tables)) / next_id
    tracemalloc.stop()

    def enter() -> None:
        fresh = make(BLOCK_SIZE)
        for tokens, table in zip(asked, tables, strict=True):
            fresh.insert(tokens, table)

    def look_up() -> None:
        for tokens in asked:
            index.match(tokens)

    costs = {"look up": _least(look_up), "enter": _least(enter)}
    costs["evict"] = 0.0
    began = time.perf_counter()
    for block_id in range(next_id - 1, 0, -1):
        index.remove(block_id)
    costs["evict"] = time.perf_counter() - began
    return {name: 1e6 * seconds / len(asked) for name, seconds in costs.items()} | {"bytes per block": kept}


def _least(work: Callable[[], None], repeats: int = 5) -> float:
    """Return the least of some runs, in seconds."""
    seconds = []
    for _ in range(repeats):
        began = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - began)
    return min(seconds)


def main() -> int:
    """Print a row per index."""
    asked = prompts()
    print("index             look up       enter       evict   bytes per block")
    for name, make in INDEXES.items():
        costs = measure(make, asked)
        print(
            f"{name:<15} {costs['look up']:>6,.0f} us  {costs['enter']:>7,.0f} us  {costs['evict']:>7,.0f} us"
            f"  {costs['bytes per block']:>16,.0f}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())

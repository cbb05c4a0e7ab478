"""Prefix cache and scheduler in plain lists, for comparison: no hashes, links, counts or code of the engine.

A block is referenced if a table contains it, and its key is its content: for `NaiveCache` all tokens up to the
block's end. This code is slow and short. If it differs from an engine, one of the two is wrong.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Generic, TypeVar

Content = TypeVar("Content")


class NaivePool(Generic[Content]):
    """The free queue and the index of a pool."""

    def __init__(self, num_blocks: int) -> None:
        self.free_queue = list(range(1, num_blocks))
        """Block ids, in order of their next allocation. Block 0 is the null block."""
        self.cached: dict[int, Content] = {}
        """Content of each cached block, in the order in which the blocks were cached."""

    def blocks_with(self, content: Content) -> list[int]:
        """Return the blocks that are cached with this content, the first cached first."""
        return [block for block, held in self.cached.items() if held == content]

    def take(self, num_blocks: int) -> list[int]:
        """Take blocks from the front of the free queue, and evict them."""
        taken, self.free_queue = self.free_queue[:num_blocks], self.free_queue[num_blocks:]
        self.evict(taken)
        return taken

    def revive(self, blocks: Iterable[int]) -> None:
        """Take these blocks out of the free queue, from any position."""
        revived = set(blocks)
        self.free_queue = [block for block in self.free_queue if block not in revived]

    def make_free(self, blocks: Iterable[int]) -> None:
        """Put unreferenced blocks into the free queue: cached ones at the back, the others in front."""
        freed = list(blocks)
        uncached = [block for block in freed if block not in self.cached]
        self.free_queue = uncached + self.free_queue + [block for block in freed if block in self.cached]

    def evict(self, blocks: Iterable[int]) -> None:
        """Remove these blocks from the index. Blocks that are not cached are unchanged."""
        for block in blocks:
            self.cached.pop(block, None)


class NaiveTables(NaivePool[Content]):
    """A pool and the block tables of requests, one table per request."""

    def __init__(self, num_blocks: int) -> None:
        super().__init__(num_blocks)
        self.tables: dict[str, list[int]] = {}

    def is_held(self, block: int) -> bool:
        """Return whether a table contains the block."""
        return any(block in table for table in self.tables.values())

    def leave(self, name: str) -> None:
        """Drop the request's table. Blocks in no other table become free, the last of the table first."""
        table = self.tables.pop(name)
        self.make_free([block for block in reversed(table) if not self.is_held(block)])

    def reset(self) -> bool:
        """Empty the index, unless a request has blocks. Return whether it was emptied."""
        if not self.tables:
            self.cached.clear()
        return not self.tables


class NaiveCache(NaiveTables[tuple[int, ...]]):
    """A prefix cache of one group of full-attention layers."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        super().__init__(num_blocks)
        self.block_size = block_size

    def hit(self, tokens: Sequence[int]) -> list[int]:
        """Return the blocks of the longest cached prefix that leaves a token to compute."""
        blocks: list[int] = []
        for end in range(self.block_size, len(tokens), self.block_size):
            found = self.blocks_with(tuple(tokens[:end]))
            if not found:
                break
            blocks.append(found[0])
        return blocks

    def num_needed(self, name: str, num_slots: int, hit: Sequence[int] = ()) -> int:
        """Return the free blocks that the request needs for `num_slots` slots. `hit` begins a new table."""
        table = self.tables.get(name, hit)
        num_new = len(range(0, num_slots, self.block_size)) - len(table)
        return max(num_new, 0) + sum(block in self.free_queue for block in table)

    def allocate(
        self, name: str, tokens: Sequence[int], hit: Sequence[int] = (), num_slots: int = 0
    ) -> list[int] | None:
        """Extend the request's table and cache its full blocks. Return the new blocks, or `None` if too few are free.

        Args:
            name: the request. Its first call begins its table with `hit`.
            tokens: the request's computed tokens after the step.
            hit: from `hit`.
            num_slots: slots that the table must have, if these are more than the tokens.
        """
        num_slots = max(num_slots, len(tokens))
        if self.num_needed(name, num_slots, hit) > len(self.free_queue):
            return None
        table = self.tables.setdefault(name, list(hit))
        self.revive(table)
        new = self.take(self.num_needed(name, num_slots))
        table += new
        for index in range(len(tokens) // self.block_size):
            self.cached.setdefault(table[index], tuple(tokens[: (index + 1) * self.block_size]))
        return new


class NaiveScheduler(NaiveCache):
    """A scheduler on lists of names: it has no statuses, and its requests are only tokens."""

    def __init__(
        self, num_blocks: int, block_size: int, *, max_num_batched_tokens: int, max_num_seqs: int, reserved_blocks: int
    ) -> None:
        super().__init__(num_blocks, block_size)
        self.max_num_batched_tokens, self.max_num_seqs = max_num_batched_tokens, max_num_seqs
        self.reserved_blocks = reserved_blocks
        """Blocks that must remain free after an admission, if others run."""
        self.tokens: dict[str, list[int]] = {}
        """The known tokens of each unfinished request."""
        self.ends: dict[str, tuple[int, int]] = {}
        """Final number of tokens of a request, and the token that ends it earlier."""
        self.computed: dict[str, int] = {}
        self.running: list[str] = []
        self.waiting: list[str] = []

    def arrive(self, name: str, tokens: Sequence[int], max_tokens: int, stop_token_id: int) -> None:
        """Put a request at the end of the queue."""
        self.tokens[name], self.ends[name] = list(tokens), (len(tokens) + max_tokens, stop_token_id)
        self.waiting.append(name)

    def forget(self, name: str) -> None:
        """End a request, running or waiting."""
        if name in self.running:
            self.running.remove(name)
            self.leave(name)
        if name in self.waiting:
            self.waiting.remove(name)
        self.tokens.pop(name, None)

    def schedule(self) -> tuple[dict[str, int], list[str]]:
        """Return the tokens per request of the next step, and the preempted requests."""
        step: dict[str, int] = {}
        preempted: list[str] = []
        for name in list(self.running):
            num_new = self.num_new(name, step)
            while name in self.running and self.allocate(name, self.computed_after(name, num_new)) is None:
                preempted.append(self.running.pop())
                self.leave(preempted[-1])
                self.waiting.insert(0, preempted[-1])
            if name in self.running:
                step[name] = num_new
        while self.waiting and not preempted and self.admit(self.waiting[0], step):
            self.running.append(self.waiting.pop(0))
        return step, preempted

    def admit(self, name: str, step: dict[str, int]) -> bool:
        """Give the request blocks and a place in the step. Return `False` if the step or the pool has no room."""
        hit = self.hit(self.tokens[name])
        self.computed[name] = len(hit) * self.block_size
        num_new = self.num_new(name, step)
        computed = self.computed_after(name, num_new)
        num_needed = self.num_needed(name, len(computed), hit) + (self.reserved_blocks if self.running else 0)
        num_needed = max(num_needed, self.num_needed(name, len(self.tokens[name]), hit))
        if not num_new or len(self.running) == self.max_num_seqs or num_needed > len(self.free_queue):
            return False
        self.allocate(name, computed, hit)
        step[name] = num_new
        return True

    def num_new(self, name: str, step: dict[str, int]) -> int:
        """Return the number of tokens of the request that the step can still compute."""
        left = self.max_num_batched_tokens - sum(step.values())
        return min(len(self.tokens[name]) - self.computed[name], left)

    def computed_after(self, name: str, num_new: int) -> list[int]:
        """Return the request's computed tokens after `num_new` more."""
        return self.tokens[name][: self.computed[name] + num_new]

    def finish(self, step: dict[str, int], next_token: Callable[[Sequence[int]], int]) -> dict[str, tuple[int, str]]:
        """Count the computed tokens. Return each request's new token, with "length" or "stop" for its last one."""
        results = {}
        for name, num_tokens in step.items():
            self.computed[name] += num_tokens
            if self.computed[name] == len(self.tokens[name]):
                self.tokens[name].append(token := next_token(self.tokens[name]))
                length, stop_token_id = self.ends[name]
                reason = "stop" if token == stop_token_id else "length" if len(self.tokens[name]) == length else ""
                results[name] = token, reason
                if reason:
                    self.forget(name)
        return results

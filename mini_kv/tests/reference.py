"""What the KV cache must do, said a second time and as plainly as possible.

The reference shares nothing with the engine and reads nothing of it: no digests, no linked list, no counters. A block
is named by the literal prefix whose KV it holds, the free queue is a list, references are counted by looking at the
tables. It is slow and short; where the two differ, one of them is wrong.

`ContentOracle` goes one step further and asks the only question that a user cares about: when a request reads its KV,
is it the KV of exactly its own prefix?
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

Image: TypeAlias = tuple[str, int, int]
"""Identity of an image, offset of its first token, number of its tokens."""

Prefix: TypeAlias = tuple[str | None, tuple[str, str] | None, tuple[Image, ...], tuple[int, ...]]
"""All that decides the KV of one position: salt, adapter (name, path), images so far, tokens up to that position."""


@dataclass(frozen=True, slots=True)
class Namespace:
    """What a request brings besides its tokens."""

    cache_salt: str | None = None
    adapter: tuple[str, str] | None = None
    images: tuple[Image, ...] = ()

    def prefix(self, token_ids: Sequence[int]) -> Prefix:
        """Return what decides the KV of the last of these tokens."""
        images = tuple(image for image in self.images if image[1] < len(token_ids))
        return (self.cache_salt, self.adapter, images, tuple(token_ids))


@dataclass(slots=True)
class ReferenceRequest:
    """A request as the reference sees it."""

    name: str
    namespace: Namespace
    token_ids: list[int]
    num_computed: int = 0
    num_cached: int | None = None
    """Tokens of the hit at the first admission."""
    prefixes: list[Prefix] = field(default_factory=list)
    """What decides the KV of each position."""

    def __post_init__(self) -> None:
        self._extend_prefixes()

    def append(self, token_ids: Iterable[int]) -> None:
        """Add tokens at the end."""
        self.token_ids += token_ids
        self._extend_prefixes()

    def _extend_prefixes(self) -> None:
        for position in range(len(self.prefixes), len(self.token_ids)):
            self.prefixes.append(self.namespace.prefix(self.token_ids[: position + 1]))


class ReferenceCache:
    """The cache of one full-attention group, in lists and dicts."""

    def __init__(self, num_blocks: int, block_size: int, *, enable_caching: bool = True) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.enable_caching = enable_caching
        self.free_queue = list(range(1, num_blocks))
        """Block ids, the next to be reused first. Block 0 is the null block."""
        self.key_of: dict[int, Prefix] = {}
        """What each cached block holds, in the order of publication."""
        self.tables: dict[str, list[int]] = {}
        """The block table of each admitted request, in the order of admission."""
        self.num_published: dict[str, int] = {}
        self.num_requests = 0
        self.num_queried_tokens = 0
        self.num_hit_tokens = 0

    def ref_counts(self) -> list[int]:
        """Return how many tables hold each block."""
        counts = [0] * self.num_blocks
        for table in self.tables.values():
            for block_id in table:
                counts[block_id] += 1
        return counts

    def blocks_under(self, key: Prefix) -> list[int]:
        """Return the blocks that hold exactly this prefix, oldest publication first."""
        return [block_id for block_id, held in self.key_of.items() if held == key]

    def lookup(self, request: ReferenceRequest) -> list[int]:
        """Return the blocks of the longest cached prefix that leaves at least one token to compute."""
        hit: list[int] = []
        end = self.block_size
        while end < len(request.token_ids):
            found = self.blocks_under(request.prefixes[end - 1])
            if not found:
                break
            hit.append(found[0])
            end += self.block_size
        return hit

    def is_cached(self, request: ReferenceRequest, hit: Sequence[int]) -> bool:
        """Return whether an older hit still stands: each of its blocks holds the request's prefix."""
        ends = range(self.block_size, self.block_size * (len(hit) + 1), self.block_size)
        return all(
            self.key_of.get(block_id) == request.prefixes[end - 1] for block_id, end in zip(hit, ends, strict=True)
        )

    def allocate(
        self, request: ReferenceRequest, hit: Sequence[int], num_new_tokens: int, num_lookahead_tokens: int
    ) -> list[int] | None:
        """Give slots for the next tokens, after a hit that counts as computed; return the new blocks or `None`."""
        num_computed = request.num_computed + len(hit) * self.block_size
        table = [*self.tables.get(request.name, []), *hit]
        num_slots = num_computed + num_new_tokens + num_lookahead_tokens
        num_wanted = max(0, (num_slots + self.block_size - 1) // self.block_size - len(table))
        revived = [block_id for block_id in hit if block_id in self.free_queue]
        if num_wanted + len(revived) > len(self.free_queue):
            return None
        for block_id in revived:
            self.free_queue.remove(block_id)
        new_blocks = [self.free_queue.pop(0) for _ in range(num_wanted)]
        for block_id in new_blocks:
            self.key_of.pop(block_id, None)
        table += new_blocks
        if request.name not in self.tables:
            self.num_published[request.name] = len(hit)
            self._count_first_admission(request, len(hit) * self.block_size)
        self.tables[request.name] = table
        self._publish(request, min(num_computed + num_new_tokens, len(request.token_ids)))
        return new_blocks

    def _publish(self, request: ReferenceRequest, num_tokens: int) -> None:
        if not self.enable_caching:
            return
        num_full = num_tokens // self.block_size
        for index in range(self.num_published[request.name], num_full):
            last_position = (index + 1) * self.block_size - 1
            self.key_of[self.tables[request.name][index]] = request.prefixes[last_position]
        self.num_published[request.name] = max(num_full, self.num_published[request.name])

    def _count_first_admission(self, request: ReferenceRequest, num_hit_tokens: int) -> None:
        if request.num_cached is not None:
            return
        request.num_cached = num_hit_tokens
        if self.enable_caching:
            self.num_requests += 1
            self.num_queried_tokens += len(request.token_ids)
            self.num_hit_tokens += num_hit_tokens

    def withdraw(self, request: ReferenceRequest) -> list[str]:
        """Take back the keys of blocks that are not fully computed; return who else holds one of these blocks."""
        num_computed = request.num_computed // self.block_size
        promised = self.tables[request.name][num_computed : self.num_published[request.name]]
        self.evict(promised)
        self.num_published[request.name] = min(num_computed, self.num_published[request.name])
        return [name for name, table in self.tables.items() if name != request.name and set(promised) & set(table)]

    def release(self, request: ReferenceRequest) -> None:
        """Drop the request's table; blocks that nobody holds any more become free, the last of the table first."""
        table = self.tables.pop(request.name)
        del self.num_published[request.name]
        held = {block_id for other in self.tables.values() for block_id in other}
        idle = [block_id for block_id in reversed(table) if block_id not in held]
        without_key = [block_id for block_id in idle if block_id not in self.key_of]
        with_key = [block_id for block_id in idle if block_id in self.key_of]
        self.free_queue = without_key + self.free_queue + with_key

    def evict(self, block_ids: Iterable[int]) -> None:
        """Forget what these blocks hold."""
        for block_id in block_ids:
            self.key_of.pop(block_id, None)

    def reset(self) -> bool:
        """Forget what all blocks hold, unless a request holds a block."""
        if any(self.tables.values()):
            return False
        self.key_of.clear()
        return True


class ContentError(AssertionError):
    """KV was read that is not the reader's own, or written where it must not be."""


class ContentOracle:
    """The memory itself: for each slot of each block, the prefix whose KV was written there last.

    It knows nothing of keys, references or queues. Blocks are pointed at by the engine's tables, as kernels do it.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.block_size = block_size
        self.phys: list[list[Prefix | None]] = [[None] * block_size for _ in range(num_blocks)]
        self.writer: dict[int, str] = {}
        """Who took each block from the free queue; nobody else may write to it."""

    def take(self, name: str, block_ids: Iterable[int]) -> None:
        """Note that a request was given these blocks; whatever was in them is gone."""
        for block_id in block_ids:
            self.phys[block_id] = [None] * self.block_size
            self.writer[block_id] = name

    def write(
        self, name: str, table: Sequence[int], start: int, contents: Iterable[Prefix], readers: Sequence[int]
    ) -> None:
        """Write KV from position `start` on, through the table.

        Raises `ContentError` if the block is not the writer's, if the slot was written before, or if the block is
        among `readers`, the blocks of requests that may have read it already (I6).
        """
        for position, content in enumerate(contents, start):
            block_id, slot = table[position // self.block_size], position % self.block_size
            where = f"I6: {name} writes position {position} to block {block_id}, slot {slot}"
            if self.writer.get(block_id) != name:
                raise ContentError(f"{where}, which {self.writer.get(block_id, 'nobody')} took")
            if block_id in readers:
                raise ContentError(f"{where}, which somebody else holds and may have read")
            if self.phys[block_id][slot] is not None:
                raise ContentError(f"{where}, which holds {self.phys[block_id][slot]} already")
            self.phys[block_id][slot] = content

    def read(self, name: str, table: Sequence[int], expected: Sequence[Prefix]) -> None:
        """Read all KV of a request through its table; raises `ContentError` if it is not its own prefix's (I9)."""
        size = self.block_size
        for first in range(0, len(expected), size):
            block_id, wanted = table[first // size], expected[first : first + size]
            found = self.phys[block_id][: len(wanted)]
            if found != wanted:
                raise ContentError(f"I9: {name} reads block {block_id}: {found}, its own prefix is {wanted}")

    def forget(self, table: Sequence[int], positions: Iterable[int]) -> None:
        """Declare slots worthless, those of rejected drafts: they will be written again."""
        for position in positions:
            self.phys[table[position // self.block_size]][position % self.block_size] = None

"""What the KV cache must do, said a second time and as plainly as possible.

The reference shares nothing with the engine and reads nothing of it: no digests, no linked list, no counters. A block
is cached under the literal prefix whose KV it holds, the free queue is a list, references are counted by looking at the
tables. It is slow and short; where the two differ, one of them is wrong.

`ContentOracle` goes one step further and asks the only question that a user cares about: when a request reads its KV,
is it the KV of exactly its own prefix?
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from math import lcm
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


@dataclass(frozen=True, slots=True)
class Group:
    """A group of layers: its kind, the tokens per block, and how far a token reads back."""

    kind: str = "full"
    """full, window, chunks or state."""
    block_size: int = 4
    reach: int = 0
    """Tokens of a window or a chunk."""

    def first_read(self, position: int) -> int:
        """Return the first token whose KV (or, for a state, whose outcome) the token at `position` reads."""
        match self.kind:
            case "window":
                return max(0, position - (self.reach - 1))
            case "chunks":
                return position - position % self.reach
            case "state":
                return max(0, position - 1)
            case _:
                return 0


Tables: TypeAlias = list[list[int]]
"""Block ids, one list per group; 0 where there is no block (any more)."""


class ReferenceCache:
    """The cache of any groups of layers, in lists and dicts."""

    def __init__(self, num_blocks: int, groups: Sequence[Group], *, enable_caching: bool = True) -> None:
        self.num_blocks = num_blocks
        self.groups = tuple(groups)
        self.enable_caching = enable_caching
        self.free_queue = list(range(1, num_blocks))
        """Block ids, the next to be reused first. Block 0 is the null block."""
        self.key_of: dict[int, tuple[int, Prefix]] = {}
        """What each cached block holds, of which group, in the order of publication."""
        self.tables: dict[str, Tables] = {}
        """The block tables of each admitted request, in the order of admission."""
        self.requests: dict[str, ReferenceRequest] = {}
        self.num_published: dict[str, list[int]] = {}
        self.pinned: list[int] = []
        """Both ends of each copy that has not run yet: source, target, source, target."""
        self.copies: list[tuple[int, int]] = []
        """Copies that the coming step begins with."""
        self.num_requests = 0
        self.num_queried_tokens = 0
        self.num_hit_tokens = 0

    def ref_counts(self) -> list[int]:
        """Return how many tables hold each block; 0 for the null block."""
        counts = [0] * self.num_blocks
        for tables in self.tables.values():
            for block_id in _real(tables):
                counts[block_id] += 1
        for block_id in self.pinned:
            counts[block_id] += 1
        return counts

    def blocks_under(self, group_id: int, prefix: Prefix) -> list[int]:
        """Return the group's blocks that hold exactly this prefix, oldest publication first."""
        return [block_id for block_id, held in self.key_of.items() if held == (group_id, prefix)]

    def lookup(self, request: ReferenceRequest) -> tuple[Tables, int]:
        """Return the longest hit that leaves a token to compute: tries every end, from the last one down."""
        for end in range(len(request.token_ids) - 1 if self.enable_caching else 0, 0, -1):
            hit = self._hit_at(request, end)
            if hit is not None:
                return hit, end
        return [[] for _ in self.groups], 0

    def _hit_at(self, request: ReferenceRequest, end: int) -> Tables | None:
        if any(end % group.block_size for group in self.groups):
            return None
        hit: Tables = []
        for group_id, group in enumerate(self.groups):
            first = group.first_read(end) // group.block_size
            hit.append([0] * first)
            for index in range(first, end // group.block_size):
                found = self.blocks_under(group_id, request.prefixes[(index + 1) * group.block_size - 1])
                if not found:
                    return None
                hit[-1].append(found[0])
        return hit

    def is_cached(self, request: ReferenceRequest, hit: Tables) -> bool:
        """Return whether an older hit still stands: each of its blocks holds the request's prefix."""
        return all(
            self.key_of.get(block_id) == (group_id, request.prefixes[(index + 1) * group.block_size - 1])
            for group_id, group in enumerate(self.groups)
            for index, block_id in enumerate(hit[group_id])
            if block_id
        )

    def is_promised_state(self, hit: Tables) -> bool:
        """Return whether a state of the hit is still to be computed by the request that published it."""
        states = {
            blocks[-1] for group, blocks in zip(self.groups, hit, strict=True) if group.kind == "state" and blocks
        }
        return any(
            block_id in states and self.requests[name].num_computed < (index + 1) * group.block_size
            for name, tables in self.tables.items()
            for group, table in zip(self.groups, tables, strict=True)
            for index, block_id in enumerate(table)
        )

    def allocate(
        self, request: ReferenceRequest, hit: Tables, num_hit_tokens: int, num_new_tokens: int, num_lookahead: int
    ) -> Tables | None:
        """Give slots for the next tokens, after a hit that counts as computed; return the new blocks or `None`."""
        num_computed = request.num_computed + num_hit_tokens
        tables = [list(table) for table in self.tables.get(request.name, hit)]
        others = self._held_by_others(request)
        copied = self._shared_and_half_filled(request, num_computed, others)
        dropped = self._dropped(tables, num_computed, others | set(self.pinned))
        missing = self._missing(tables, num_computed + num_new_tokens + num_lookahead)
        revived = [block_id for block_id in _real(hit) if block_id in self.free_queue]
        num_needed = sum(num_new for _, num_new in missing) + len(revived) + len(copied)
        if num_needed > len(self.free_queue) + sum(map(len, dropped)) or self.is_promised_state(hit):
            return None
        for blocks in dropped:
            self._make_free(blocks)
        for block_id in revived:
            self.free_queue.remove(block_id)
        self._copy(tables, copied)
        new_blocks = [[0] * num_null + self._take(num_new) for num_null, num_new in missing]
        for table, blocks in zip(tables, new_blocks, strict=True):
            table += blocks
        if request.name not in self.tables:
            self._admit(request, hit, num_hit_tokens)
        self.tables[request.name] = tables
        self._publish(request, min(num_computed + num_new_tokens, len(request.token_ids)))
        return new_blocks

    def _held_by_others(self, request: ReferenceRequest) -> set[int]:
        """Return the blocks in the tables of all other requests."""
        return {block_id for name, held in self.tables.items() if name != request.name for block_id in _real(held)}

    def _dropped(self, tables: Tables, num_computed: int, others: set[int]) -> Tables:
        """Take out of each table what no token will read any more; return, per group, the blocks that become free."""
        dropped = []
        for group, table in zip(self.groups, tables, strict=True):
            left_behind = self._left_behind(group, table, num_computed)
            dropped.append([block_id for block_id in left_behind if block_id not in others])
        return dropped

    def _missing(self, tables: Tables, num_slots: int) -> list[tuple[int, int]]:
        """Return how many null blocks and new blocks each table lacks for these slots; states are kept in the last."""
        missing = []
        for group, table in zip(self.groups, tables, strict=True):
            num_missing = max(0, (num_slots + group.block_size - 1) // group.block_size - len(table))
            num_new = min(1, num_missing) if group.kind == "state" else num_missing
            missing.append((num_missing - num_new, num_new))
        return missing

    def _take(self, num_blocks: int) -> list[int]:
        """Take blocks from the front of the free queue; they are cached no longer."""
        taken, self.free_queue = self.free_queue[:num_blocks], self.free_queue[num_blocks:]
        self.evict(taken)
        return taken

    def _copy(self, tables: Tables, places: list[tuple[int, int]]) -> None:
        """Put a new block at each of these places of the tables, and pin it and the old one until the copy has run."""
        for group_id, index in places:
            (target,) = self._take(1)
            copy = (tables[group_id][index], target)
            tables[group_id][index] = target
            self.pinned += copy
            self.copies.append(copy)

    def _admit(self, request: ReferenceRequest, hit: Tables, num_hit_tokens: int) -> None:
        """Enter a request whose tables begin with this hit."""
        self.requests[request.name] = request
        self.num_published[request.name] = [len(table) for table in hit]
        self._count_first_admission(request, num_hit_tokens)

    def fork(self, parent: ReferenceRequest, child: ReferenceRequest) -> None:
        """Start the child's tables with the blocks that the parent has computed."""
        child.num_computed = child.num_cached = parent.num_computed
        self.tables[child.name] = [
            table[: -(-parent.num_computed // group.block_size)]
            for group, table in zip(self.groups, self.tables[parent.name], strict=True)
        ]
        self.requests[child.name] = child
        self.num_published[child.name] = [
            min(published, parent.num_computed // group.block_size)
            for group, published in zip(self.groups, self.num_published[parent.name], strict=True)
        ]

    def _shared_and_half_filled(
        self, request: ReferenceRequest, num_computed: int, others: set[int]
    ) -> list[tuple[int, int]]:
        """Return where in its tables the next token's slot lies in a block that others hold: group and index."""
        places = [(i, num_computed // group.block_size) for i, group in enumerate(self.groups)]
        return [
            (group_id, index)
            for group_id, index in places
            if request.name in self.tables
            and num_computed % self.groups[group_id].block_size
            and self.tables[request.name][group_id][index] in others
        ]

    def finish_copies(self) -> None:
        """Let go of both ends of every copy, one after the other."""
        self.copies = []
        while self.pinned:
            block_id = self.pinned.pop(0)
            if self.ref_counts()[block_id] == 0:
                self._make_free([block_id])

    @staticmethod
    def _left_behind(group: Group, table: list[int], num_computed: int) -> list[int]:
        """Take out of the table the blocks that no token from `num_computed` on reads; return them, the last first."""
        blocks = []
        for index in reversed(range(min(len(table), group.first_read(num_computed) // group.block_size))):
            if table[index]:
                blocks.append(table[index])
                table[index] = 0
        return blocks

    def _publish(self, request: ReferenceRequest, num_tokens: int) -> None:
        if not self.enable_caching:
            return
        published = self.num_published[request.name]
        boundary = lcm(*(group.block_size for group in self.groups))
        for group_id, (group, table) in enumerate(zip(self.groups, self.tables[request.name], strict=True)):
            num_full = num_tokens // boundary * boundary // group.block_size
            fresh = range(published[group_id], num_full)
            if group.kind == "state":  # the state at a block's end is known only if the step ends there
                fresh = range(num_full - 1, num_full) if num_tokens % boundary == 0 else range(0)
            for index in fresh:
                if table[index]:
                    self.key_of[table[index]] = (group_id, request.prefixes[(index + 1) * group.block_size - 1])
            published[group_id] = max(num_full, published[group_id])

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
        promised = set()
        for group_id, (group, table) in enumerate(zip(self.groups, self.tables[request.name], strict=True)):
            num_computed = request.num_computed // group.block_size
            promised |= set(table[num_computed : self.num_published[request.name][group_id]]) - {0}
            self.num_published[request.name][group_id] = min(num_computed, self.num_published[request.name][group_id])
        self.evict(promised)
        return [name for name, tables in self.tables.items() if name != request.name and promised & set(_real(tables))]

    def release(self, request: ReferenceRequest) -> None:
        """Drop the request's tables; blocks that no table holds any more become free, the last of a table first."""
        tables = self.tables.pop(request.name)
        del self.num_published[request.name], self.requests[request.name]
        held = {block_id for others in self.tables.values() for block_id in _real(others)} | set(self.pinned)
        for table in tables:
            self._make_free(block_id for block_id in reversed(table) if block_id and block_id not in held)

    def _make_free(self, block_ids: Iterable[int]) -> None:
        """Put blocks that no table holds into the queue: those without a key in front, those with one at the back."""
        idle = list(block_ids)
        without_key = [block_id for block_id in idle if block_id not in self.key_of]
        with_key = [block_id for block_id in idle if block_id in self.key_of]
        self.free_queue = without_key + self.free_queue + with_key

    def evict(self, block_ids: Iterable[int]) -> None:
        """Forget what these blocks hold."""
        for block_id in block_ids:
            self.key_of.pop(block_id, None)

    def reset(self) -> bool:
        """Forget what all blocks hold, unless a request holds a block."""
        if self.pinned or any(any(_real(tables)) for tables in self.tables.values()):
            return False
        self.key_of.clear()
        return True


def _real(tables: Tables) -> Iterator[int]:
    return (block_id for table in tables for block_id in table if block_id)


class ContentError(AssertionError):
    """KV was read that is not the reader's own, or written where it must not be."""


class ContentOracle:
    """The memory itself: for each slot of each block, the prefix whose KV was written there last.

    It knows nothing of keys, references or queues. Blocks are pointed at by the engine's tables, as kernels do it.
    A block that holds a state has one slot that counts, the first.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        """Make the memory; `block_size` is the largest block's."""
        self.phys: list[list[Prefix | None]] = [[None] * block_size for _ in range(num_blocks)]
        self.writer: dict[int, str] = {}
        """The request that took each block from the free queue; no other may write to it."""

    def take(self, name: str, block_ids: Iterable[int]) -> None:
        """Note that a request was given these blocks; whatever was in them is gone."""
        for block_id in block_ids:
            self.phys[block_id] = [None] * len(self.phys[block_id])
            self.writer[block_id] = name

    def go_on(self, name: str, block_id: int) -> None:
        """Note that a request is the last of those that shared a half-filled block, and goes on writing to it."""
        self.writer[block_id] = name

    def copy(self, pairs: Iterable[tuple[int, int]]) -> None:
        """Copy whole blocks, as (source, target): all are read before any is written."""
        contents = [(target, list(self.phys[source])) for source, target in pairs]
        for target, content in contents:
            self.phys[target] = content

    def write(
        self,
        name: str,
        group: Group,
        table: Sequence[int],
        start: int,
        contents: Sequence[Prefix],
        readers: Sequence[int],
    ) -> None:
        """Write KV from position `start` on, through the table; a state once, where the last position lies.

        Raises `ContentError` if the block is not the writer's, if the slot was written before, or if the block is
        among `readers`, the blocks of requests that may have read it already (I6). A state is written in place.
        """
        is_state = group.kind == "state"
        for position, content in list(enumerate(contents, start))[-1 if is_state else 0 :]:
            block_id, slot = table[position // group.block_size], position % group.block_size
            slot = 0 if is_state else slot
            where = f"I6: {name} writes position {position} to block {block_id}, slot {slot}"
            if self.writer.get(block_id) != name:
                raise ContentError(f"{where}, which {self.writer.get(block_id, 'no request')} took")
            if block_id in readers:
                raise ContentError(f"{where}, which another request holds and may have read")
            if self.phys[block_id][slot] is not None and not is_state:
                raise ContentError(f"{where}, which holds {self.phys[block_id][slot]} already")
            self.phys[block_id][slot] = content

    def read(self, name: str, group: Group, table: Sequence[int], expected: Sequence[Prefix], first: int = 0) -> None:
        """Read the KV of positions `first` to the end of `expected`; `ContentError` if it is not its own prefix's (I9).

        Of a state, what the last of these positions left.
        """
        for position in range(first, len(expected)):
            block_id, slot = table[position // group.block_size], position % group.block_size
            if group.kind == "state":
                if position < len(expected) - 1:
                    continue
                slot = 0
            found = self.phys[block_id][slot]
            if block_id == 0 or found != expected[position]:
                raise ContentError(
                    f"I9: {name} reads block {block_id}: {found}, its own prefix is {expected[position]}"
                )

    def forget(self, group: Group, table: Sequence[int], positions: Iterable[int]) -> None:
        """Declare slots worthless, those of rejected drafts: they will be written again."""
        for position in positions:
            self.phys[table[position // group.block_size]][position % group.block_size] = None

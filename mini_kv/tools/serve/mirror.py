"""A model of another engine's cache, made from its events alone: the cached hashes, and the blocks per hash.

    mirror = Mirror()
    mirror.apply(batch)          # in the order of the batch numbers, as `Follower` does
    mirror.copies()              # number of blocks per hash

Two requests that compute one prompt in one step fill two blocks with one hash. Two events store this hash, and it is
cached until two events have removed it. So the mirror counts blocks per hash. A set of hashes would not be enough.

A mirror is complete if it has all events since the cache was empty. If some are missing, `gaps` lists them. Its blocks
may then be wrong: some are missing, others are no longer cached. It is complete again when the engine clears its cache.
"""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from mini_kv.tools.serve.kv_events import (
    AllBlocksCleared,
    BadFrameError,
    BlockRemoved,
    BlockStored,
    ExternalBlockHash,
    KVEventBatch,
    decode_batch,
    sequence_number,
)


class Key(NamedTuple):
    """The key of the index: block hash, group and medium."""

    block_hash: ExternalBlockHash
    group_id: int
    medium: str | None


@dataclass(slots=True)
class MirroredBlock:
    """All blocks with one key."""

    parent: Key | None
    """The key of the block before it, or `None` at the beginning of a prompt."""
    token_ids: tuple[int, ...]
    """Its own tokens, or empty if the event's tokens cannot be divided among its blocks."""
    extra_keys: tuple[Any, ...] | None = None
    """The extra keys of its hash, in vLLM's order: the adapter's name, images, the salt in a first block."""
    copies: int = 0


class Mirror:
    """The cached blocks of another engine, with their tokens."""

    def __init__(self) -> None:
        """Begin with an empty cache."""
        self.blocks: dict[Key, MirroredBlock] = {}
        self.gaps: list[str] = []
        """The missing batches, one sentence per gap. Empty if the mirror is complete."""
        self.num_stored = self.num_removed = self.num_unknown_removed = 0
        """Counts since the beginning. The last one counts removals of blocks that the mirror did not have."""
        self.num_cleared = 0
        """Number of times that the engine emptied its cache."""

    @property
    def num_blocks(self) -> int:
        """Number of cached blocks, including all blocks with the same key."""
        return sum(block.copies for block in self.blocks.values())

    @property
    def num_twins(self) -> int:
        """Number of blocks beyond the first of each key."""
        return self.num_blocks - len(self.blocks)

    def copies(self) -> dict[Key, int]:
        """Return the number of blocks per key."""
        return {key: block.copies for key, block in self.blocks.items()}

    def apply(self, batch: KVEventBatch) -> None:
        """Apply the events of a batch."""
        for event in batch.events:
            match event:
                case BlockStored():
                    self._store(event)
                case BlockRemoved():
                    self._remove(event)
                case AllBlocksCleared():
                    self.num_cleared += 1
                    self.blocks.clear()
                    self.gaps.clear()

    def note_gap(self, sentence: str) -> None:
        """Note missing batches."""
        self.gaps.append(sentence)

    def forget(self) -> None:
        """Reset to an empty, complete mirror, because the engine was restarted."""
        self.blocks.clear()
        self.gaps.clear()

    def _store(self, event: BlockStored) -> None:
        group_id, size = event.group_idx or 0, event.block_size
        is_told = len(event.token_ids) == size * len(event.block_hashes)
        is_told &= event.extra_keys is None or len(event.extra_keys) == len(event.block_hashes)
        parent = None if event.parent_block_hash is None else Key(event.parent_block_hash, group_id, event.medium)
        for index, block_hash in enumerate(event.block_hashes):
            key = Key(block_hash, group_id, event.medium)
            token_ids = tuple(event.token_ids[index * size : (index + 1) * size]) if is_told else ()
            extra_keys = event.extra_keys[index] if is_told and event.extra_keys is not None else None
            self.blocks.setdefault(key, MirroredBlock(parent, token_ids, extra_keys)).copies += 1
            parent = key
        self.num_stored += len(event.block_hashes)

    def _remove(self, event: BlockRemoved) -> None:
        for block_hash in event.block_hashes:
            key = Key(block_hash, event.group_idx or 0, event.medium)
            block = self.blocks.get(key)
            if block is None:
                self.num_unknown_removed += 1
                continue
            self.num_removed += 1
            block.copies -= 1
            if block.copies == 0:
                del self.blocks[key]


Message = tuple[int, KVEventBatch]
Replay = Callable[[int], Iterable[tuple[bytes, bytes]] | None]
"""Returns the second and third frames of the kept batches from a number on, or `None` without an answer."""


@dataclass(slots=True)
class Follower:
    """Applies messages to a mirror, each once and in order, and requests missing ones."""

    mirror: Mirror
    replay: Replay
    on_batch: Callable[[int, KVEventBatch], None] = lambda number, batch: None
    """Called with every batch after the mirror has applied it."""
    next_number: int = 0
    num_asked_for: int = 0
    """Number of batches that arrived because the follower requested them."""
    last_time: float = 0.0
    complaints: deque[str] = field(default_factory=lambda: deque(maxlen=100))
    """The errors of the last unreadable messages, one sentence each."""

    def receive(self, frames: list[bytes]) -> None:
        """Apply a message. If it is unreadable, add the error to `complaints` and count its batch as missing."""
        try:
            if len(frames) != 3:
                raise BadFrameError(f"a message has three frames, this one has {len(frames)}")
            number, batch = sequence_number(frames[1]), decode_batch(frames[2])
            if number < 0:
                raise BadFrameError(f"a message has the invalid number {number}")
        except BadFrameError as error:
            self.complaints.append(str(error))
            return
        self.take(number, batch)

    def take(self, number: int, batch: KVEventBatch) -> None:
        """Apply the missing batches before this batch, then this batch."""
        if number < self.next_number:
            if batch.ts <= self.last_time:
                return  # it came by asking already
            self._begin_again()
        if number > self.next_number:
            self._fill(number)
        if number >= self.next_number:
            self._take(number, batch)

    def catch_up(self) -> None:
        """Request all kept batches before any message shows a gap."""
        for number, batch in self._ask():
            self._take_or_note(number, batch)

    def _begin_again(self) -> None:
        """Begin with an empty mirror. A lower number with a later time means that the engine was restarted."""
        self.mirror.forget()
        self.next_number = 0

    def _fill(self, number: int) -> None:
        """Request the missing batches before a message, and record those that are no longer kept."""
        for missed, batch in self._ask():
            if missed < number:
                self._take_or_note(missed, batch)
        if self.next_number < number:
            self._note_gap(number)

    def _take_or_note(self, number: int, batch: KVEventBatch) -> None:
        if number > self.next_number:
            self._note_gap(number)
        if number >= self.next_number:
            self.num_asked_for += 1
            self._take(number, batch)

    def _note_gap(self, number: int) -> None:
        first, last = self.next_number, number - 1
        which = f"batch {first} is" if first == last else f"batches {first} to {last} are"
        self.mirror.note_gap(f"{which} missing")
        self.next_number = number

    def _ask(self) -> list[Message]:
        """Return the kept batches from the next number on, in order, or an empty list without an answer."""
        found = []
        for number_frame, payload in self.replay(self.next_number) or ():
            try:
                found.append((sequence_number(number_frame), decode_batch(payload)))
            except BadFrameError as error:
                self.complaints.append(str(error))
        return sorted(found, key=lambda message: message[0])

    def _take(self, number: int, batch: KVEventBatch) -> None:
        self.mirror.apply(batch)
        self.next_number = number + 1
        self.last_time = batch.ts
        self.on_batch(number, batch)

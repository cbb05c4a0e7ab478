"""A picture of another engine's cache, made of its events alone: which hashes can be found, and in how many blocks.

    mirror = Mirror()
    mirror.apply(batch)          # in the order of their numbers; `Follower` sees to that
    mirror.copies()              # of each hash, in how many blocks it lies

Two requests that compute one prompt in one step fill two blocks with one hash: two events store it, and it can be found
until two events have removed it. So hashes are counted, not kept in a set.

A picture is whole if all events since the cache was empty are in it. If some are missing it says so, and what it shows
may be gone or may not be all; it is whole again when the engine forgets everything.
"""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from mini_kv.serve.kv_events import (
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
    """What a lookup needs to find a block."""

    block_hash: ExternalBlockHash
    group_id: int
    medium: str | None


@dataclass(slots=True)
class MirroredBlock:
    """The blocks of one key."""

    parent: Key | None
    """The key before it; `None` at the beginning of a prompt."""
    token_ids: tuple[int, ...]
    """Its own tokens; empty if the event did not say which are whose."""
    extra_keys: tuple[Any, ...] | None = None
    """What decides its KV beside tokens, in vLLM's order: the adapter's name, images, in a first block the salt."""
    copies: int = 0


class Mirror:
    """The blocks that can be found in another engine, and what is known of them."""

    def __init__(self) -> None:
        """Begin with an empty cache."""
        self.blocks: dict[Key, MirroredBlock] = {}
        self.gaps: list[str] = []
        """What is missing, a sentence per gap. Empty: the picture is whole."""
        self.num_stored = self.num_removed = self.num_unknown_removed = 0
        """Blocks told of since the beginning; the last: removals of blocks that the picture did not have."""

    @property
    def num_blocks(self) -> int:
        """Blocks with a key, twins counted as often as there are."""
        return sum(block.copies for block in self.blocks.values())

    @property
    def num_twins(self) -> int:
        """Blocks that carry a key that another one carries, too."""
        return self.num_blocks - len(self.blocks)

    def copies(self) -> dict[Key, int]:
        """Return in how many blocks each key lies."""
        return {key: block.copies for key, block in self.blocks.items()}

    def apply(self, batch: KVEventBatch) -> None:
        """Let the events of a batch happen."""
        for event in batch.events:
            match event:
                case BlockStored():
                    self._store(event)
                case BlockRemoved():
                    self._remove(event)
                case AllBlocksCleared():
                    self.blocks.clear()
                    self.gaps.clear()

    def note_gap(self, sentence: str) -> None:
        """From here on the picture lacks something."""
        self.gaps.append(sentence)

    def forget(self) -> None:
        """Begin again: the engine has."""
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
"""Returns the second and third frames of the batches from a number on that are still kept. `None`: no answer."""


@dataclass(slots=True)
class Follower:
    """Brings messages to a mirror, each once and in order, and asks for those that are missing."""

    mirror: Mirror
    replay: Replay
    on_batch: Callable[[int, KVEventBatch], None] = lambda number, batch: None
    """Is called with every batch that the mirror takes."""
    next_number: int = 0
    num_asked_for: int = 0
    """Batches that came by asking."""
    last_time: float = 0.0
    complaints: deque[str] = field(default_factory=lambda: deque(maxlen=100))
    """What could not be read, a sentence each; the last ones."""

    def receive(self, frames: list[bytes]) -> None:
        """Take a message; if it cannot be read, complain. What it held is then missing, and is asked for."""
        try:
            if len(frames) != 3:
                raise BadFrameError(f"a message has three frames, this one has {len(frames)}")
            number, batch = sequence_number(frames[1]), decode_batch(frames[2])
            if number < 0:
                raise BadFrameError(f"a message has the number {number}, which is no message's")
        except BadFrameError as error:
            self.complaints.append(str(error))
            return
        self.take(number, batch)

    def take(self, number: int, batch: KVEventBatch) -> None:
        """Take a batch, and before it what is missing."""
        if number < self.next_number:
            if batch.ts <= self.last_time:
                return  # it came by asking already
            self._begin_again()
        if number > self.next_number:
            self._fill(number)
        if number >= self.next_number:
            self._take(number, batch)

    def catch_up(self) -> None:
        """Ask for all that is kept, when there is no message yet that would show a gap."""
        for number, batch in self._ask():
            self._take_or_note(number, batch)

    def _begin_again(self) -> None:
        """Numbers go back and time does not: the engine was started again, with an empty cache."""
        self.mirror.forget()
        self.next_number = 0

    def _fill(self, number: int) -> None:
        """Ask for what is missing before a message; note what cannot be had."""
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
        """Return what is still kept from the next number on, in order, or nothing if there is no answer."""
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

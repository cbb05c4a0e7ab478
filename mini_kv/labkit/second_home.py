"""A pool and a second home for what it forgets, in plain sight, to write the way between them on."""

import hashlib
from dataclasses import dataclass, field


@dataclass(slots=True)
class Entry:
    """A block's content in the second home."""

    payload: bytes
    digest: bytes
    """`digest_of` its key and its payload, as they were when it was stored."""
    num_leases: int = 0
    """How many rely on it right now: while any does, it is not pushed out."""


@dataclass(slots=True)
class SecondHome:
    """Contents by key, the least recently used first; at most `capacity` of them."""

    capacity: int
    entries: dict[str, Entry] = field(default_factory=dict)
    num_damaged: int = 0
    """Entries that were not what they should have been when they were asked for."""


@dataclass(slots=True)
class Block:
    """A block of the pool: what it holds, if it holds something that can be found."""

    key: str | None = None
    payload: bytes = b""


@dataclass(slots=True)
class Pool:
    """Blocks by their ids, and the free ones among them, the next to be handed out first."""

    blocks: dict[int, Block]
    free_queue: list[int]


def digest_of(key: str, payload: bytes) -> bytes:
    """Return the digest of a content under its key: it changes with every bit of either."""
    return hashlib.sha256(key.encode() + b"\0" + payload).digest()

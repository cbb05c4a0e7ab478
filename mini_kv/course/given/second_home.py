"""A simple pool and a second home for evicted blocks, on which a learner writes the transfers between them."""

import hashlib
from dataclasses import dataclass, field


@dataclass(slots=True)
class Entry:
    """A block's content in the second home."""

    payload: bytes
    digest: bytes
    """`digest_of` its key and its payload, at the time of the store."""
    num_leases: int = 0
    """Number of current users. An entry with users is not evicted."""


@dataclass(slots=True)
class SecondHome:
    """At most `capacity` contents by key, the least recently used first."""

    capacity: int
    entries: dict[str, Entry] = field(default_factory=dict)
    num_damaged: int = 0
    """Number of requested entries that were damaged."""


@dataclass(slots=True)
class Block:
    """A block of the pool, with its key and its content if it is cached."""

    key: str | None = None
    payload: bytes = b""


@dataclass(slots=True)
class Pool:
    """Blocks by their ids, and the free ones, in order of their next allocation."""

    blocks: dict[int, Block]
    free_queue: list[int]


def digest_of(key: str, payload: bytes) -> bytes:
    """Return the digest of a content and its key. It changes with every bit of either."""
    return hashlib.sha256(key.encode() + b"\0" + payload).digest()

"""The life of a block as edges of a small state machine.

A block's state is the pair `(ref_cnt, block_hash)`. Every event is a change of that pair. So the engine does not
need to emit events: watching the two attributes is enough.

    ref_cnt  0 -> 1, no hash     allocated         block_hash  none -> h  while in use  cached
             0 -> 1, hash        revived                       h -> none  while free    evicted
             n -> n + 1          shared                        h -> none  while in use  uncached
             n -> n - 1          unshared
             1 -> 0              freed             anything else                        illegal
"""

from enum import StrEnum, unique
from typing import NamedTuple

from mini_kv.core.block import BlockHashWithGroupId


@unique
class EdgeKind(StrEnum):
    """The kinds of changes of a block."""

    ALLOCATED = "allocated"
    REVIVED = "revived"
    SHARED = "shared"
    UNSHARED = "unshared"
    FREED = "freed"
    CACHED = "cached"
    EVICTED = "evicted"
    UNCACHED = "uncached"
    ILLEGAL = "illegal"


class Edge(NamedTuple):
    """One change of one block."""

    kind: EdgeKind
    block_id: int
    ref_cnt: int
    """Count after the change."""
    block_hash: str | None
    """The key in hex: the block's key, or the key that it just lost."""


def ref_cnt_edge(old: int, new: int, has_hash: bool) -> EdgeKind:
    """Return the kind of edge for a change of the reference count."""
    if old < 0 or new < 0 or abs(new - old) != 1:
        return EdgeKind.ILLEGAL
    if new > old:
        if old > 0:
            return EdgeKind.SHARED
        return EdgeKind.REVIVED if has_hash else EdgeKind.ALLOCATED
    return EdgeKind.UNSHARED if new > 0 else EdgeKind.FREED


def block_hash_edge(
    old: BlockHashWithGroupId | None, new: BlockHashWithGroupId | None, ref_cnt: int
) -> EdgeKind | None:
    """Return the kind of edge for a change of the key, or `None` if nothing changed, as from no key to no key."""
    if old is None and new is None:
        return None
    if old is None:
        return EdgeKind.CACHED if ref_cnt > 0 else EdgeKind.ILLEGAL
    if new is None:
        return EdgeKind.UNCACHED if ref_cnt > 0 else EdgeKind.EVICTED
    return EdgeKind.ILLEGAL

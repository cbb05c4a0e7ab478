"""Numbers derived from spans: nothing is counted while the engine runs."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from mini_kv.story.edge import Edge, EdgeKind


class MemoryUse(NamedTuple):
    """Number of blocks of a pool in each state. The three add up to all blocks except the null block."""

    used: int
    """Blocks in use by a request."""
    cached: int
    """Free but cached blocks: a hit can revive them."""
    empty: int
    """Free blocks that are not cached."""


def memory_over_time(batches: Iterable[Sequence[Edge]], num_blocks: int) -> list[MemoryUse]:
    """Return the memory use after each batch of edges: `(span.edges for span in spans)`, or one batch per request.

    Starts from a new pool of `num_blocks` blocks, the null block included. Costs O(edges + batches x blocks).
    """
    held: set[int] = set()
    named: set[int] = set()
    series = []
    for edges in batches:
        for edge in edges:
            _follow(edge, held, named)
        cached = len(named - held)
        series.append(MemoryUse(len(held), cached, num_blocks - 1 - len(held) - cached))
    return series


def _follow(edge: Edge, held: set[int], named: set[int]) -> None:
    """Update the sets of blocks in use and of cached blocks."""
    match edge.kind:
        case EdgeKind.ALLOCATED | EdgeKind.REVIVED:
            held.add(edge.block_id)
        case EdgeKind.FREED:
            held.discard(edge.block_id)
        case EdgeKind.CACHED:
            named.add(edge.block_id)
        case EdgeKind.EVICTED | EdgeKind.UNCACHED:
            named.discard(edge.block_id)

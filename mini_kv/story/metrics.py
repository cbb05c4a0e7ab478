"""Numbers derived from spans: nothing is counted while the engine runs."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from mini_kv.story.edge import Edge, EdgeKind
from mini_kv.story.traced_manager import Span


class MemoryUse(NamedTuple):
    """Number of blocks of a pool in each state. The three add up to all blocks except the null block."""

    used: int
    """Blocks in use by a request."""
    cached: int
    """Free but cached blocks: a hit can revive them."""
    empty: int
    """Free blocks that are not cached."""


def count_edges(spans: Iterable[Span]) -> Counter[EdgeKind]:
    """Return the number of edges of each kind."""
    return Counter(edge.kind for span in spans for edge in span.edges)


def held_over_time(spans: Iterable[Span]) -> list[int]:
    """Return the number of blocks in use after each span."""
    held, series = 0, []
    for span in spans:
        kinds = Counter(edge.kind for edge in span.edges)
        held += kinds[EdgeKind.ALLOCATED] + kinds[EdgeKind.REVIVED] - kinds[EdgeKind.FREED]
        series.append(held)
    return series


def cached_over_time(spans: Iterable[Span]) -> list[int]:
    """Return the number of cached blocks after each span, in use or free."""
    cached, series = 0, []
    for span in spans:
        kinds = Counter(edge.kind for edge in span.edges)
        cached += kinds[EdgeKind.CACHED] - kinds[EdgeKind.EVICTED] - kinds[EdgeKind.UNCACHED]
        series.append(cached)
    return series


def peak_usage(spans: Sequence[Span]) -> int:
    """Return the largest number of blocks in use after any span."""
    return max(held_over_time(spans), default=0)


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

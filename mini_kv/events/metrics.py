"""Numbers folded from spans: nothing is counted while the engine runs."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from mini_kv.events.edge import Edge, EdgeKind
from mini_kv.events.traced_manager import Span


class MemoryUse(NamedTuple):
    """How many blocks of a pool are in each state. The three together are all blocks but the null block."""

    used: int
    """Held by a request."""
    cached: int
    """Held by no request, but cached: a hit can revive it."""
    empty: int
    """Held by no request, and not cached."""


def count_edges(spans: Iterable[Span]) -> Counter[EdgeKind]:
    """Return how often each kind of edge occurred."""
    return Counter(edge.kind for span in spans for edge in span.edges)


def held_over_time(spans: Iterable[Span]) -> list[int]:
    """Return how many blocks are held after each span."""
    held, series = 0, []
    for span in spans:
        kinds = Counter(edge.kind for edge in span.edges)
        held += kinds[EdgeKind.ALLOCATED] + kinds[EdgeKind.REVIVED] - kinds[EdgeKind.FREED]
        series.append(held)
    return series


def cached_over_time(spans: Iterable[Span]) -> list[int]:
    """Return how many blocks carry a key after each span, held or not."""
    cached, series = 0, []
    for span in spans:
        kinds = Counter(edge.kind for edge in span.edges)
        cached += kinds[EdgeKind.CACHED] - kinds[EdgeKind.EVICTED] - kinds[EdgeKind.UNCACHED]
        series.append(cached)
    return series


def peak_usage(spans: Sequence[Span]) -> int:
    """Return the largest number of blocks held after any span."""
    return max(held_over_time(spans), default=0)


def memory_over_time(batches: Iterable[Sequence[Edge]], num_blocks: int) -> list[MemoryUse]:
    """Return where the blocks are after each batch of edges: `(span.edges for span in spans)`, or one per request.

    Starts from an untouched pool of `num_blocks` blocks, the null block included. Costs O(edges + batches x blocks).
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
    """Keep up the sets of blocks that are held and that carry a key."""
    match edge.kind:
        case EdgeKind.ALLOCATED | EdgeKind.REVIVED:
            held.add(edge.block_id)
        case EdgeKind.FREED:
            held.discard(edge.block_id)
        case EdgeKind.CACHED:
            named.add(edge.block_id)
        case EdgeKind.EVICTED | EdgeKind.UNCACHED:
            named.discard(edge.block_id)

"""Numbers folded from spans: nothing is counted while the engine runs."""

from collections import Counter
from collections.abc import Iterable, Sequence

from mini_kv.trace.edge import EdgeKind
from mini_kv.trace.traced_manager import Span


def count_edges(spans: Iterable[Span]) -> Counter[EdgeKind]:
    """Return how often each kind of edge occurred."""
    return Counter(edge.kind for span in spans for edge in span.edges)


def num_evictions(spans: Iterable[Span]) -> int:
    """Return how many blocks lost their key while nobody held them. A reset is not an eviction."""
    return count_edges(span for span in spans if span.call != "reset_prefix_cache")[EdgeKind.EVICTED]


def num_refusals(spans: Iterable[Span]) -> int:
    """Return how many allocations found too few free blocks."""
    return sum(1 for span in spans if span.call == "allocate_slots" and span.result is None and span.error is None)


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

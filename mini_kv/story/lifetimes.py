"""Lifetimes of blocks, their idle time before eviction, and the distance between two uses of a key.

    allocated      cached     freed        revived    freed             evicted
        |------------|----------|------------|----------|------------------|
        born                    idle         found                         ended
        |<------------------------- lifetime ----------------------------->|
                                             |<---- idle before evict ---->|

All is computed from recorded calls. `times` is a number per call, in steps or seconds. Without it the times are 0, 1, 2
and so on. Pass all calls of one pool, from the first on.

Source: vLLM `KVCacheMetricsCollector` (v1/core/kv_cache_metrics.py), which samples one block in a hundred and reports
`kv_block_lifetime_seconds`, `kv_block_idle_before_evict_seconds` and `kv_block_reuse_gap_seconds`. Here no block is
left out.
"""

from bisect import bisect, insort
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from mini_kv.story.edge import Edge, EdgeKind
from mini_kv.story.traced_manager import Span


@dataclass(slots=True)
class Life:
    """One content of one block, from its allocation on."""

    block_id: int
    born: float
    block_hash: str | None = None
    """The key in hex, also after eviction. `None` if the block got no key, or lost it while a request held it."""
    found: list[float] = field(default_factory=list)
    """Times at which a request found it (shared or revived it)."""
    ended: float | None = None
    """Time at which it was evicted, or freed without a key. `None`: not ended yet."""

    @property
    def lifetime(self) -> float | None:
        """Time from its allocation to its end, or `None` if it has not ended."""
        return None if self.ended is None else self.ended - self.born

    @property
    def idle_before_evict(self) -> float | None:
        """Time from its last use (allocated or found) to its end, or `None` if it has not ended."""
        return None if self.ended is None else self.ended - (self.found[-1] if self.found else self.born)


def block_lives(spans: Sequence[Span], times: Sequence[float] | None = None) -> list[Life]:
    """Return every life, in order of allocation. A life that has not ended has no end. Costs O(edges)."""
    lives: list[Life] = []
    now: dict[int, Life] = {}
    for time, edge in _timed(spans, times):
        if edge.kind is EdgeKind.ALLOCATED:
            now[edge.block_id] = Life(edge.block_id, time)
            lives.append(now[edge.block_id])
            continue
        life = now.get(edge.block_id)
        if life is None:  # a faulty cache may change a block that it has not handed out
            continue
        match edge.kind:
            case EdgeKind.CACHED:
                life.block_hash = edge.block_hash
            case EdgeKind.UNCACHED:
                life.block_hash = None
            case EdgeKind.REVIVED | EdgeKind.SHARED:
                life.found.append(time)
            case EdgeKind.EVICTED:
                life.ended = time
            case EdgeKind.FREED if edge.block_hash is None:
                life.ended = time
    return lives


class Reuse(NamedTuple):
    """A use of a key that was used before."""

    block_hash: str
    gap: float
    """Time since its last use."""
    distance: int
    """Number of other keys used in between. An LRU cache finds this key only if it holds all of these, too."""
    found: bool
    """Whether it was found in the cache. Otherwise it was computed again."""


def reuses(spans: Sequence[Span], times: Sequence[float] | None = None) -> list[Reuse]:
    """Return every use of a key except its first. Both computing and finding a block are uses. Costs O(uses * keys).

    The constant is small: the place in a sorted list is found by bisection, and only later entries move.
    """
    last: dict[str, int] = {}
    last_time: dict[str, float] = {}
    in_order: list[int] = []  # the number of each key's last use
    result = []
    for number, (time, edge) in enumerate(_uses(spans, times)):
        key = edge.block_hash
        assert key is not None
        if key in last:
            place = bisect(in_order, last[key])
            found = edge.kind is not EdgeKind.CACHED
            result.append(Reuse(key, time - last_time[key], len(in_order) - place, found))
            del in_order[place - 1]
        last[key], last_time[key] = number, time
        insort(in_order, number)
    return result


def _uses(spans: Sequence[Span], times: Sequence[float] | None) -> Iterator[tuple[float, Edge]]:
    used = (EdgeKind.CACHED, EdgeKind.REVIVED, EdgeKind.SHARED)
    return ((time, edge) for time, edge in _timed(spans, times) if edge.kind in used and edge.block_hash is not None)


def _timed(spans: Sequence[Span], times: Sequence[float] | None) -> Iterator[tuple[float, Edge]]:
    for time, span in zip(range(len(spans)) if times is None else times, spans, strict=True):
        for edge in span.edges:
            yield time, edge


class Residency(NamedTuple):
    """The use of the pool's memory, in blocks times time."""

    found: float
    """Contents that a request found at least once."""
    never_found: float
    """Contents with a key that no request has found."""
    no_key: float
    """Contents that could not be found: not full, or not cached."""


def residency(lives: Iterable[Life], end: float) -> Residency:
    """Return the total time of all lives, by kind of content. Lives that have not ended last until `end`."""
    found = never_found = no_key = 0.0
    for life in lives:
        lasted = (end if life.ended is None else life.ended) - life.born
        if life.block_hash is None:
            no_key += lasted
        elif life.found:
            found += lasted
        else:
            never_found += lasted
    return Residency(found, never_found, no_key)


def histogram(values: Iterable[float]) -> dict[int, int]:
    """Return the number of values below each power of two and not below the one before. 1 counts all values below 1.

    >>> histogram([0, 1, 1.5, 7])
    {1: 1, 2: 2, 4: 0, 8: 1}
    """
    counts: dict[int, int] = {}
    for value in values:
        bound = 1
        while value >= bound:
            bound *= 2
        counts[bound] = counts.get(bound, 0) + 1
    bounds = [1 << i for i in range(max(counts, default=0).bit_length())]
    return {bound: counts.get(bound, 0) for bound in bounds}

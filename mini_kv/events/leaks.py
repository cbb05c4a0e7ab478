"""Which blocks of an engine at work are held for no request that is served: who took them, and when.

`debug.leak_report` speaks when the last request has gone. A server never sees that moment, so here the count of each
block is compared with the tables of the requests that are still served; whatever is held beyond that has leaked. Which
request took it, and in which call, is folded from the recorded calls.
"""

from collections import Counter
from collections.abc import Collection, Sequence
from typing import NamedTuple

from mini_kv.core.kv_cache_manager import KVCacheManager
from mini_kv.events.edge import EdgeKind
from mini_kv.events.story import VERBS, id_runs
from mini_kv.events.traced_manager import Span


class Leak(NamedTuple):
    """Blocks that a request took and did not give back."""

    request_id: str
    """`"?"` if no recorded call took them."""
    block_ids: list[int]
    since: float
    """When it took the first of them."""
    call: str
    """The call that did."""

    def __str__(self) -> str:
        blocks = "block" if len(self.block_ids) == 1 else "blocks"
        taken = f"{VERBS.get(self.call, self.call)} {self.request_id}, since {self.since:g}"
        return f"{blocks} {id_runs(self.block_ids)} taken by {taken}"


class _Taken(NamedTuple):
    time: float
    call: str


def find_leaks(
    kv: KVCacheManager,
    spans: Sequence[Span],
    times: Sequence[float] | None = None,
    alive: Collection[str] | None = None,
) -> list[Leak]:
    """Return the blocks held by no request that is served, by the request that took them, the oldest first.

    Args:
        kv: the cache, now.
        spans: all its calls so far.
        times: when each call was made. Without them, the number of the call is its time.
        alive: the requests that are still served; without it, those that the cache knows.

    Costs O(pool + edges).
    """
    served = kv.requests.keys() & set(kv.requests if alive is None else alive)
    pinned = Counter(block.block_id for block in kv.copy_on_write.pinned)
    holders = _holders(kv, served)
    taken = _taken_by(spans, times)
    leaks: dict[str, Leak] = {}
    for block in kv.block_pool.blocks:
        mine = holders.get(block.block_id, set())
        if block.is_null or block.ref_cnt <= len(mine) + pinned[block.block_id]:
            continue
        takers = {who: at for who, at in taken.get(block.block_id, {}).items() if who not in mine}
        for who, at in (takers or {"?": _Taken(0, "no known call")}).items():
            leak = leaks.setdefault(who, Leak(who, [], at.time, at.call))
            leak.block_ids.append(block.block_id)
            if at.time < leak.since:
                leaks[who] = leak._replace(since=at.time, call=at.call)
    return sorted(leaks.values(), key=lambda leak: leak.since)


def _holders(kv: KVCacheManager, served: Collection[str]) -> dict[int, set[str]]:
    """Return which of these requests have each block in their tables."""
    holders: dict[int, set[str]] = {}
    for request_id in served:
        for table in kv.get_block_ids(request_id):
            for block_id in table:
                holders.setdefault(block_id, set()).add(request_id)
    return holders


def _taken_by(spans: Sequence[Span], times: Sequence[float] | None) -> dict[int, dict[str, _Taken]]:
    """Return which requests took each block and have not given it back, and when, as far as the calls say."""
    taken: dict[int, dict[str, _Taken]] = {}
    for time, span in zip(range(len(spans)) if times is None else times, spans, strict=True):
        who = span.request_id
        for edge in span.edges:
            takers = taken.setdefault(edge.block_id, {})
            match edge.kind:
                case EdgeKind.ALLOCATED | EdgeKind.REVIVED | EdgeKind.SHARED if who is not None:
                    takers.setdefault(who, _Taken(time, span.call))
                case EdgeKind.UNSHARED if who is not None:
                    takers.pop(who, None)
                case EdgeKind.FREED:
                    takers.clear()
    return taken

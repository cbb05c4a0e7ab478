"""Finds leaked blocks in a running engine: blocks in use by no served request, with the request that took them.

`debug.leak_report` works when the last request has ended. That never happens on a server. So here each block's
reference count is compared with the tables of the requests that are still served. Every additional reference is a leak.
The request and the call that took it are derived from the recorded calls.
"""

from collections import Counter
from collections.abc import Collection, Sequence
from typing import NamedTuple

from mini_kv.core.kv_cache_manager import KVCacheManager
from mini_kv.story.edge import EdgeKind
from mini_kv.story.story_text import VERBS, id_runs
from mini_kv.story.traced_manager import Span


class Leak(NamedTuple):
    """Blocks that a request took and did not free."""

    request_id: str
    """`"?"` if no recorded call took them."""
    block_ids: list[int]
    since: float
    """Time at which it took the first of them."""
    call: str
    """The call that took the first of them."""

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
    """Return the leaked blocks, grouped by the request that took them, the oldest first.

    Args:
        kv: the cache, now.
        spans: all its calls so far.
        times: the time of each call. Without them, the number of the call is its time.
        alive: the requests that are still served. Without it, the admitted requests of the cache.

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
    """Return, per block, those of these requests that have it in their tables."""
    holders: dict[int, set[str]] = {}
    for request_id in served:
        for table in kv.get_block_ids(request_id):
            for block_id in table:
                holders.setdefault(block_id, set()).add(request_id)
    return holders


def _taken_by(spans: Sequence[Span], times: Sequence[float] | None) -> dict[int, dict[str, _Taken]]:
    """Return, per block, the requests that took it and did not free it, and the time, according to the calls."""
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

"""Several sessions like one at the same time, for the size of a pool that many people share."""

from collections.abc import Sequence
from dataclasses import replace

from mini_kv.tools.traces.readers.mooncake import TraceRequest


def crowd(trace: Sequence[TraceRequest], count: int) -> list[TraceRequest]:
    """Return the requests of `count` sessions like this one, in the order of their times.

    They begin one after the other, at equal distances, in the time that the session takes. They share no block: each
    has other texts.

    Args:
        trace: the requests of one session.
        count: at least 1.
    """
    numbers = max((number for request in trace for number in request.hash_ids), default=0) + 1
    span = max(request.timestamp for request in trace)
    requests = []
    for copy in range(count):
        for request in trace:
            ids = tuple(_own(number, copy, numbers, len(trace)) for number in request.hash_ids)
            requests.append(replace(request, timestamp=request.timestamp + copy * span // count, hash_ids=ids))
    return sorted(requests, key=lambda request: request.timestamp)


def _own(number: int, copy: int, numbers: int, num_requests: int) -> int:
    """Return the copy's number for a block. Negative ones are partial blocks, one per request."""
    return number + copy * numbers if number >= 0 else number - copy * num_requests

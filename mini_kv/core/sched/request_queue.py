"""The waiting queue, in two orders: by arrival, or by priority and then arrival."""

import heapq
from collections import deque
from collections.abc import Iterable, Iterator
from enum import Enum, unique
from typing import Protocol, Self

from mini_kv.core.request import Request


@unique
class SchedulingPolicy(Enum):
    """The order in which requests are served. Preemption uses the reverse order."""

    FCFS = "fcfs"
    """First come, first served."""
    PRIORITY = "priority"
    """The smaller `Request.priority` first; among equals, first come, first served."""


class RequestQueue(Protocol):
    """The waiting requests, in the order in which they will be served.

    Source: vLLM `RequestQueue` (v1/core/sched/request_queue.py).
    """

    def add_request(self, request: Request) -> None:
        """Add a request at its place in the order."""

    def peek_request(self) -> Request:
        """Return the next request without removing it. Raises `IndexError` if none waits."""

    def pop_request(self) -> Request:
        """Remove and return the next request. Raises `IndexError` if none waits."""

    def prepend_request(self, request: Request) -> None:
        """Put back a request that was running. It precedes all requests that arrived after it."""

    def remove_request(self, request: Request) -> None:
        """Remove a request at any position. Costs O(waiting)."""

    def copy(self) -> Self:
        """Return a queue of the same requests in the same order. Costs O(waiting)."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Request]: ...


class FCFSRequestQueue(deque[Request]):
    """First come, first served: new requests at the end, preempted requests at the front."""

    def add_request(self, request: Request) -> None:
        """Add a request at the end."""
        self.append(request)

    def peek_request(self) -> Request:
        """Return the first request and leave it where it is."""
        return self[0]

    def pop_request(self) -> Request:
        """Take the first request out and return it."""
        return self.popleft()

    def prepend_request(self, request: Request) -> None:
        """Put a request at the front."""
        self.appendleft(request)

    def remove_request(self, request: Request) -> None:
        """Take out a request, wherever it stands."""
        self.remove(request)


class PriorityRequestQueue:
    """The smallest `(priority, arrival)` first. A preempted request keeps both, so it returns to its old position."""

    def __init__(self, heap: Iterable[tuple[int, int, Request]] = ()) -> None:
        """Start with a copy of another queue's heap, or without requests."""
        self._heap = list(heap)

    def add_request(self, request: Request) -> None:
        """Add a request at its place by priority and arrival."""
        heapq.heappush(self._heap, (request.priority, request.arrival, request))

    def peek_request(self) -> Request:
        """Return the first request and leave it where it is."""
        return self._heap[0][2]

    def pop_request(self) -> Request:
        """Take the first request out and return it."""
        return heapq.heappop(self._heap)[2]

    def prepend_request(self, request: Request) -> None:
        """Add a request at its place by priority and arrival, which is also its place after a preemption."""
        self.add_request(request)

    def remove_request(self, request: Request) -> None:
        """Take out a request, wherever it stands."""
        self._heap.remove((request.priority, request.arrival, request))
        heapq.heapify(self._heap)

    def copy(self) -> "PriorityRequestQueue":
        """Return a queue of the same requests in the same order."""
        return PriorityRequestQueue(self._heap)

    def __len__(self) -> int:
        return len(self._heap)

    def __iter__(self) -> Iterator[Request]:
        return (request for _, _, request in sorted(self._heap, key=lambda entry: entry[:2]))


def create_request_queue(policy: SchedulingPolicy) -> RequestQueue:
    """Return an empty queue in the order of this policy."""
    return PriorityRequestQueue() if policy is SchedulingPolicy.PRIORITY else FCFSRequestQueue()

"""The waiting line, in two orders: by arrival, or by priority and then arrival."""

import heapq
from collections import deque
from collections.abc import Iterable, Iterator
from enum import Enum, unique
from typing import Protocol, Self

from mini_kv.core.request import Request


@unique
class SchedulingPolicy(Enum):
    """Which request is served first, and which gives way last."""

    FCFS = "fcfs"
    """First come, first served."""
    PRIORITY = "priority"
    """The smaller `Request.priority` first; among equals, first come, first served."""


class RequestQueue(Protocol):
    """Requests that wait, in the order in which they will be served.

    Source: vLLM `RequestQueue` (v1/core/sched/request_queue.py).
    """

    def add_request(self, request: Request) -> None:
        """Put a request where its order says."""

    def peek_request(self) -> Request:
        """Return the next request and leave it where it is. Raises `IndexError` if none waits."""

    def pop_request(self) -> Request:
        """Take the next request out and return it. Raises `IndexError` if none waits."""

    def prepend_request(self, request: Request) -> None:
        """Put back a request that was served before: it goes before all that arrived after it."""

    def remove_request(self, request: Request) -> None:
        """Take out a request, wherever it stands. Costs O(waiting)."""

    def copy(self) -> Self:
        """Return a line of the same requests in the same order. Costs O(waiting)."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Request]: ...


class FCFSRequestQueue(deque[Request]):
    """First come, first served: newcomers at the end, preempted requests at the front."""

    def add_request(self, request: Request) -> None:
        """Put a request at the end."""
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
    """The smallest `(priority, arrival)` first. A request that was sent back keeps both, and so its place."""

    def __init__(self, heap: Iterable[tuple[int, int, Request]] = ()) -> None:
        """Start with a copy of another line's heap, or without requests."""
        self._heap = list(heap)

    def add_request(self, request: Request) -> None:
        """Put a request where its priority and arrival say."""
        heapq.heappush(self._heap, (request.priority, request.arrival, request))

    def peek_request(self) -> Request:
        """Return the first request and leave it where it is."""
        return self._heap[0][2]

    def pop_request(self) -> Request:
        """Take the first request out and return it."""
        return heapq.heappop(self._heap)[2]

    def prepend_request(self, request: Request) -> None:
        """Put a request where its priority and arrival say: there is no other front."""
        self.add_request(request)

    def remove_request(self, request: Request) -> None:
        """Take out a request, wherever it stands."""
        self._heap.remove((request.priority, request.arrival, request))
        heapq.heapify(self._heap)

    def copy(self) -> "PriorityRequestQueue":
        """Return a line of the same requests in the same order."""
        return PriorityRequestQueue(self._heap)

    def __len__(self) -> int:
        return len(self._heap)

    def __iter__(self) -> Iterator[Request]:
        return (request for _, _, request in sorted(self._heap, key=lambda entry: entry[:2]))


def create_request_queue(policy: SchedulingPolicy) -> RequestQueue:
    """Return an empty line in the order of that policy."""
    return PriorityRequestQueue() if policy is SchedulingPolicy.PRIORITY else FCFSRequestQueue()

"""What a scheduler keeps, and how a call of it is undone that was interrupted.

A call is done or not done. What it may change is copied when it begins, a request when the call first changes it; the
cache's tables are noted by the journal (`mini_kv.core.journal`). An exception puts everything back.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, TypeVar, cast

from mini_kv.core.kv_cache_manager import KVCacheManager
from mini_kv.core.request import Request
from mini_kv.core.sched.output import SchedulerOutput
from mini_kv.core.sched.request_queue import RequestQueue
from mini_kv.core.undo import Undo

Method = TypeVar("Method", bound=Callable[..., Any])


@dataclass(slots=True)
class Step:
    """A step, while it is being planned and until its results are there."""

    token_budget: int
    output: SchedulerOutput = field(default_factory=SchedulerOutput)
    requests: dict[str, Request] = field(default_factory=dict)
    """The requests in it. One that is aborted meanwhile stays, so that a new one of the same id is not taken for it."""
    long_prefill_token_threshold: int = 0

    def take_out(self, request_id: str) -> None:
        """Undo that the request was scheduled; its tokens are in the budget again."""
        self.token_budget += self.output.num_scheduled_tokens.get(request_id, 0)
        self.requests.pop(request_id, None)
        self.output.drop(request_id)


@dataclass(slots=True)
class Before:
    """The scheduler's state when a call began."""

    running: list[Request]
    waiting: RequestQueue
    step: Step | None
    num_preemptions: int
    num_arrived: int
    finished_req_ids: list[str]
    preempted_req_ids: list[str]
    unknown_to_worker: set[str]
    states: dict[Request, tuple[Any, ...]] = field(default_factory=dict)
    """The state before the call of each request that it has changed: see `Request.state`."""
    progress: list[tuple[Request, int, int, int]] = field(default_factory=list)
    """Each request of the step whose results come, with its earlier numbers of computed tokens, tokens and hashes."""


def all_or_nothing(method: Method) -> Method:
    """Make the method undo what it has done if it raises; if that is interrupted too, the next call finishes it."""

    @wraps(method)
    def whole(self: "TransactionalScheduler", *args: Any, **kwargs: Any) -> Any:
        self._recover()
        self._begin()
        try:
            result = method(self, *args, **kwargs)
            self._undo.journal.is_open = False  # from here on it is done
            return result
        except BaseException:
            self._roll_back()
            raise

    return cast(Method, whole)


class TransactionalScheduler:
    """The state of a scheduler, and how to go back to what it was when a call began."""

    def __init__(self, kv_cache_manager: KVCacheManager, waiting: RequestQueue) -> None:
        """Start without requests."""
        self.kv_cache_manager = kv_cache_manager
        self.waiting = waiting
        self.running: list[Request] = []
        """The running requests in the order of admission: the last one is preempted first."""
        self.requests: dict[str, Request] = {}
        """All unfinished requests, by id."""
        self.num_preemptions = 0
        self.step: Step | None = None
        """The step that is being planned, or that the worker has; `None` between steps."""
        self._num_arrived = 0
        self._finished_req_ids: list[str] = []
        self._preempted_req_ids: list[str] = []
        self._unknown_to_worker: set[str] = set()
        """Forked requests that no step has told the worker of yet."""
        self._undo = Undo(kv_cache_manager)
        self._before = self._now()

    def _begin(self) -> None:
        """Note all that the call may change. What it changes of a request is noted when it does: `_remember`."""
        self._before = self._now()
        self._undo.begin()

    def _now(self) -> Before:
        return Before(
            list(self.running),
            self.waiting.copy(),
            self.step,
            self.num_preemptions,
            self._num_arrived,
            list(self._finished_req_ids),
            list(self._preempted_req_ids),
            set(self._unknown_to_worker),
        )

    def _remember(self, request: Request) -> None:
        """Note a request before it is changed."""
        if self._undo.journal.is_open and request not in self._before.states:
            self._before.states[request] = request.state()

    def _recover(self) -> None:
        """Finish the roll back of a call that was interrupted so badly that it could not do so itself."""
        if self._undo.journal.is_open:
            self._roll_back()

    def _roll_back(self) -> None:
        """Put everything back as it was at `_begin`. May itself be interrupted, and called again."""
        before = self._before
        if not self._undo.journal.is_open:
            return
        for request, state in before.states.items():
            request.restore(state)
        for request, num_computed_tokens, num_tokens, num_block_hashes in before.progress:
            request.num_computed_tokens = num_computed_tokens
            request.truncate(num_tokens, num_block_hashes)
        self.running, self.waiting, self.step = list(before.running), before.waiting.copy(), before.step
        self.num_preemptions, self._num_arrived = before.num_preemptions, before.num_arrived
        self._finished_req_ids, self._preempted_req_ids = list(before.finished_req_ids), list(before.preempted_req_ids)
        self._unknown_to_worker = set(before.unknown_to_worker)
        unfinished = sorted([*self.running, *self.waiting], key=lambda request: request.arrival)
        self.requests = {request.request_id: request for request in unfinished}
        self._undo.roll_back()
        self._undo.journal.is_open = False

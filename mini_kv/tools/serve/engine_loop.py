"""The loop that steps the engine, in its own thread. The requests of all clients share its batch.

Clients run in an asyncio loop. Their calls reach the engine's thread through an inbox. The engine's new tokens go to a
queue per client, once per step. No client can delay another, because the thread never waits for a client. If a client's
queue is full, its requests are aborted.

If a step raises, the engine has aborted the requests of that step, and the others continue. The clients of aborted
requests get an error, and `problem` keeps the message until a step succeeds again.

Source: vLLM `AsyncLLM` (v1/engine/async_llm.py), where the engine is a process of its own.
"""

import asyncio
import itertools
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol

from mini_kv.core.errors import KVCacheError
from mini_kv.engine.llm_engine import LLMEngine
from mini_kv.engine.output_processor import DeltaOutput, sample_name
from mini_kv.engine.sampling import SamplingParams
from mini_kv.tools.serve.protocol import RequestError

MOST_PIECES = 4096
"""The most pieces of an answer that are kept for a client that does not fetch them."""
LONGEST_STEP_S = 60.0
"""Seconds after which `health` reports a step that has not returned."""

Piece = DeltaOutput | RequestError
"""One item for a client: a token's text, or the error that ends its answer."""


class Mailbox:
    """The pieces for one client, kept until the client fetches them."""

    def __init__(self, most: int = MOST_PIECES) -> None:
        """Begin empty. With `most` pieces it is full."""
        self.most = most
        self.pieces: list[Piece] = []
        self._news = asyncio.Event()

    def put(self, piece: Piece) -> None:
        """Add a piece."""
        self.pieces.append(piece)
        self._news.set()

    async def fetch(self) -> list[DeltaOutput]:
        """Wait for pieces, remove and return them. Raises the `RequestError` that ends the answer."""
        await self._news.wait()
        self._news.clear()
        said: list[DeltaOutput] = []
        while self.pieces and not isinstance(self.pieces[0], RequestError):
            said.append(self.pieces.pop(0))  # type: ignore[arg-type]
        if not said and isinstance(self.pieces[0], RequestError):
            raise self.pieces[0]
        if self.pieces:
            self._news.set()
        return said


@dataclass(eq=False)
class Ticket:
    """A running or waiting request, as its client sees it. Only the clients' thread uses it, except for the times."""

    request_id: str
    prompt_token_ids: list[int]
    params: SamplingParams
    n: int
    cache_salt: str | None
    accepted: "asyncio.Future[None]"
    """Done when the engine has accepted or refused the request."""
    mailbox: Mailbox
    num_open: int = 0
    """Number of samples that have not ended."""
    arrived: float = field(default_factory=time.perf_counter)
    first_token: float | None = None


class Watcher(Protocol):
    """Observes the loop. Its methods are called in the engine's thread."""

    def on_request(self, ticket: Ticket) -> None:
        """Record that the engine accepted a request."""

    def on_token(self, ticket: Ticket, delta: DeltaOutput) -> None:
        """Record a new token of the request."""

    def on_step(self, busy: bool) -> None:
        """Record the end of one round of the loop. `busy`: the next step follows at once."""


class EngineLoop:
    """An engine, the thread that steps it, and the tickets of its requests."""

    def __init__(
        self,
        engine: LLMEngine,
        *,
        max_waiting: int = 256,
        least_step_s: float = 0.0,
        watchers: Iterable[Watcher] = (),
    ) -> None:
        """Take an engine without requests.

        Args:
            engine: only the loop's thread may touch it from `start` on.
            max_waiting: texts that may wait in addition to those that run. Further requests get status 429.
            least_step_s: minimum seconds per step, so that people can watch.
            watchers: observe requests, tokens and rounds.
        """
        self.engine = engine
        self.max_texts = engine.config.scheduler.max_num_seqs + max_waiting
        self.draining = False
        self.problem: str | None = None
        """The error of the last step. `None`: it did not fail."""
        self.num_failures = 0
        self._least_step_s, self._watchers = least_step_s, list(watchers)
        self._tickets: dict[str, Ticket] = {}
        self._names = map(_letter, itertools.count())
        self._inbox: list[Callable[[], None]] = []
        self._wake = threading.Condition()
        self._stopping = False
        self._step_began: float | None = None
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    # Called in the clients' thread.

    def start(self) -> None:
        """Start the thread. Call this inside the clients' asyncio loop."""
        self._clients = asyncio.get_running_loop()
        self._thread.start()

    async def stop(self) -> None:
        """Abort the remaining requests, send their clients an error, and end the thread."""
        self.abort_all("the server has ended")
        with self._wake:
            self._stopping = True
            self._wake.notify()
        await asyncio.to_thread(self._thread.join)

    @property
    def num_texts(self) -> int:
        """Number of texts that run or wait."""
        return sum(ticket.num_open for ticket in self._tickets.values())

    def check_room(self, num_texts: int) -> None:
        """Raise `RequestError` if the loop cannot accept `num_texts` more texts now."""
        if self.draining:
            raise RequestError("the server is shutting down", status=503, code="shutting_down", retry_after=5)
        if self.num_texts + num_texts > self.max_texts:
            message = f"{self.num_texts} texts are running or waiting, at most {self.max_texts}: try again in a second"
            raise RequestError(message, status=429, code="queue_full", retry_after=1)

    def submit(
        self, token_ids: list[int], params: SamplingParams, n: int, cache_salt: str | None, mailbox: Mailbox
    ) -> Ticket:
        """Put a request into the engine's inbox. Await `Ticket.accepted` to know whether the engine accepted it."""
        accepted = self._clients.create_future()
        ticket = Ticket(next(self._names), token_ids, params, n, cache_salt, accepted, mailbox, num_open=n)
        self._tickets[ticket.request_id] = ticket
        self.post(lambda: self._add(ticket))
        return ticket

    def cancel(self, ticket: Ticket) -> None:
        """Abort a request, or do nothing if it has ended."""
        if self._tickets.pop(ticket.request_id, None) is not None:
            self.post(lambda: self.engine.abort(ticket.request_id))

    def abort_all(self, message: str) -> None:
        """Abort all requests, and send their clients the message."""
        for ticket in list(self._tickets.values()):
            self._deliver([(ticket, RequestError(message, status=503, code="shutting_down"))])
            self.post(lambda name=ticket.request_id: self.engine.abort(name))  # type: ignore[misc]

    def post(self, call: Callable[[], None]) -> None:
        """Call this in the engine's thread, between two steps."""
        with self._wake:
            self._inbox.append(call)
            self._wake.notify()

    def health(self) -> str | None:
        """Return the fault (a step that does not return, a failed step, an ended thread) or `None`."""
        began = self._step_began
        if began is not None and time.perf_counter() - began > LONGEST_STEP_S:
            return f"a step has not returned for {time.perf_counter() - began:.0f} s"
        return self.problem if self._thread.is_alive() else "the engine's thread has ended"

    def _deliver(self, pieces: list[tuple[Ticket, Piece]]) -> None:
        """Put pieces in their clients' queues."""
        for ticket, piece in pieces:
            if self._tickets.get(ticket.request_id) is not ticket:
                continue  # its client is gone
            if len(ticket.mailbox.pieces) >= ticket.mailbox.most:
                message = f"{ticket.mailbox.most} pieces of this answer were not read: the request was aborted"
                self.cancel(ticket)
                ticket.mailbox.pieces.clear()
                piece = RequestError(message, status=503, code="too_slow")
            ticket.mailbox.put(piece)
            if isinstance(piece, RequestError):
                ticket.num_open = 0
            elif piece.finish_reason is not None:
                ticket.num_open -= 1
            if ticket.num_open == 0:
                self._tickets.pop(ticket.request_id, None)

    def _answer(self, ticket: Ticket, error: Exception | None) -> None:
        """Report to the client whether the engine accepted the request."""
        if error is not None:
            self._tickets.pop(ticket.request_id, None)
        if ticket.accepted.done():
            return  # its client is gone
        if error is None:
            ticket.accepted.set_result(None)
        else:
            ticket.accepted.set_exception(error)

    # Called in the engine's thread.

    def _run(self) -> None:
        while True:
            with self._wake:
                while not (self._inbox or self._stopping or self.engine.has_unfinished_requests):
                    self._wake.wait()
                inbox, self._inbox = self._inbox, []
            if self._stopping and not inbox:
                return
            began = time.perf_counter()
            self._turn(inbox)
            busy = self.engine.has_unfinished_requests
            if busy and self._least_step_s:
                time.sleep(max(0.0, began + self._least_step_s - time.perf_counter()))

    def _turn(self, inbox: list[Callable[[], None]]) -> None:
        """Make the calls of the inbox, then a step. The loop survives every exception of the engine."""
        try:
            for call in inbox:
                call()
            if self.engine.has_unfinished_requests:
                self._step()
            for watcher in self._watchers:
                watcher.on_step(self.engine.has_unfinished_requests)
        except BaseException as error:  # a learner's part may raise SystemExit, and a thread has no one to tell
            self._failed(error)
        finally:
            self._step_began = None

    def _add(self, ticket: Ticket) -> None:
        error: Exception | None = None
        try:
            self.engine.add_request(
                ticket.request_id, ticket.prompt_token_ids, ticket.params, n=ticket.n, cache_salt=ticket.cache_salt
            )
            for watcher in self._watchers:
                watcher.on_request(ticket)
        except KVCacheError as refused:
            error = RequestError(str(refused), "prompt")
        except Exception as broken:
            error = RequestError(f"the engine could not admit the request: {_named(broken)}", status=500)
        self.to_clients(lambda: self._answer(ticket, error))

    def _step(self) -> None:
        self._step_began = time.perf_counter()
        deltas = self.engine.step()
        self.problem = None
        pieces: list[tuple[Ticket, Piece]] = []
        for delta in deltas:
            ticket = self._tickets.get(delta.request_id)
            if ticket is None:
                continue  # given up a moment ago
            for watcher in self._watchers:
                watcher.on_token(ticket, delta)
            pieces.append((ticket, delta))
        if pieces:
            self.to_clients(lambda: self._deliver(pieces))

    def _failed(self, error: BaseException) -> None:
        """Report the error to the clients of lost requests. If none is lost, abort all, or each step would fail."""
        self.problem = _named(error)
        self.num_failures += 1
        known = list(self._tickets.values())
        alive = self.engine.scheduler.requests
        lost = [one for one in known if not any(sample_name(one.request_id, i) in alive for i in range(one.n))]
        if not lost:
            lost = known
            for ticket in lost:
                self.post(lambda name=ticket.request_id: self.engine.abort(name))  # type: ignore[misc]
        told = RequestError(f"the engine's step failed: {self.problem}", status=500, code="engine_failed")
        self.to_clients(lambda: self._deliver([(ticket, told) for ticket in lost]))

    def to_clients(self, call: Callable[[], object]) -> None:
        """Call this in the clients' thread."""
        if not self._clients.is_closed():
            self._clients.call_soon_threadsafe(call)


def _named(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".removesuffix(": ")


def _letter(index: int) -> str:
    """Return A, B, ..., Z, A2, B2, ...: short enough to label a row of the figure."""
    round_, letter = divmod(index, 26)
    return chr(ord("A") + letter) + (str(round_ + 1) if round_ else "")

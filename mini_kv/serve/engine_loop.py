"""The one loop that steps the engine, in a thread of its own; the requests of all clients meet in its batch.

Clients live in an asyncio loop. What they want goes to the engine's thread through an inbox; what the engine says comes
back once a step, and lands in a queue of each client. No client can hold up another: the thread waits for none, and one
that does not fetch its pieces is given up when too many of them lie there.

If a step raises, the engine has aborted the requests of that step, and the others go on: their clients are told, and
`problem` says so until a step succeeds again. Source: vLLM `AsyncLLM` (v1/engine/async_llm.py), where the engine is a
process of its own.
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
from mini_kv.serve.protocol import RequestError

MOST_PIECES = 4096
"""Pieces of an answer that may wait for a client that does not fetch them."""
LONGEST_STEP_S = 60.0
"""Seconds after which a step that has not come back is called a problem."""

Piece = DeltaOutput | RequestError
"""What a client gets: a token's text, or why there will be no more."""


class Mailbox:
    """What has been said to one client and lies there until it is fetched."""

    def __init__(self, most: int = MOST_PIECES) -> None:
        """Begin empty; with `most` pieces it is full."""
        self.most = most
        self.pieces: list[Piece] = []
        self._news = asyncio.Event()

    def put(self, piece: Piece) -> None:
        """Add a piece."""
        self.pieces.append(piece)
        self._news.set()

    async def fetch(self) -> list[DeltaOutput]:
        """Wait until there is something, and take it out. Raises the `RequestError` that ends the answer."""
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
    """A request under way, as its client sees it. Belongs to the clients' thread, but for the times."""

    request_id: str
    prompt_token_ids: list[int]
    params: SamplingParams
    n: int
    cache_salt: str | None
    accepted: "asyncio.Future[None]"
    """Done when the engine has taken the request in, or has refused it."""
    mailbox: Mailbox
    num_open: int = 0
    """Samples that have not come to their end."""
    arrived: float = field(default_factory=time.perf_counter)
    first_token: float | None = None


class Watcher(Protocol):
    """What looks on: called in the engine's thread."""

    def came(self, ticket: Ticket) -> None:
        """A request was taken in."""

    def said(self, ticket: Ticket, delta: DeltaOutput) -> None:
        """A token of it was chosen."""

    def turned(self, busy: bool) -> None:
        """The loop has gone round; `busy`: the next step follows at once."""


class EngineLoop:
    """An engine, the thread that steps it, and the tickets of the requests that are in it."""

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
            max_waiting: texts that may wait beside those that run; more are refused, to come again later.
            least_step_s: seconds that a step takes at least, so that people can watch.
            watchers: are told what happens.
        """
        self.engine = engine
        self.max_texts = engine.config.scheduler.max_num_seqs + max_waiting
        self.draining = False
        self.problem: str | None = None
        """What the last step failed with. `None`: it did not fail."""
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
        """Begin, inside the asyncio loop in which the clients live."""
        self._clients = asyncio.get_running_loop()
        self._thread.start()

    async def stop(self) -> None:
        """Abort what is left, tell its clients, and end the thread."""
        self.abort_all("the server has ended")
        with self._wake:
            self._stopping = True
            self._wake.notify()
        await asyncio.to_thread(self._thread.join)

    @property
    def num_texts(self) -> int:
        """Texts that are under way, running or waiting."""
        return sum(ticket.num_open for ticket in self._tickets.values())

    def check_room(self, num_texts: int) -> None:
        """Raise `RequestError` if this number of texts cannot be taken in now."""
        if self.draining:
            raise RequestError("the server is shutting down", status=503, code="shutting_down", retry_after=5)
        if self.num_texts + num_texts > self.max_texts:
            message = f"{self.num_texts} texts are under way and {self.max_texts} may be: try again in a second"
            raise RequestError(message, status=429, code="queue_full", retry_after=1)

    def submit(
        self, token_ids: list[int], params: SamplingParams, n: int, cache_salt: str | None, mailbox: Mailbox
    ) -> Ticket:
        """Put a request in the engine's inbox; await `Ticket.accepted` to know whether it took it."""
        accepted = self._clients.create_future()
        ticket = Ticket(next(self._names), token_ids, params, n, cache_salt, accepted, mailbox, num_open=n)
        self._tickets[ticket.request_id] = ticket
        self.post(lambda: self._add(ticket))
        return ticket

    def cancel(self, ticket: Ticket) -> None:
        """Give up a request; nothing if it has ended."""
        if self._tickets.pop(ticket.request_id, None) is not None:
            self.post(lambda: self.engine.abort(ticket.request_id))

    def abort_all(self, message: str) -> None:
        """Give up all requests, and tell their clients why."""
        for ticket in list(self._tickets.values()):
            self._deliver([(ticket, RequestError(message, status=503, code="shutting_down"))])
            self.post(lambda name=ticket.request_id: self.engine.abort(name))  # type: ignore[misc]

    def post(self, call: Callable[[], None]) -> None:
        """Have this called in the engine's thread, between two steps."""
        with self._wake:
            self._inbox.append(call)
            self._wake.notify()

    def health(self) -> str | None:
        """Return the fault: a step that hangs, an error, or the end of the thread, or `None` if there is none."""
        began = self._step_began
        if began is not None and time.perf_counter() - began > LONGEST_STEP_S:
            return f"a step has not come back for {time.perf_counter() - began:.0f} s"
        return self.problem if self._thread.is_alive() else "the engine's thread has ended"

    def _deliver(self, pieces: list[tuple[Ticket, Piece]]) -> None:
        """Put pieces in their clients' queues."""
        for ticket, piece in pieces:
            if self._tickets.get(ticket.request_id) is not ticket:
                continue  # its client is gone
            if len(ticket.mailbox.pieces) >= ticket.mailbox.most:
                message = f"{ticket.mailbox.most} pieces of this answer wait to be read: it was given up"
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
        """Tell whether the request was taken in."""
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
        """Do what was asked for, then make a step. Whatever a part of the engine raises, the loop goes on."""
        try:
            for call in inbox:
                call()
            if self.engine.has_unfinished_requests:
                self._step()
            for watcher in self._watchers:
                watcher.turned(self.engine.has_unfinished_requests)
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
                watcher.came(ticket)
        except KVCacheError as refused:
            error = RequestError(str(refused), "prompt")
        except Exception as broken:
            error = RequestError(f"the engine could not take it in: {_named(broken)}", status=500)
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
                watcher.said(ticket, delta)
            pieces.append((ticket, delta))
        if pieces:
            self.to_clients(lambda: self._deliver(pieces))

    def _failed(self, error: BaseException) -> None:
        """Tell the clients whose requests are lost; if none is, all are: else the same step would fail for ever."""
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
        """Have this called in the clients' thread."""
        if not self._clients.is_closed():
            self._clients.call_soon_threadsafe(call)


def _named(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".removesuffix(": ")


def _letter(index: int) -> str:
    """Return A, B, ..., Z, A2, B2, ...: short enough to stand beside a row of the figure."""
    round_, letter = divmod(index, 26)
    return chr(ord("A") + letter) + (str(round_ + 1) if round_ else "")

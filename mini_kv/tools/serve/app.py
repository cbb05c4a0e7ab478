"""The endpoint: its addresses, the limits that it checks before any work, and the end of every request.

    POST /v1/completions   /v1/chat/completions        GET /v1/models   /health   /metrics   / and its files

A request is refused as early as possible: no key (401), a body too large (413) or not JSON, a wrong field (400), no
room in the queue (429, with Retry-After). An accepted request ends in one of four ways: its last token, its client's
disconnect, a failed step, the end of the server.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from mini_kv.core.errors import KVCacheError
from mini_kv.engine.llm import chat_prompts
from mini_kv.engine.llm_engine import LLMEngine
from mini_kv.engine.prompt_tokens import Prompt, PromptError, prompt_token_ids
from mini_kv.tools.serve.answers import Answer
from mini_kv.tools.serve.engine_loop import EngineLoop, Mailbox, Ticket
from mini_kv.tools.serve.live_page import LivePage
from mini_kv.tools.serve.prometheus import Metrics
from mini_kv.tools.serve.protocol import Ask, Fields, RequestError, read_chat, read_completion, read_json
from mini_kv.tools.serve.streams import EventStream, send_events, send_piece, unless_gone
from mini_kv.tools.serve.tenants import Tenants

BODY_S = 30.0
"""Seconds within which the whole body must arrive."""
CHARACTERS_PER_TOKEN = 128
"""More characters than any token of a known vocabulary has. Longer texts are refused before they are tokenized."""
LOOPBACK = ("127.0.0.1", "localhost", "::1")


@dataclass
class Service:
    """The engine, the limits and the page of one endpoint."""

    loop: EngineLoop
    model_name: str
    metrics: Metrics
    tenants: Tenants = field(default_factory=Tenants)
    page: LivePage | None = None
    """The page at /. `None`: the address does not exist."""
    max_body_bytes: int = 1 << 20
    grace_s: float = 30.0
    """Seconds that running and waiting requests get to finish when the server shuts down."""
    on_end: Callable[[], None] = lambda: None
    """Called after the engine's thread has ended."""
    make_mailbox: Callable[[], Mailbox] = Mailbox
    """Makes the queue that keeps an answer's pieces until the client has fetched them."""

    def __post_init__(self) -> None:
        self._one_at_a_time = asyncio.Lock()

    @property
    def engine(self) -> LLMEngine:
        """The engine. Read only attributes that do not change while it runs."""
        return self.loop.engine

    @asynccontextmanager
    async def life(self, app: Starlette) -> AsyncIterator[None]:
        """Run the loop while the server runs."""
        self.loop.start()
        try:
            yield
        finally:
            await self.loop.stop()
            self.on_end()

    def drain(self) -> None:
        """Refuse new requests, close the live pages, and abort the requests that remain after the grace period."""
        self.loop.draining = True
        if self.page is not None:
            self.page.close()
        message = f"the server is shutting down, and the request took more than {self.grace_s:.0f} s"
        asyncio.get_running_loop().call_later(self.grace_s, self.loop.abort_all, message)

    # A request, from its bytes to its tickets.

    async def take_in(self, request: Request, read: Callable[[Fields], Ask]) -> tuple[Ask, Answer]:
        """Return the parsed request, and the object that will hold its answer. Raises `RequestError`."""
        key = self.tenants.key_of(request.headers.get("authorization"))
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            raise RequestError("the header Content-Type must be application/json", status=415)
        ask = read(read_json(await self._body(request)))
        if ask.model not in (None, self.model_name):
            message = f"there is no model {ask.model!r} here, only {self.model_name!r}"
            raise RequestError(message, "model", status=404, code="model_not_found")
        self.loop.check_room(ask.n * max(len(ask.prompts), 1))
        async with self._one_at_a_time:  # some tokenizers are not made for several threads
            prompts = await asyncio.to_thread(self._token_ids, ask)
        params = [ask.params(self._room(token_ids, ask.max_tokens)) for token_ids in prompts]
        self.loop.check_room(ask.n * len(prompts))
        salt = self.tenants.cache_salt(key, ask.cache_salt)
        mailbox = self.make_mailbox()
        tickets = [
            self.loop.submit(token_ids, choice, ask.n, salt, mailbox)
            for token_ids, choice in zip(prompts, params, strict=True)
        ]
        try:
            for outcome in await asyncio.gather(*(ticket.accepted for ticket in tickets), return_exceptions=True):
                if isinstance(outcome, BaseException):
                    raise outcome
        except BaseException:
            self.give_up(tickets)
            raise
        told = not self.engine.config.multi_tenant
        return ask, Answer(bool(ask.messages), self.model_name, tickets, ask.include_usage, told)

    def give_up(self, tickets: Iterable[Ticket]) -> None:
        """Abort the requests that have not ended."""
        for ticket in tickets:
            self.loop.cancel(ticket)

    async def _body(self, request: Request) -> bytes:
        too_large = RequestError(f"the body has more than {self.max_body_bytes:,} bytes", status=413)
        length = request.headers.get("content-length", "0")
        if not length.isdecimal() or len(length) > 15 or int(length) > self.max_body_bytes:
            raise too_large
        body = bytearray()
        try:
            async with asyncio.timeout(BODY_S):
                async for piece in request.stream():
                    body += piece
                    if len(body) > self.max_body_bytes:
                        raise too_large
        except TimeoutError:
            raise RequestError(f"the body did not arrive within {BODY_S:.0f} s", status=408) from None
        return bytes(body)

    def _token_ids(self, ask: Ask) -> list[list[int]]:
        """Return the prompts as token ids. Called in a thread of its own."""
        longest = self.engine.config.scheduler.max_model_len
        texts = [each["content"] for each in ask.messages] + [each for each in ask.prompts if isinstance(each, str)]
        name = "messages" if ask.messages else "prompt"
        if sum(map(len, texts)) > CHARACTERS_PER_TOKEN * longest * max(len(ask.prompts), 1):
            raise RequestError(
                f"{name} is too long: {longest} tokens cannot encode it", name, code="context_length_exceeded"
            )
        try:
            prompts: list[Prompt] = list(ask.prompts)
            if ask.messages:
                prompts = [token_ids for _, token_ids in chat_prompts(self.engine.tokenizer, [ask.messages])]
            model, tokenizer = self.engine.model, self.engine.tokenizer
            return [prompt_token_ids(str(i), each, model, tokenizer) for i, each in enumerate(prompts)]
        except PromptError as error:
            raise RequestError(str(error), name) from None
        except KVCacheError as error:  # a model that has learned no chat
            raise RequestError(str(error), name, code="no_chat_template") from None

    def _room(self, token_ids: list[int], max_tokens: int | None) -> int:
        """Return the number of tokens that fit after a prompt. Raises `RequestError` if `max_tokens` is more."""
        longest = self.engine.config.scheduler.max_model_len
        room = longest - len(token_ids)
        if room < (max_tokens or 1):
            message = (
                f"the prompt has {len(token_ids)} tokens, the answer {max_tokens or 1}: together at most {longest}"
            )
            raise RequestError(message, "max_tokens" if max_tokens else "prompt", code="context_length_exceeded")
        return room

    # The addresses.

    async def completions(self, request: Request) -> Response:
        """Answer POST /v1/completions."""
        return await self._answer(request, read_completion)

    async def chat_completions(self, request: Request) -> Response:
        """Answer POST /v1/chat/completions."""
        return await self._answer(request, read_chat)

    async def _answer(self, request: Request, read: Callable[[Fields], Ask]) -> Response:
        ask, answer = await self.take_in(request, read)
        if ask.stream:
            return AnswerStream(self, answer)
        try:
            done = await unless_gone(request.receive, self._all_of(answer))
        finally:
            self.give_up(answer.tickets)
        return JSONResponse(answer.whole()) if done else Response(status_code=499)  # its client has left

    async def _all_of(self, answer: Answer) -> bool:
        """Wait for the whole answer and return `True`. Raises `RequestError` if the request failed."""
        while answer.num_open:
            for delta in await answer.mailbox.fetch():
                answer.take(delta)
        return True

    async def models(self, request: Request) -> Response:
        """Answer GET /v1/models, and the same with a model's name."""
        self.tenants.key_of(request.headers.get("authorization"))
        name = request.path_params.get("name")
        longest = self.engine.config.scheduler.max_model_len
        model = {
            "id": self.model_name,
            "object": "model",
            "created": 0,
            "owned_by": "mini_kv",
            "max_model_len": longest,
        }
        if name is None:
            return JSONResponse({"object": "list", "data": [model]})
        if name != self.model_name:
            raise RequestError(f"there is no model {name!r} here", "model", status=404, code="model_not_found")
        return JSONResponse(model)

    async def health(self, request: Request) -> Response:
        """Answer GET /health: 503 if the last step failed or has not returned, or while the server shuts down."""
        problem = self.loop.health() or ("shutting down" if self.loop.draining else None)
        told = {
            "status": "ok" if problem is None else "failing",
            "problem": problem,
            "failures": self.loop.num_failures,
        }
        return JSONResponse(told, 200 if problem is None else 503)

    async def show_metrics(self, request: Request) -> Response:
        """Answer GET /metrics."""
        return Response(self.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")


class AnswerStream(EventStream):
    """An answer as events, each sent as soon as its text exists. A disconnect of the client aborts its requests."""

    def __init__(self, service: Service, answer: Answer) -> None:
        super().__init__()
        self._service, self._answer = service, answer

    async def send_all(self, send: Send) -> None:
        """Send the chunks, then `[DONE]`."""
        answer = self._answer
        try:
            await send_events(send, answer.opening())
            while answer.num_open:
                chunks = [answer.chunk(answer.take(delta), delta) for delta in await answer.mailbox.fetch()]
                await send_events(send, [chunk for chunk in chunks if chunk is not None])
            await send_events(send, answer.closing())
        except RequestError as error:
            await send_events(send, [error.body])
        finally:
            self._service.give_up(answer.tickets)
        await send_piece(send, b"data: [DONE]\n\n")


class KnownHosts:
    """Refuses a request whose Host header does not name this machine. This keeps out pages of other sites.

    A site can point its own name to the address 127.0.0.1. Its page could then read the answers ("DNS rebinding").
    """

    def __init__(self, app: ASGIApp, hosts: Iterable[str]) -> None:
        self._app, self._hosts = app, set(hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or refuse it."""
        if scope["type"] == "http":
            host = dict(scope["headers"]).get(b"host", b"").decode("latin-1")
            name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
            if name not in self._hosts:
                error = RequestError(f"the header Host is {name!r}, but this server accepts {sorted(self._hosts)}")
                await JSONResponse(error.body, 400)(scope, receive, send)
                return
        await self._app(scope, receive, send)


def make_app(service: Service, hosts: Iterable[str] | None = LOOPBACK) -> ASGIApp:
    """Return the endpoint as an ASGI application. `hosts`: the Host names that it accepts, or `None` for any."""
    routes = [
        Route("/v1/completions", service.completions, methods=["POST"]),
        Route("/v1/chat/completions", service.chat_completions, methods=["POST"]),
        Route("/v1/models", service.models),
        Route("/v1/models/{name:path}", service.models),
        Route("/health", service.health),
        Route("/metrics", service.show_metrics),
        *(service.page.routes() if service.page is not None else []),
    ]
    handlers: dict[Any, Callable[[Request, Exception], Awaitable[Response]]] = {
        RequestError: _refused,
        HTTPException: _no_such_address,
        ClientDisconnect: _left,
        Exception: _broken,
    }
    app = Starlette(routes=routes, exception_handlers=handlers, lifespan=service.life)
    return app if hosts is None else KnownHosts(app, hosts)


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestError)
    headers = {} if error.retry_after is None else {"Retry-After": str(error.retry_after)}
    return JSONResponse(error.body, error.status, headers)


async def _no_such_address(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    told = RequestError(f"{request.method} {request.url.path}: {error.detail}", status=error.status_code)
    return JSONResponse(told.body, error.status_code, error.headers)


async def _left(request: Request, error: Exception) -> Response:
    """Return an answer that is not read: its client has left while it sent its body."""
    return Response(status_code=499)


async def _broken(request: Request, error: Exception) -> Response:
    return JSONResponse(RequestError(f"internal error of the server: {type(error).__name__}", status=500).body, 500)

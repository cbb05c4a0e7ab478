"""The page at /: the running cache, drawn by the book's own figure `<kv-story>`.

The engine's thread records events. While a page is open, it turns the last steps into a story, a few times per second,
and every page gets the newest story. A slow page misses stories but no state, because each story is complete. The page
shows the texts of all clients. If the server has a key, the page's files are public, and the texts need the key.
"""

import asyncio
import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib import resources
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Send

from mini_kv.story.figure import script
from mini_kv.tools.serve.engine_loop import EngineLoop
from mini_kv.tools.serve.live_story import Json, LiveStory
from mini_kv.tools.serve.streams import EventStream, as_event, send_piece
from mini_kv.tools.serve.tenants import Tenants


class LivePage:
    """The page, and the stream of its updates."""

    def __init__(self, live: LiveStory, loop: EngineLoop, tenants: Tenants, head: Mapping[str, Any]) -> None:
        """Set the story, its loop, who may see it, and the server's data for the page's head."""
        self.live, self._loop, self._tenants, self._head = live, loop, tenants, dict(head)
        self._telling: bytes = b""
        self._news: set[asyncio.Event] = set()
        self._is_closed = False
        live.listened_by(lambda: bool(self._news), self._take)

    def _take(self, telling: Json) -> None:
        """Pass an update from the engine's thread to the pages."""
        body = as_event(telling).encode()
        self._loop.to_clients(lambda: self._publish(body))

    def _publish(self, body: bytes) -> None:
        self._telling = body
        for news in self._news:
            news.set()

    @property
    def num_viewers(self) -> int:
        """Number of open pages."""
        return len(self._news)

    def close(self) -> None:
        """End the streams of all pages."""
        self._is_closed = True
        for news in self._news:
            news.set()

    def routes(self) -> list[Route]:
        """Return the routes of the page and its files."""
        return [
            Route("/", self._page),
            Route("/page.js", _file("page.js", "text/javascript")),
            Route("/kv_story.js", self._script),
            Route("/story.json", self._recorded),
            Route("/events", self._events),
        ]

    async def _page(self, request: Request) -> Response:
        text = resources.files("mini_kv.tools.serve").joinpath("page.html").read_text(encoding="utf-8")
        head = json.dumps(self._head).replace("<", "\\u003c")
        policy = "default-src 'none'; script-src 'self'; style-src 'unsafe-inline'; connect-src 'self'; img-src data:"
        headers = {"Content-Security-Policy": policy, "X-Content-Type-Options": "nosniff", "Cache-Control": "no-store"}
        return Response(text.replace("{{head}}", head), media_type="text/html", headers=headers)

    async def _script(self, request: Request) -> Response:
        return Response(script(), media_type="text/javascript")

    async def _recorded(self, request: Request) -> Response:
        """Send the recorded story, or the last steps if no story is recorded."""
        self._tenants.key_of(request.headers.get("authorization"))
        told: asyncio.Future[Json] = asyncio.get_running_loop().create_future()

        def ask() -> None:
            data = self.live.recorded() or self.live.telling()["story"]
            self._loop.to_clients(lambda: told.set_result(data))

        self._loop.post(ask)
        headers = {"Content-Disposition": 'attachment; filename="story.json"'}
        return JSONResponse(await asyncio.shield(told), headers=headers)

    async def _events(self, request: Request) -> Response:
        self._tenants.key_of(request.headers.get("authorization"))
        return _Tellings(self)

    async def listen(self, send: Send) -> None:
        """Send each new update until the server ends. After 15 seconds without one, send a comment line."""
        news = asyncio.Event()
        self._news.add(news)
        try:
            self._loop.post(lambda: None)  # the loop goes round once, so that there is something to show
            while not self._is_closed:
                with suppress(TimeoutError):
                    async with asyncio.timeout(15):
                        await news.wait()
                await send_piece(send, self._telling if news.is_set() else b":\n\n")
                news.clear()
        finally:
            self._news.discard(news)


class _Tellings(EventStream):
    """A stream of updates for one page."""

    def __init__(self, page: LivePage) -> None:
        super().__init__()
        self._page = page

    async def send_all(self, send: Send) -> None:
        """Send updates until the page is closed."""
        await self._page.listen(send)


def _file(name: str, media_type: str) -> Callable[[Request], Any]:
    async def answer(request: Request) -> Response:
        text = resources.files("mini_kv.tools.serve").joinpath(name).read_text(encoding="utf-8")
        return Response(text, media_type=media_type)

    return answer


def save(data: Json, path: Path) -> None:
    """Write a story to a file."""
    path.write_text(json.dumps(data, ensure_ascii=False, separators=(",", ":")) + "\n", encoding="utf-8")

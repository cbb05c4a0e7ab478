"""Streams of events over HTTP, which end when a client disconnects or does not read."""

import asyncio
import json
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

T = TypeVar("T")

SEND_S = 60.0
"""Seconds that a client may take to read a piece. A slower client's stream ends."""


class EventStream(Response):
    """An answer of server-sent events. A subclass sends them."""

    def __init__(self) -> None:
        super().__init__(
            media_type="text/event-stream", headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        )
        del self.headers["content-length"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events until there are no more or the client has left."""
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        await unless_gone(receive, self._send_to_the_end(send))

    async def _send_to_the_end(self, send: Send) -> None:
        await self.send_all(send)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def send_all(self, send: Send) -> None:
        """Send all events."""
        raise NotImplementedError


async def send_events(send: Send, events: Sequence[Any]) -> None:
    """Send events in one piece. Raises `TimeoutError` if the client does not read."""
    if events:
        await send_piece(send, "".join(map(as_event, events)).encode())


def as_event(data: Any) -> str:
    """Return a server-sent event with this data as JSON."""
    return f"data: {json.dumps(data, separators=(',', ':'))}\n\n"


async def send_piece(send: Send, piece: bytes) -> None:
    """Send a piece of a body. Raises `TimeoutError` if the client does not read."""
    async with asyncio.timeout(SEND_S):
        await send({"type": "http.response.body", "body": piece, "more_body": True})


async def unless_gone(receive: Receive, work: Coroutine[Any, Any, T]) -> T | None:
    """Return the result of the work. If the client disconnects or does not read, cancel it and return `None`."""
    working, leaving = asyncio.ensure_future(work), asyncio.ensure_future(_until_gone(receive))
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            return None
        with suppress(TimeoutError, OSError):
            return working.result()
        return None
    finally:
        for task in (working, leaving):
            task.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await task


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass

"""A uvicorn server that lets the service finish its requests before it ends, and waits for no silent client."""

import asyncio
import socket

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from mini_kv.tools.serve.app import LOOPBACK, Service, make_app

HEAD_S = 10.0
"""Seconds within which a request's head must arrive: its line and its headers. Then its connection is closed."""


class Protocol(H11Protocol):
    """uvicorn's protocol for clients that also may be silent or send no HTTP.

    A connection is closed if a head does not arrive: uvicorn would wait forever. After bytes that are not HTTP, a
    request under way gets no second answer: uvicorn would try, and write a traceback.
    """

    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for the first head."""
        super().connection_made(transport)
        self._deadline = self.loop.call_later(HEAD_S, transport.close)

    def data_received(self, data: bytes) -> None:
        """Stop waiting if the head is complete. Start if another head has begun: more pieces of it gain no time."""
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:
            self._stop_waiting()
        elif self._deadline is None:
            self._deadline = self.loop.call_later(HEAD_S, self.transport.close)

    def send_400_response(self, msg: str) -> None:
        """Refuse a head that is not HTTP. If the body of a request is not, give the request up without an answer."""
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if self.conn.our_state is h11.IDLE:
            super().send_400_response(msg)
        else:
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting."""
        super().connection_lost(exc)
        self._stop_waiting()

    def _stop_waiting(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


class Server(uvicorn.Server):
    """Serves one service. On TERM or Ctrl-C it refuses new requests and lets the others finish."""

    def __init__(self, service: Service, host: str = "127.0.0.1", port: int = 0) -> None:
        """Prepare to listen. Port 0 takes a free one."""
        hosts = LOOPBACK if host in LOOPBACK else None
        super().__init__(
            uvicorn.Config(
                make_app(service, hosts),
                host=host,
                port=port,
                http=Protocol,
                log_level="warning",
                access_log=False,
                limit_concurrency=1024,
                timeout_graceful_shutdown=int(service.grace_s) + 5,
            )
        )
        self._service = service

    @property
    def port(self) -> int:
        """The server's port, once it has `started`."""
        port: int = self.servers[0].sockets[0].getsockname()[1]
        return port

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, and print the address."""
        await super().startup(sockets)
        if self.started:
            host = self.config.host
            address = f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}"
            print(f"serving {self._service.model_name!r} at http://{address}", flush=True)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Let requests finish, then end the server."""
        self._service.drain()
        await super().shutdown(sockets)
        await asyncio.sleep(0)

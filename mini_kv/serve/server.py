"""A uvicorn server that lets the service finish its requests before it ends."""

import asyncio
import socket

import uvicorn

from mini_kv.serve.app import LOOPBACK, Service, make_app


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

"""uvicorn's server, which tells the service when it is to end."""

import asyncio
import socket

import uvicorn

from mini_kv.serve.app import LOOPBACK, Service, make_app


class Server(uvicorn.Server):
    """Serves one service; on TERM or Ctrl-C it takes nothing in any more and lets requests come to their end."""

    def __init__(self, service: Service, host: str = "127.0.0.1", port: int = 0) -> None:
        """Prepare to listen; port 0 is one that is free."""
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
        """The port that it listens at, once `started`."""
        port: int = self.servers[0].sockets[0].getsockname()[1]
        return port

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, and say where."""
        await super().startup(sockets)
        if self.started:
            host = self.config.host
            address = f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}"
            print(f"serving {self._service.model_name!r} at http://{address}", flush=True)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Let requests end, then the server."""
        self._service.drain()
        await super().shutdown(sockets)
        await asyncio.sleep(0)

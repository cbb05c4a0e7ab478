"""A Valkey or Redis server of one's own, on loopback, for a test."""

import shutil
import socket
import subprocess
import time
from pathlib import Path

PROGRAM = shutil.which("valkey-server") or shutil.which("redis-server")


def free_port() -> int:
    """Return a port that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class ValkeyServer:
    """A server that can be killed, and started again on the same port, empty."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.port = free_port()
        self.address = f"redis://127.0.0.1:{self.port}"
        self._folder, self._options = folder, options
        self.start()

    def start(self) -> None:
        """Start it, and wait until it answers."""
        assert PROGRAM is not None
        keep_nothing = ["--save", "", "--appendonly", "no", "--dir", str(self._folder)]
        self._process = subprocess.Popen(
            [PROGRAM, "--port", str(self.port), "--bind", "127.0.0.1", *keep_nothing, *self._options],
            stdout=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            try:
                with socket.create_connection(("127.0.0.1", self.port), timeout=1) as connection:
                    connection.sendall(b"PING\r\n")
                    if connection.recv(16).startswith((b"+PONG", b"-NOAUTH")):
                        return
            except OSError:
                time.sleep(0.02)
        raise AssertionError("the server does not answer")

    def kill(self) -> None:
        """End it at once, with all that it has."""
        self._process.kill()
        self._process.wait()

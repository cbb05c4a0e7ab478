"""A Valkey or Redis server of one's own, on loopback, for a test."""

import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

PROGRAM = shutil.which("valkey-server") or shutil.which("redis-server")


def free_port(highest: int = 65_535) -> int:
    """Return a port that nothing listens on, at most `highest`: the system's own choice may lie above it."""
    while True:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port: int = probe.getsockname()[1]
        if port <= highest:
            return port


class ValkeyServer:
    """A server that can be killed, and started again on the same port, empty."""

    def __init__(self, folder: Path, *options: str) -> None:
        # The servers of a cluster also talk to each other, at a port that is 10,000 higher.
        self.port = free_port(55_535 if "--cluster-enabled" in options else 65_535)
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

    def pause(self) -> None:
        """Let it stand still: connections are accepted by the system, and nothing is answered."""
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on."""
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """End it at once, with all that it has."""
        self._process.kill()
        self._process.wait()


class ValkeyCluster:
    """Three servers that share the keys out among them; `address` is that of the first."""

    def __init__(self, folder: Path) -> None:
        self.servers: list[ValkeyServer] = []
        for number in range(3):
            own = folder / str(number)
            own.mkdir()
            self.servers.append(ValkeyServer(own, "--cluster-enabled", "yes", "--cluster-require-full-coverage", "no"))
        self.address = self.servers[0].address
        for number, server in enumerate(self.servers):  # 16,384 slots, a third each
            self._ask(server, f"CLUSTER ADDSLOTSRANGE {16384 * number // 3} {16384 * (number + 1) // 3 - 1}")
            self._ask(server, f"CLUSTER MEET 127.0.0.1 {self.servers[0].port}")
        deadline = time.monotonic() + 20
        while any(b"cluster_known_nodes:3" not in self._state(server) for server in self.servers):
            assert time.monotonic() < deadline, "the servers do not find each other"
            time.sleep(0.05)
        while any(b"cluster_slots_ok:16384" not in self._state(server) for server in self.servers):
            assert time.monotonic() < deadline, "the servers do not know each other's keys"
            time.sleep(0.05)
        while any(b"cluster_state:ok" not in self._state(server) for server in self.servers):
            assert time.monotonic() < deadline, "a server holds the cluster for down"
            time.sleep(0.05)

    def num_keys(self) -> list[int]:
        """Return how many entries each server has."""
        return [int(self._ask(server, "DBSIZE").strip(b":\r\n")) for server in self.servers]

    def kill(self) -> None:
        """End all of them."""
        for server in self.servers:
            server.kill()

    def _state(self, server: ValkeyServer) -> bytes:
        return self._ask(server, "CLUSTER INFO")

    def _ask(self, server: ValkeyServer, line: str) -> bytes:
        with socket.create_connection(("127.0.0.1", server.port), timeout=5) as connection:
            connection.sendall(line.encode() + b"\r\n")
            return connection.recv(4096)

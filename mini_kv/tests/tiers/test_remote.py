"""The server's tier: a deadline is for a call, and what opens and closes the breaker."""

import importlib.util
import random
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from mini_kv.core.errors import ConfigError
from mini_kv.tests.tiers.tiers_driver import FakeServer
from mini_kv.tiers.background import Thread
from mini_kv.tiers.memory_tier import MemoryTier
from mini_kv.tiers.remote import SECONDS_TO_FIND_A_CLUSTER, Breaker, RemoteTier, connect
from mini_kv.tiers.tiered_cache import TieredCache

needs_valkey = pytest.mark.skipif(importlib.util.find_spec("valkey") is None, reason="missing: the package valkey")
SECONDS = 0.15
SLACK = 2.0
"""For a busy machine. A call that is not ended lasts forever, so it need not be small."""


class TricklingServer:
    """Answers with a string that never ends, a byte every 5 ms: far less than a read's timeout."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.address = f"redis://127.0.0.1:{self._socket.getsockname()[1]}/0"
        self._is_closed = threading.Event()
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Let all callers go."""
        self._is_closed.set()
        self._socket.close()

    def _accept(self) -> None:
        while not self._is_closed.is_set():
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            threading.Thread(target=self._trickle, args=(connection,), daemon=True).start()

    def _trickle(self, connection: socket.socket) -> None:
        with connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # each byte at its time
            try:
                connection.sendall(b"$1000000\r\n")
                while not self._is_closed.wait(0.005):
                    connection.sendall(b"x")
            except OSError:
                return


@pytest.fixture
def trickling() -> Iterator[TricklingServer]:
    """A server that answers, and never to the end."""
    server = TricklingServer()
    yield server
    server.close()


@needs_valkey
def test_a_trickling_server_holds_a_call_until_its_deadline(trickling: TricklingServer) -> None:
    """Each kind of call; the third failure opens the breaker, and from then on nothing is asked."""
    remote = RemoteTier(connect(trickling.address, seconds=SECONDS))
    for call in (
        lambda: remote.find([b"key"]),
        lambda: remote.load([b"key", b"another"]),
        lambda: remote.store(b"key", b"envelope"),
    ):
        began = time.monotonic()
        assert not call()
        assert SECONDS / 2 < time.monotonic() - began < SECONDS + SLACK
    assert remote.breaker.is_open and sum(remote.failures.values()) == 3
    assert not remote.find([b"key"]) and remote.failures["breaker open"] == 1
    remote.close()


@needs_valkey
def test_tiers_over_a_trickling_server_close_in_time(trickling: TricklingServer) -> None:
    """Three calls reach their deadlines; those that wait in line behind them are not made."""
    remote = RemoteTier(connect(trickling.address, seconds=SECONDS))
    tiers = TieredCache(MemoryTier(1 << 20), remote=remote, make_worker=Thread)
    for number in range(20):
        tiers.share(bytes([number]), b"payload")
    fetch = tiers.fetch({b"key": 7})
    began = time.monotonic()
    tiers.close()
    assert time.monotonic() - began < 3 * SECONDS + SLACK
    assert fetch.is_done and tiers.counts["dropped"] == 20


@needs_valkey
@pytest.mark.slow
def test_a_cluster_whose_map_trickles_in_is_given_up(trickling: TricklingServer) -> None:
    """The map is asked for when the tier is opened, which may take longer than a call."""
    began = time.monotonic()
    with pytest.raises(
        ConfigError, match=r"the remote tier's address .* cannot be used: .* at least one reachable node"
    ):
        connect(trickling.address, seconds=SECONDS, is_cluster=True)
    assert time.monotonic() - began < SECONDS_TO_FIND_A_CLUSTER + SLACK


@needs_valkey
def test_a_cluster_that_is_not_there_is_a_plain_error() -> None:
    """At once: nothing listens on the port."""
    with socket.create_server(("127.0.0.1", 0)) as closed:
        address = f"redis://127.0.0.1:{closed.getsockname()[1]}"
    with pytest.raises(
        ConfigError, match=r"the remote tier's address .* cannot be used: .* at least one reachable node"
    ):
        connect(address, is_cluster=True)


def test_a_breaker_opens_half_opens_and_closes_again() -> None:
    """One call goes through after a while: if it fails, the server is left alone again; if it works, all go through."""
    now, server = [0.0], FakeServer(random.Random(0))
    remote = RemoteTier(server, breaker=Breaker(num_failures=3, seconds_open=5.0, clock=lambda: now[0]))
    calls = []
    for now[0], server.trouble in [
        *[(0.0, "down")] * 5,
        *[(5.0, "down")] * 2,  # half open, and open again
        *[(9.9, "none")] * 2,
        *[(10.0, "none")] * 3,  # half open, and closed
        *[(10.0, "down")] * 4,  # three failures in a row are needed once more
    ]:
        before = server.num_calls
        remote.find([b"key"])
        calls.append(server.num_calls - before)
    assert calls == [1, 1, 1, 0, 0, 1, 0, 0, 0, 1, 1, 1, 1, 1, 1, 0]

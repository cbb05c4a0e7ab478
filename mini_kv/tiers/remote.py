"""The tier that several engines share: a Valkey or Redis server, one or a cluster of them.

Every call has one deadline for connection, request and whole answer. After three failures in a row the breaker
opens, and the server gets no requests for some time:

    closed      calls go through        three failures in a row  ->  open
    open        every answer is "not here", at once              ->  after `seconds_open`, half open
    half open   one call goes through   it works -> closed,  it fails -> open

The server sees opaque keys (a hash of the model, the weights, the tenant's salt and the tokens) and sealed bytes. This
tier has no operation that lists keys, and none that deletes them, because other engines share them. The server's owner
can clear it: `valkey-cli --scan --pattern 'mini_kv:*' | xargs valkey-cli unlink`.
"""

import socket
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from typing import Any, Protocol

from mini_kv.core.errors import ConfigError
from mini_kv.installer import install_extra

PREFIX = b"mini_kv:"
SECONDS_TO_FIND_A_CLUSTER = 5.0
"""Time limit for the request of the other members and of the map of keys to the first member."""


class Client(Protocol):
    """Methods of a server's client: `valkey.Valkey`, `valkey.ValkeyCluster`, redis-py's, or a fake."""

    def pipeline(self, transaction: bool = ...) -> Any:
        """Return a pipeline: its `execute` sends all its `get` and `exists` requests together."""

    def set(self, name: bytes, value: bytes, *, ex: int | None = ...) -> Any:
        """Write an entry with a lifetime of `ex` seconds."""

    def close(self) -> None:
        """Close the connection."""


class Breaker:
    """Stops the requests to a server that keeps failing."""

    def __init__(
        self, num_failures: int = 3, seconds_open: float = 5.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.num_failures, self.seconds_open, self.clock = num_failures, seconds_open, clock
        self._failures_in_a_row = 0
        self._opened_at = 0.0

    @property
    def is_open(self) -> bool:
        """Whether the next call should not be made."""
        return self._failures_in_a_row >= self.num_failures and self.clock() < self._opened_at + self.seconds_open

    def record(self, worked: bool) -> None:
        """Record whether a call failed."""
        self._failures_in_a_row = 0 if worked else self._failures_in_a_row + 1
        if not worked:
            self._opened_at = self.clock()


class RemoteTier:
    """Envelopes by key on a server. Every error there is a miss here, and is counted. For one thread."""

    def __init__(self, client: Client, *, breaker: Breaker | None = None, seconds_to_live: int | None = None) -> None:
        """Take a client that ends a call at its deadline. See `connect`.

        Args:
            client: bytes in, bytes out (`decode_responses=False`).
            breaker: decides when to stop the requests.
            seconds_to_live: lifetime of an entry on the server. `None`: the server's own policy decides.
        """
        self._client = client
        self.breaker = breaker or Breaker()
        self.seconds_to_live = seconds_to_live
        self.failures: Counter[str] = Counter()
        """Number of errors by class name. "breaker open" counts the calls that were not made."""

    def find(self, keys: Sequence[bytes]) -> set[bytes]:
        """Return those of the keys that the server has."""
        found = self._ask(lambda pipeline, key: pipeline.exists(PREFIX + key), keys)
        return {key for key, answer in zip(keys, found, strict=False) if answer == 1}

    def load(self, keys: Sequence[bytes]) -> dict[bytes, bytes]:
        """Return the envelopes that the server has, by key. They may be damaged."""
        found = self._ask(lambda pipeline, key: pipeline.get(PREFIX + key), keys)
        return {key: answer for key, answer in zip(keys, found, strict=False) if isinstance(answer, bytes)}

    def store(self, key: bytes, envelope: bytes) -> bool:
        """Write an entry. Return whether the server stored it."""
        return self._guarded(lambda: bool(self._client.set(PREFIX + key, envelope, ex=self.seconds_to_live))) or False

    def close(self) -> None:
        """Close the connection."""
        self._guarded(self._client.close)

    def _ask(self, question: Callable[[Any, bytes], object], keys: Iterable[bytes]) -> list[Any]:
        """Send one request per key, all in one round trip. Return the answers, or none if it failed."""

        def journey() -> list[Any]:
            pipeline = self._client.pipeline(transaction=False)
            for key in keys:
                question(pipeline, key)
            return list(pipeline.execute())

        return self._guarded(journey) or []

    def _guarded(self, call: Callable[[], Any]) -> Any:
        """Return the result of the call, or `None` if it failed or the breaker is open."""
        if self.breaker.is_open:
            self.failures["breaker open"] += 1
            return None
        try:
            result = call()
        except Exception as error:  # a server may answer anything, and a client raise anything
            self.failures[type(error).__name__] += 1
            self.breaker.record(worked=False)
            return None
        self.breaker.record(worked=True)
        return result


class Deadline:
    """The deadline of the running call. Each call starts it again."""

    def __init__(self) -> None:
        self._ends_at = 0.0

    def start(self, seconds: float) -> None:
        """Start a call with a limit of this many seconds."""
        self._ends_at = time.monotonic() + seconds

    def seconds_left(self) -> float:
        """Return the seconds that are left for the call. Raises `TimeoutError` if none are left."""
        left = self._ends_at - time.monotonic()
        if left <= 0:
            raise TimeoutError("the call has reached its deadline")
        return left


class TimedSocket:
    """A socket that waits until a call's deadline, over all reads of the call.

    A socket's own timeout starts again at each read. So a server that sends single bytes could block it forever.
    """

    def __init__(self, inner: socket.socket, deadline: Deadline) -> None:
        self._inner, self._deadline = inner, deadline

    def __getattr__(self, name: str) -> Any:
        """Pass all other attributes through to the socket."""
        return getattr(self._inner, name)

    def recv(self, *args: Any) -> bytes:
        """Read the bytes that have arrived, or wait for some."""
        self._set_timeout()
        return self._inner.recv(*args)

    def recv_into(self, *args: Any) -> int:
        """Read the bytes that have arrived, or wait for some."""
        self._set_timeout()
        return self._inner.recv_into(*args)

    def sendall(self, data: Any) -> None:
        """Write all of it."""
        self._set_timeout()
        self._inner.sendall(data)

    def _set_timeout(self) -> None:
        if self._inner.gettimeout() != 0:  # 0: the client only looks whether there is something
            self._inner.settimeout(self._deadline.seconds_left())


class TimedClient:
    """A client with calls that end at their deadline. A pipeline's deadline starts when the pipeline is made."""

    def __init__(self, client: Client, deadline: Deadline, seconds: float) -> None:
        self._client, self._deadline, self._seconds = client, deadline, seconds

    def pipeline(self, transaction: bool = True) -> Any:
        """As the client's."""
        self._deadline.start(self._seconds)
        return self._client.pipeline(transaction=transaction)

    def set(self, name: bytes, value: bytes, *, ex: int | None = None) -> Any:
        """As the client's."""
        self._deadline.start(self._seconds)
        return self._client.set(name, value, ex=ex)

    def close(self) -> None:
        """Close the client's connection."""
        self._client.close()


def connect(address: str, *, seconds: float = 0.25, is_cluster: bool = False) -> Client:
    """Return a client of the server at `redis://[:password@]host:port/db` (`rediss://`: over TLS).

    Args:
        address: of the server, or of any one in the cluster.
        seconds: time limit of a call. An unfinished call is then ended.
        is_cluster: whether to use the cluster's own map of keys to members.

    Raises `ConfigError` for an invalid address, for a cluster that cannot be reached, or without the package. Does
    not connect to a single server yet.
    """
    try:
        valkey = import_module("valkey")
    except ModuleNotFoundError:
        raise ConfigError(f"a remote tier needs the package valkey: {install_extra('remote')}") from None
    deadline = Deadline()
    deadline.start(SECONDS_TO_FIND_A_CLUSTER)
    try:
        base: Any = valkey.connection.parse_url(address).get("connection_class", valkey.Connection)

        class TimedConnection(base):  # type: ignore[misc]
            def _connect(self) -> TimedSocket:
                self.socket_connect_timeout = deadline.seconds_left()
                return TimedSocket(super()._connect(), deadline)

        make_client = valkey.ValkeyCluster.from_url if is_cluster else valkey.Valkey.from_url
        client: Client = make_client(
            address, connection_class=TimedConnection, socket_timeout=seconds, socket_connect_timeout=seconds
        )
    except (ValueError, OSError, valkey.ValkeyError, valkey.exceptions.ValkeyClusterException) as error:
        raise ConfigError(f"the remote tier's address {address!r} cannot be used: {error}") from None
    return TimedClient(client, deadline, seconds)

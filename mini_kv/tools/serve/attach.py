"""The listener of KV events: receives batches, requests missed ones, and writes and reads recordings.

A recording has one JSON object per line, for one batch: its number, its time, its events by the names of their fields.
"""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO
from urllib.error import URLError
from urllib.request import urlopen

import msgspec
import zmq

from mini_kv.core.errors import ConfigError
from mini_kv.tools.serve.kv_events import END_SEQ, AnyEvent, KVEventBatch, check_time

_MAX_MESSAGE_BYTES = 1 << 28
_ANSWERS_S = 30.0
"""Seconds that the whole answer to a request for missed batches may take."""
_SILENT_S = 30.0
"""Seconds to wait before the next request to a socket that has not answered."""
METRICS = (
    "vllm:prefix_cache_queries_total",
    "vllm:prefix_cache_hits_total",
    "vllm:kv_cache_usage_perc",
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
)
"""The counters and gauges that are read from a server's `/metrics`."""


class Subscriber:
    """Two sockets: one receives the published batches, the other requests missed batches."""

    def __init__(
        self, endpoint: str, replay_endpoint: str | None = None, topic: str = "", *, answer_s: float = 3.0
    ) -> None:
        """Connect now, or as soon as a server listens at the address. Raises `ConfigError` for an invalid address.

        `answer_s`: seconds that each message of an answer may take.
        """
        self._answer_s = answer_s
        self._ask_again = 0.0
        self._context = zmq.Context()
        self._replay_endpoint = replay_endpoint
        self._heard = self._context.socket(zmq.SUB)
        self._heard.setsockopt(zmq.SUBSCRIBE, topic.encode("utf-8"))
        self._heard.setsockopt(zmq.MAXMSGSIZE, _MAX_MESSAGE_BYTES)
        self._heard.set_hwm(100_000)
        try:
            _connect(self._heard, endpoint)
            if replay_endpoint is not None:
                with self._context.socket(zmq.DEALER) as asks:
                    _connect(asks, replay_endpoint)
        except ConfigError:
            self.close()
            raise

    def hear(self, timeout_s: float) -> list[bytes] | None:
        """Return the frames of the next message, or `None` if none arrived in time."""
        if not self._heard.poll(int(1000 * timeout_s)):
            return None
        return self._heard.recv_multipart()

    def replay(self, first: int) -> list[tuple[bytes, bytes]] | None:
        """Return the number and batch, as frames, of each kept batch from `first` on, or `None` without an answer."""
        if self._replay_endpoint is None or time.monotonic() < self._ask_again:
            return None
        found: list[tuple[bytes, bytes]] = []
        deadline = time.monotonic() + _ANSWERS_S
        with self._context.socket(zmq.DEALER) as asks:  # a new one: no late answer to an older question
            asks.setsockopt(zmq.LINGER, 0)
            asks.set_hwm(0)
            asks.connect(self._replay_endpoint)
            asks.send_multipart([b"", first.to_bytes(8, "big")])
            while time.monotonic() < deadline and asks.poll(int(1000 * self._answer_s)):
                frames = asks.recv_multipart()
                if len(frames) < 3 or frames[-2] == END_SEQ:
                    return found
                found.append((frames[-2], frames[-1]))
        self._ask_again = time.monotonic() + _SILENT_S  # or each gap would be a pause, and each pause a gap
        return found or None

    def close(self) -> None:
        """Close the sockets."""
        self._context.destroy(linger=0)


def _connect(socket: "zmq.Socket[bytes]", endpoint: str) -> None:
    try:
        socket.connect(endpoint)
    except zmq.ZMQError as error:
        raise ConfigError(f"cannot listen to {endpoint!r}: {error}") from None


class RecordedBatch(msgspec.Struct, frozen=True):
    """One batch in a recording: a line of the file."""

    number: int
    ts: float
    events: list[AnyEvent]
    data_parallel_rank: int | None = None

    def __post_init__(self) -> None:
        check_time(self.ts)


def write_batch(file: IO[bytes], number: int, batch: KVEventBatch) -> None:
    """Write a batch as one line, and flush the file."""
    file.write(msgspec.json.encode(RecordedBatch(number, batch.ts, batch.events, batch.data_parallel_rank)) + b"\n")
    file.flush()


def read_batches(path: Path) -> Iterator[tuple[int, KVEventBatch]]:
    """Yield the batches of a recording. Raises `ConfigError` with the number of a malformed line, and `OSError`."""
    decoder = msgspec.json.Decoder(RecordedBatch)
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                found = decoder.decode(line)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                raise ConfigError(f"{path}, line {number}: not a batch of KV events: {error}") from None
            yield found.number, KVEventBatch(found.ts, found.events, found.data_parallel_rank)


def read_metrics(url: str, opened: Callable[..., IO[bytes]] = urlopen) -> dict[str, float] | str:
    """Return those of `METRICS` that a server reports, summed over its engines, or an error message if it has none."""
    try:
        with opened(url, timeout=1.0) as answer:
            text = answer.read(1 << 24).decode("utf-8", errors="replace")
    except (OSError, URLError, ValueError) as error:
        return f"no answer from {url}: {error}"
    found: dict[str, float] = {}
    for line in text.splitlines():
        name, _, value = line.rpartition(" ")
        name = name.partition("{")[0]
        if name in METRICS:
            try:
                found[name] = found.get(name, 0.0) + float(value)
            except ValueError:
                continue
    return found or f"{url} has none of vLLM's metrics"

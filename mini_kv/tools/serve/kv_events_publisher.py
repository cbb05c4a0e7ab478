"""Publishes the events of an engine's cache over ZeroMQ, and sends missed ones again on request.

    publisher = ZmqEventPublisher("tcp://127.0.0.1:5557", "tcp://127.0.0.1:5558")
    engine = LLMEngine(model, tokenizer, config, **publishing(publisher))

A PUB socket drops the messages that a slow or late listener does not read. So batches are numbered, and the last ones
are kept. A listener that sees a gap requests all batches from a number on at the second socket, a ROUTER.

Source: vLLM `ZmqEventPublisher`.
"""

import threading
import time
from collections import deque
from collections.abc import Sequence
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, Protocol

import zmq

from mini_kv.core.errors import ConfigError
from mini_kv.core.sched.output import EngineCoreOutput
from mini_kv.core.sched.scheduler import Scheduler
from mini_kv.tools.serve.kv_events import END_SEQ, AnyEvent, KVEventBatch, encode_batch
from mini_kv.tools.serve.kv_events_manager import EventsKVCacheManager

_IDLE_S = 0.02
"""The most seconds until a request for earlier batches is read while the engine publishes nothing."""


class EventPublisher(Protocol):
    """Publishes the events of a step."""

    def publish(self, events: Sequence[AnyEvent]) -> None:
        """Publish the events in this order, or nothing if there are none."""


class ZmqEventPublisher:
    """A PUB socket, a ROUTER socket for missed batches, and a thread for both. No step waits for a listener."""

    def __init__(
        self,
        endpoint: str,
        replay_endpoint: str | None = None,
        *,
        buffer_steps: int = 10_000,
        hwm: int = 100_000,
        topic: str = "",
        data_parallel_rank: int = 0,
    ) -> None:
        """Listen at the endpoints.

        Args:
            endpoint: where batches are published: `tcp://127.0.0.1:5557`. Port 0 means a free port. The attribute
                `endpoint` contains it. With a star as host, every machine that reaches this one can listen. Events
                contain all prompts. (vLLM binds only for a star or a socket file, else it connects to a collector.)
            replay_endpoint: where listeners request earlier batches.
            buffer_steps: number of batches kept for these requests.
            hwm: the most batches queued for one slow listener. It misses the later ones.
            topic: the first frame.
            data_parallel_rank: index of this engine among several.

        Raises `ConfigError` if an endpoint cannot be bound.
        """
        self._context = zmq.Context()
        self._pub = self._context.socket(zmq.PUB)
        self._pub.set_hwm(hwm)
        self._replay = None if replay_endpoint is None else self._context.socket(zmq.ROUTER)
        try:
            self.endpoint = _bind(self._pub, endpoint)
            self.replay_endpoint: str | None = None
            if self._replay is not None and replay_endpoint is not None:
                self._replay.set_hwm(2 * (buffer_steps + 1))  # a whole answer fits
                self.replay_endpoint = _bind(self._replay, replay_endpoint)
        except BaseException:
            self._context.destroy(linger=0)
            raise
        self._rank = data_parallel_rank
        self._topic = topic.encode("utf-8")
        self._buffer: deque[tuple[int, bytes]] = deque(maxlen=buffer_steps)
        self._queue: SimpleQueue[KVEventBatch | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._serve, daemon=True, name="kv-events")
        self._thread.start()

    def publish(self, events: Sequence[AnyEvent]) -> None:
        """Hand the events of a step to the thread, as one batch with the time. Do nothing if there are none."""
        if events:
            self._queue.put(KVEventBatch(time.time(), list(events), self._rank))

    def shutdown(self) -> None:
        """Send the queued batches for at most a second, and close the sockets."""
        self._queue.put(None)
        self._thread.join(timeout=1)
        self._context.destroy(linger=1000)

    def _serve(self) -> None:
        """Number, send and keep the batches. Between two batches answer one request for earlier ones."""
        sequence = 0
        while True:
            if self._replay is not None and self._replay.poll(0):
                self._answer(self._replay)
            try:
                batch = self._queue.get(timeout=_IDLE_S)
            except Empty:
                continue
            if batch is None:
                return
            payload = encode_batch(batch)
            self._buffer.append((sequence, payload))
            self._pub.send_multipart((self._topic, sequence.to_bytes(8, "big"), payload))
            sequence += 1

    def _answer(self, replay: "zmq.Socket[bytes]") -> None:
        """Send the kept batches from the requested number on, then the end. Ignore a malformed request.

        Frames of a request: the listener's id, an empty frame, the number. Frames of an answer: the id, an empty frame,
        and the three of a message.
        """
        question = replay.recv_multipart()
        if len(question) != 3 or len(question[2]) != 8:
            return
        first = int.from_bytes(question[2], "big")
        for sequence, payload in self._buffer:
            if sequence >= first:
                replay.send_multipart((question[0], b"", self._topic, sequence.to_bytes(8, "big"), payload))
        replay.send_multipart((question[0], b"", b"", END_SEQ, b""))


def _bind(socket: "zmq.Socket[bytes]", endpoint: str) -> str:
    """Listen, and return the address with the actual port. Raises `ConfigError`."""
    try:
        socket.bind(endpoint)
    except zmq.ZMQError as error:
        raise ConfigError(f"cannot publish events at {endpoint!r}: {error}") from None
    return socket.get_string(zmq.LAST_ENDPOINT)


class PublishingScheduler(Scheduler):
    """A scheduler that publishes the cache's events at the end of each step."""

    def __init__(self, *args: Any, publisher: EventPublisher, **options: Any) -> None:
        """Schedule for a manager that has `take_events`. The other arguments are those of `Scheduler`."""
        super().__init__(*args, **options)
        self.publisher = publisher

    def update_from_output(self, *args: Any, **options: Any) -> list[EngineCoreOutput]:
        """Update as `Scheduler` does, then publish. vLLM's scheduler publishes here, too."""
        outputs = super().update_from_output(*args, **options)
        kv: Any = self.kv_cache_manager  # an `EventsKVCacheManager`, perhaps in another observer's wrapping
        self.publisher.publish(kv.take_events())
        return outputs


def publishing(publisher: EventPublisher) -> dict[str, Any]:
    """Return the arguments for an `LLMEngine` that publishes its cache's events."""
    return {
        "make_manager": EventsKVCacheManager,
        "make_scheduler": partial(PublishingScheduler, publisher=publisher),
    }

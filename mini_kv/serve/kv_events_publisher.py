"""Tells the events of an engine's cache to who listens, over ZeroMQ, and again to who has missed some.

    publisher = ZmqEventPublisher("tcp://127.0.0.1:5557", "tcp://127.0.0.1:5558")
    engine = LLMEngine(model, tokenizer, config, **publishing(publisher))

A PUB socket forgets what a slow or late listener did not take. So batches are numbered, the last ones are kept, and a
listener that sees a gap asks the second socket, a ROUTER, for all from a number on. Source: vLLM `ZmqEventPublisher`.
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
from mini_kv.serve.kv_events import END_SEQ, AnyEvent, KVEventBatch, encode_batch
from mini_kv.serve.kv_events_manager import EventsKVCacheManager

_IDLE_S = 0.02
"""How long a question for earlier batches may lie while the engine has nothing to tell."""


class EventPublisher(Protocol):
    """Takes the events of a step."""

    def publish(self, events: Sequence[AnyEvent]) -> None:
        """Tell them, in this order; nothing if there are none."""


class ZmqEventPublisher:
    """A PUB socket, a ROUTER socket for what was missed, and a thread for both: no step waits for a listener."""

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
            endpoint: where batches are published: `tcp://127.0.0.1:5557`; port 0 is any that is free, and `endpoint`
                says which. A star for the host lets every machine listen that reaches this one, and events hold all
                prompts. (vLLM binds only where a star or a socket file is named, and else connects to a collector.)
            replay_endpoint: where earlier batches can be asked for.
            buffer_steps: how many batches are kept for that.
            hwm: batches that wait for one slow listener; what comes then, it misses.
            topic: the first frame.
            data_parallel_rank: which of several engines this is.

        Raises `ConfigError` if one cannot listen there.
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
        """Hand the events of a step to the thread, as one batch with the time; nothing if there are none."""
        if events:
            self._queue.put(KVEventBatch(time.time(), list(events), self._rank))

    def shutdown(self) -> None:
        """Send what is waiting, a second at most, and let go of the sockets."""
        self._queue.put(None)
        self._thread.join(timeout=1)
        self._context.destroy(linger=1000)

    def _serve(self) -> None:
        """Number the batches, send and keep them; between two of them, answer one question."""
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
        """Send all that is kept from the number on that was asked for, then the end. A question that is none: nothing.

        Frames of a question: who asks, nothing, the number. Of an answer: who asked, nothing, and a message's three.
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
    """Listen; return the address, its port a number. Raises `ConfigError`."""
    try:
        socket.bind(endpoint)
    except zmq.ZMQError as error:
        raise ConfigError(f"cannot publish events at {endpoint!r}: {error}") from None
    return socket.get_string(zmq.LAST_ENDPOINT)


class PublishingScheduler(Scheduler):
    """A scheduler that tells, at the end of each step, what the step has done to the cache."""

    def __init__(self, *args: Any, publisher: EventPublisher, **options: Any) -> None:
        """Schedule for a manager with `take_events`; the other arguments are `Scheduler`'s."""
        super().__init__(*args, **options)
        self.publisher = publisher

    def update_from_output(self, *args: Any, **options: Any) -> list[EngineCoreOutput]:
        """As in `Scheduler`, where vLLM's scheduler publishes too."""
        outputs = super().update_from_output(*args, **options)
        kv: Any = self.kv_cache_manager  # an `EventsKVCacheManager`, perhaps in another observer's wrapping
        self.publisher.publish(kv.take_events())
        return outputs


def publishing(publisher: EventPublisher) -> dict[str, Any]:
    """Return the parts of an `LLMEngine` whose cache tells its events to `publisher`."""
    return {
        "make_manager": EventsKVCacheManager,
        "make_scheduler": partial(PublishingScheduler, publisher=publisher),
    }

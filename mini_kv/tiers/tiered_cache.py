"""Memory, disk and a server as one cache below the engine's pool.

A block has one owner at a time: the engine, memory or the disk. The server has copies, which all engines share:

    engine's pool --evicted--> memory --pushed out--> disk --pushed out--> gone
          ^                       ^                     |
          +---- taken (promote) --+------ fetched ------+          server: copies of what was computed, fetched likewise

Blocks in memory are available at once. Other blocks are fetched in the background: call `find` and `fetch`, continue
with other work, and call `poll` from time to time. `poll` stores the blocks that have arrived. Envelopes are opened
before their bytes go up (`sealed`). A damaged one is dropped, counted, and computed again. So is a block after any
failure of a tier.

An exception may interrupt any call. A job is queued before it is recorded here, and a message is removed from its queue
after it was read. So the engine never waits for a job that does not run.
"""

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial

from mini_kv.tiers.background import Inline, Worker
from mini_kv.tiers.disk import DiskTier
from mini_kv.tiers.memory_tier import Lease, MemoryTier
from mini_kv.tiers.remote import RemoteTier
from mini_kv.tiers.sealed import DamagedError, seal, unseal


@dataclass(slots=True)
class Search:
    """A request to the server: which of these keys does it have?"""

    is_done: bool = False
    found: set[bytes] = field(default_factory=set)


@dataclass(slots=True)
class Fetch:
    """Keys on their way up to memory."""

    keys: set[bytes]
    """The keys that have neither arrived nor turned out to be missing."""

    @property
    def is_done(self) -> bool:
        """Whether no more keys will arrive."""
        return not self.keys


class TieredCache:
    """The tiers below the engine. All methods are for the engine's thread. The slow ones only queue a job."""

    def __init__(
        self,
        memory: MemoryTier,
        disk: DiskTier | None = None,
        remote: RemoteTier | None = None,
        *,
        secret: bytes | None = None,
        make_worker: Callable[[], Worker] = Inline,
        max_backlog_bytes: int = 256 << 20,
    ) -> None:
        """Combine tiers, the nearest first.

        Args:
            memory: the only required tier: every fetched block passes through it.
            disk: stores the blocks that memory evicts.
            remote: stores copies of the blocks that are passed to `share`.
            secret: known to all engines that share the server. See `seal`.
            make_worker: called once per slow tier. `Thread` in an engine.
            max_backlog_bytes: the most bytes that wait to be written. Blocks beyond that are dropped.
        """
        self.memory, self.disk, self.remote = memory, disk, remote
        self.secret = secret
        self.max_backlog_bytes = max_backlog_bytes
        self.counts: Counter[str] = Counter()
        """What happened, by name: "stored", "pushed out", "fetched", "damaged", "dropped", "no room", "shared",
        "failed" (a job raised), "dead worker" (no more jobs are done there)."""
        self._disk_worker = make_worker() if disk is not None else None
        self._remote_worker = make_worker() if remote is not None else None
        self._going_down: dict[bytes, object] = {}
        """Keys that the disk's worker has not written yet, each with the last job that writes it."""
        self._fetches: dict[bytes, list[Fetch]] = {}
        """The fetches that wait for each key. A key is fetched once for all of them."""
        self._news: list[Callable[[], None]] = []
        """Messages of the workers, read by `poll`."""
        self._bell = threading.Condition()
        self._in_line: dict[object, int] = {}
        """Bytes of each job that waits to be written."""
        self._backlog_bytes = 0
        """The sum of these bytes."""
        self._is_closed = False
        self.is_above: Callable[[bytes], bool] = lambda key: False
        """Whether the engine has this block itself. If so, a late arrival is not stored."""

    # At once: memory.

    def __contains__(self, key: bytes) -> bool:
        return key in self.memory

    def is_near(self, key: bytes) -> bool:
        """Return whether the key is in memory or on this machine's disk, or on its way there."""
        return key in self.memory or self._is_on_disk(key)

    def lease(self, key: bytes) -> Lease | None:
        """Return a lease on a block in memory. See `MemoryTier`."""
        return self.memory.lookup(key)

    def load(self, lease: Lease, num_bytes: int) -> memoryview | None:
        """Return the verified payload under a lease. If it is damaged, drop the entry and return `None`."""
        envelope = self.memory.load(lease)
        if envelope is None:
            return None
        try:
            return unseal(lease.key, envelope, num_bytes, self.secret)
        except DamagedError:
            self.counts["damaged"] += 1
            self.memory.discard(lease.key)
            return None

    def lend(self, lease: Lease) -> None:
        """Free the room of a block that is being moved up to the engine."""
        self.memory.lend(lease)

    def take(self, lease: Lease) -> None:
        """Hand a block over to the engine. It is in the pool now, and no longer here."""
        self.memory.take(lease)

    def release(self, lease: Lease) -> None:
        """End a lease. The block is kept."""
        self.memory.release(lease)

    def store(self, key: bytes, payload: bytes) -> None:
        """Store a block that the engine has evicted. If memory is full of leases, it goes to the disk at once."""
        envelope = seal(key, payload, self.secret)
        if not self._to_memory(key, envelope, "stored"):
            self._to_disk(key, envelope)

    def discard(self, key: bytes) -> None:
        """Remove a block from memory and disk: the engine has computed it again, and owns it."""
        self.memory.discard(key)
        if self._is_on_disk(key):
            self._discard_on_disk(key)

    def recover(self) -> None:
        """End all leases and compute the sums again, after an interrupted call."""
        self.memory.release_all()
        self._backlog_bytes = sum(self._in_line.values())

    def clear(self) -> None:
        """Remove all blocks from memory and disk, and end all fetches. The server's blocks stay for other engines."""
        self._finish(self._disk_worker)
        self._end_fetches()
        self.memory.clear()
        if self.disk is not None:
            self.disk.clear()  # its worker has nothing to do

    # In the background: disk and server.

    def share(self, key: bytes, payload: bytes) -> None:
        """Send a copy of a computed block to the server, if there is one."""
        remote, worker = self.remote, self._remote_worker
        if remote is None or worker is None:
            return
        envelope = seal(key, payload, self.secret)
        if not self._has_room_in_line(envelope):
            return
        job = object()

        def send() -> Callable[[], None]:
            return partial(self._was_written, job, "shared" if remote.store(key, envelope) else "dropped")

        self._submit(worker, send, partial(self._was_written, job, "dropped"))
        self._put_in_line(job, envelope)

    def find(self, keys: Iterable[bytes]) -> Search:
        """Ask the server which of the keys it has. Without a server the search is over at once, with nothing found."""
        search = Search()
        wanted = [key for key in keys if not self.is_near(key)]
        remote, worker = self.remote, self._remote_worker
        if remote is None or worker is None or not wanted:
            search.is_done = True
            return search

        def ask() -> Callable[[], None]:
            return partial(self._was_found, search, remote.find(wanted))

        self._submit(worker, ask, partial(self._was_found, search, set()))
        return search

    def fetch(self, sizes: dict[bytes, int]) -> Fetch:
        """Fetch blocks from any tier into memory. `sizes` gives the payload bytes by key.

        Blocks that are in memory already, or are being fetched for another request, are not fetched again.
        """
        missing = [key for key in sizes if key not in self.memory]
        wanted = [key for key in missing if key not in self._fetches]
        near = [key for key in wanted if self.is_near(key)]
        far = [key for key in wanted if key not in near]
        for key in near:
            self._fetch_from_disk(key, sizes[key])
        if far and self.remote is not None:
            self._fetch_from_server({key: sizes[key] for key in far})
        fetch = Fetch(set(missing) if self.remote is not None else set(missing).difference(far))
        for key in fetch.keys:
            self._fetches.setdefault(key, []).append(fetch)
        return fetch

    def poll(self) -> None:
        """Store the blocks that have arrived since the last call. Costs nothing if there are none."""
        while self._news:
            self._news[0]()
            self._news.pop(0)
        if self._fetches and not all(worker.is_alive for worker in self._workers):
            self.counts["dead worker"] += 1
            self._end_fetches()

    def wait(self, seconds: float) -> None:
        """Return when a worker has sent a message, or after `seconds`."""
        with self._bell:
            if not self._news:
                self._bell.wait(max(seconds, 0.0))

    def flush(self) -> None:
        """Wait until all queued jobs are done."""
        for worker in self._workers:
            self._finish(worker)

    def close(self) -> None:
        """Finish the queued jobs, and release disk and server. Called again, it finishes what was interrupted."""
        if self._is_closed:
            return
        for worker in self._workers:
            worker.close()
        self.poll()
        for tier in (self.disk, self.remote):
            if tier is not None:
                tier.close()
        self._is_closed = True

    # On the engine's thread.

    def _to_memory(self, key: bytes, envelope: bytes, count: str) -> bool:
        pushed_out = self.memory.store(key, envelope)
        if pushed_out is None:
            self.counts["no room"] += 1
            return False
        self.counts[count] += 1
        if self._is_on_disk(key):  # not before it is in memory: nothing is lost on the way
            self._discard_on_disk(key)
        for old_key, old_envelope in pushed_out:
            self._to_disk(old_key, old_envelope)
        return True

    def _to_disk(self, key: bytes, envelope: bytes) -> None:
        """Write a block that memory has evicted to disk. Drop it without a disk or if too many bytes wait."""
        disk, worker = self.disk, self._disk_worker
        if disk is None or worker is None or not self._has_room_in_line(envelope):
            return
        job = object()

        def write() -> Callable[[], None]:
            return partial(self._went_down, key, job, disk.store(key, envelope))

        self._submit(worker, write, partial(self._went_down, key, job, False))
        self._going_down[key] = job
        self._put_in_line(job, envelope)

    @property
    def _workers(self) -> list[Worker]:
        return [worker for worker in (self._disk_worker, self._remote_worker) if worker is not None]

    def _submit(self, worker: Worker, work: Callable[[], Callable[[], None]], failed: Callable[[], None]) -> None:
        """Queue work. Send its result to the engine's thread, or `failed` if the work or the worker failed."""

        def job() -> None:
            news = failed
            try:
                news = work()
            except Exception:  # a tier's own guards have not caught it; it is a miss all the same
                self._say(partial(self._count, "failed"))
            finally:
                self._say(news)

        if worker.is_alive:
            worker.submit(job)
        else:
            self.counts["dead worker"] += 1
            self._say(failed)

    def _finish(self, worker: Worker | None) -> None:
        """Wait until a worker has done all queued jobs, and read its messages."""
        if worker is not None and not isinstance(worker, Inline):
            done = threading.Event()
            worker.submit(done.set)
            while worker.is_alive and not done.wait(0.1):
                pass
        self.poll()

    def _end_fetches(self) -> None:
        """End all fetches. Blocks that still arrive are not stored."""
        for fetches in self._fetches.values():
            for fetch in fetches:
                fetch.keys.clear()
        self._fetches.clear()

    def _has_room_in_line(self, envelope: bytes) -> bool:
        if self._backlog_bytes + len(envelope) > self.max_backlog_bytes:
            self.counts["dropped"] += 1
            return False
        return True

    def _put_in_line(self, job: object, envelope: bytes) -> None:
        self._in_line[job] = len(envelope)
        self._backlog_bytes += len(envelope)

    def _went_down(self, key: bytes, job: object, is_stored: bool) -> None:
        if self._going_down.get(key) is job:
            del self._going_down[key]
        self._was_written(job, "pushed out" if is_stored else "dropped")

    def _was_written(self, job: object, count: str) -> None:
        self._backlog_bytes -= self._in_line.pop(job, 0)
        self.counts[count] += 1

    def _was_found(self, search: Search, found: set[bytes]) -> None:
        search.found = found
        search.is_done = True

    def _has_arrived(self, key: bytes, envelope: bytes | None) -> None:
        """End the wait for a key, with its envelope or without."""
        if envelope is not None and key in self._fetches and not self.is_above(key):
            self._to_memory(key, envelope, "fetched")
        for fetch in self._fetches.pop(key, ()):
            fetch.keys.discard(key)

    def _is_on_disk(self, key: bytes) -> bool:
        """Return whether the disk has the key, or will have it when its worker is done."""
        return key in self._going_down or (self.disk is not None and key in self.disk)

    def _discard_on_disk(self, key: bytes) -> None:
        disk, worker = self.disk, self._disk_worker
        if disk is None or worker is None:
            return

        def discard() -> Callable[[], None]:
            disk.discard(key)
            return _nothing

        self._submit(worker, discard, _nothing)

    def _fetch_from_disk(self, key: bytes, num_bytes: int) -> None:
        disk, worker = self.disk, self._disk_worker
        assert disk is not None and worker is not None

        def read() -> Callable[[], None]:
            envelope = self._opened(key, disk.load(key), num_bytes)
            if envelope is None:
                disk.discard(key)  # gone, or damaged
            return partial(self._has_arrived, key, envelope)

        self._submit(worker, read, partial(self._has_arrived, key, None))

    def _fetch_from_server(self, sizes: dict[bytes, int]) -> None:
        remote, worker = self.remote, self._remote_worker
        assert remote is not None and worker is not None

        def read() -> Callable[[], None]:
            found = remote.load(list(sizes))
            envelopes = {key: self._opened(key, found.get(key), num_bytes) for key, num_bytes in sizes.items()}
            return partial(self._have_arrived, envelopes)

        self._submit(worker, read, partial(self._have_arrived, dict.fromkeys(sizes)))

    def _have_arrived(self, envelopes: Mapping[bytes, bytes | None]) -> None:
        for key, envelope in envelopes.items():
            self._has_arrived(key, envelope)

    def _count(self, name: str) -> None:
        self.counts[name] += 1

    # On a worker's thread.

    def _opened(self, key: bytes, envelope: bytes | None, num_bytes: int) -> bytes | None:
        """Return the envelope if it opens, else `None`."""
        if envelope is None:
            return None
        try:
            unseal(key, envelope, num_bytes, self.secret)
        except DamagedError:
            self._say(partial(self._count, "damaged"))
            return None
        return envelope

    def _say(self, news: Callable[[], None]) -> None:
        """Send a message to the engine's thread."""
        with self._bell:
            self._news.append(news)
            self._bell.notify()


def _nothing() -> None:
    """Do nothing: the message of a job without a result."""

"""Runs slow jobs: one thread per slow tier, which does its jobs in order, or no thread, for tests and pages."""

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Protocol

Job = Callable[[], None]


class Worker(Protocol):
    """Does jobs one after the other."""

    @property
    def is_alive(self) -> bool:
        """Whether jobs are still done."""
        return True

    def submit(self, job: Job) -> None:
        """Do this job after those before it. A job must not raise."""

    def close(self) -> None:
        """Finish the submitted jobs, and end."""


class Inline:
    """Does each job at once, before `submit` returns."""

    is_alive = True

    def submit(self, job: Job) -> None:
        """Do the job."""
        job()

    def close(self) -> None:
        """Do nothing."""


class Thread:
    """Does the jobs in a thread of its own, which ends with the process if it is not closed."""

    def __init__(self) -> None:
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="mini_kv tier", daemon=True)
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        """Whether the thread runs: not after `close`, nor in a process that was forked from its own."""
        return self._thread.is_alive()

    def submit(self, job: Job) -> None:
        """Put the job in line."""
        self._jobs.put(job)

    def close(self) -> None:
        """Wait for the jobs in line, and end the thread."""
        self._jobs.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()

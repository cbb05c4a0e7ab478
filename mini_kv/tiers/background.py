"""Runs slow jobs: in order in one thread per slow tier, or without a thread, for tests and pages."""

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Protocol

Job = Callable[[], None]


class Worker(Protocol):
    """Runs jobs one after the other."""

    @property
    def is_alive(self) -> bool:
        """Whether submitted jobs are still run."""
        return True

    def submit(self, job: Job) -> None:
        """Run this job after all earlier ones. A job must not raise."""

    def close(self) -> None:
        """Finish the submitted jobs, then stop."""


class Inline:
    """Runs each job at once, before `submit` returns."""

    is_alive = True

    def submit(self, job: Job) -> None:
        """Run the job."""
        job()

    def close(self) -> None:
        """Do nothing."""


class Thread:
    """Runs the jobs in a thread of its own. The thread ends with the process if it is not closed."""

    def __init__(self) -> None:
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="mini_kv tier", daemon=True)
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        """Whether the thread runs. It does not after `close`, nor in a forked process."""
        return self._thread.is_alive()

    def submit(self, job: Job) -> None:
        """Add the job to the queue."""
        self._jobs.put(job)

    def close(self) -> None:
        """Wait for the queued jobs, then end the thread."""
        self._jobs.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()

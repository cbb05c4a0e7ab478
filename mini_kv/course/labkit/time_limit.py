"""A time limit for code that may not return, on every system with threads, and a memory limit.

What counts is what the process computes. Code that waits is ended when neither the process nor its children had
anything to compute for a minute. A clock on the wall alone gives no verdict, because a machine may be busy.
"""

import _thread
import faulthandler
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import TypeVar

TIME_LIMIT_S = 5
"""Default seconds of computing per lab test. Every test needs less than one."""
IDLE_S = 60
"""Seconds without computing after which code is said to wait."""
PATIENCE_S = 600
"""Wall-clock seconds after which there is no verdict."""
WATCH_S = 0.1
"""Seconds between two checks of the clock."""
LOOK_S = 1
"""Seconds between two looks at the system's account of who computed."""
QUIET_NS = 10_000_000
"""Nanoseconds of computing between two looks that do not count. A loop that sleeps most of the time is waiting."""
INTERRUPTS = 10
"""Interruptions that code may swallow before the last resort."""
GRACE_S = 5
"""Additional seconds until the system ends code that Python cannot interrupt."""
MEMORY_MB = 1536
"""MiB that a test may allocate beyond those in use. The labs without PyTorch need a hundredth of it."""

_REASON = "an endless loop, or a slow machine (--lab-seconds 30 allows more)"


class TookTooLongError(BaseException):
    """The code did not return in time. It is not an `Exception`, because a loop may swallow every exception."""


class NoVerdictError(TookTooLongError):
    """The code did not return, but it is not known to loop or to wait: the machine may be busy."""


class Interrupted(KeyboardInterrupt):
    """Ctrl-C was typed. A `KeyboardInterrupt` that the code itself raises is not an interruption."""


class Activity:
    """Tells whether this process or one of its descendants had anything to compute, but for the calling thread.

    Linux keeps an account of each thread: the nanoseconds that it computed and that it stood in the run queue. A thread
    that is in the queue now, or waits for the disk, counts as well.
    """

    def __init__(self, proc: Path = Path("/proc")) -> None:
        """Set the folder of the system's accounts."""
        self._proc = proc
        self._before: dict[str, int] = {}

    def __call__(self) -> bool:
        """Return whether there was anything since the last call. On a system without accounts: yes."""
        try:
            is_in_queue, now = self._look()
        except OSError:
            return True
        before, self._before = self._before, now
        return is_in_queue or sum(max(0, ns - before.get(thread, 0)) for thread, ns in now.items()) > QUIET_NS

    def _look(self) -> tuple[bool, dict[str, int]]:
        """Return whether a thread is in the queue, and the nanoseconds of each. Raises `OSError` if none are kept."""
        is_in_queue, accounts = False, {}
        own = self._proc / "self"
        if (own / "schedstat").read_text(encoding="ascii").split()[0] == "0":
            raise OSError("the account is not kept")
        mine = os.readlink(self._proc / "thread-self").rpartition("/")[2]
        processes = [own]
        for process in processes:
            with suppress(OSError):  # it has ended
                for thread in (process / "task").iterdir():
                    children = (thread / "children").read_text(encoding="ascii").split()
                    processes += [self._proc / child for child in children]
                    if thread.name != mine:
                        computed, queued, _ = (thread / "schedstat").read_text(encoding="ascii").split()
                        accounts[thread.name] = int(computed) + int(queued)
                        after_name = (thread / "stat").read_bytes().rpartition(b") ")[2]
                        is_in_queue |= after_name.startswith((b"R", b"D"))
        return is_in_queue, accounts


class Deadline:
    """Decides when the time of some code is over."""

    def __init__(
        self,
        cpu_seconds: float,
        idle_seconds: float,
        is_active: Callable[[], bool],
        *,
        computed: Callable[[], float] = time.process_time,
        wall: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin.

        Args:
            cpu_seconds: seconds that the code may compute.
            idle_seconds: seconds without activity after which it waits.
            is_active: returns whether there was activity since it was last called.
            computed: returns the seconds that this process has computed.
            wall: returns the seconds on a clock.
        """
        self.error: TookTooLongError | None = None
        """The verdict, when the time is over."""
        self.num_interrupts = 0
        self._cpu_seconds, self._idle_seconds, self._is_active = cpu_seconds, idle_seconds, is_active
        self._computed, self._wall = computed, wall
        self._computed_before, self._began = computed(), wall()
        self._looked, self._idle = self._began, 0.0

    def check(self) -> None:
        """Set the verdict if the time is over."""
        now = self._wall()
        if now - self._looked >= min(LOOK_S, self._idle_seconds / 4):
            # Of a process that was stopped for an hour only the last moment counts.
            self._idle = 0.0 if self._is_active() else self._idle + min(now - self._looked, 2 * LOOK_S)
            self._looked = now
        patience = _patience_of(self._cpu_seconds)
        if self._computed() - self._computed_before > self._cpu_seconds:
            self.error = TookTooLongError(f"no end after {self._cpu_seconds:g} s of computing: {_REASON}")
        elif self._idle >= self._idle_seconds:
            waits = "it waits for an event that never occurs"
            self.error = TookTooLongError(f"no end after {self._idle_seconds:g} s without computing: {waits}")
        elif now - self._began > patience:
            self.error = NoVerdictError(f"no verdict after {patience:g} s: this machine is busy, or the code waits")


def _patience_of(cpu_seconds: float) -> float:
    """Return the wall-clock seconds after which there is no verdict."""
    return max(PATIENCE_S, 2 * cpu_seconds)


class Clock(threading.Thread):
    """Watches the deadline of the enclosed code, and interrupts the main thread when the time is over."""

    def __init__(self, cpu_seconds: float, idle_seconds: float, last_resort: Callable[[], None] | None) -> None:
        super().__init__(daemon=True)
        self._seconds = cpu_seconds, idle_seconds
        self._last_resort = last_resort
        self._is_active = Activity()
        self._deadline: Deadline | None = None
        self._has_interrupted = False
        self.over = threading.Event()

    def restart(self) -> None:
        """Give the code its whole time, from now on."""
        self._deadline = Deadline(*self._seconds, self._is_active)

    def stop(self) -> None:
        """Let the code take any time from now on."""
        self._deadline = None

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Stop during the enclosed code, which has limits of its own. Restart afterwards."""
        self.stop()
        try:
            yield
        finally:
            self.restart()

    def run(self) -> None:
        """Check the deadline until the code is done."""
        while not self.over.wait(min(WATCH_S, *(seconds / 4 for seconds in self._seconds))):
            deadline = self._deadline
            if deadline is None:
                continue
            deadline.check()
            if deadline.error is None:
                continue
            if deadline.num_interrupts < INTERRUPTS:
                deadline.num_interrupts += 1
                self._has_interrupted = True
                _interrupt_main()
            elif self._last_resort is not None:
                self._last_resort()

    def interrupt(self, signum: int, frame: FrameType | None) -> None:
        """Handle an interruption: that of this clock, which may come too late to be needed, or Ctrl-C."""
        is_own, self._has_interrupted = self._has_interrupted, False
        deadline = self._deadline
        if deadline is not None and deadline.error is not None and not self.over.is_set():
            raise deadline.error
        if not is_own:
            raise Interrupted


def _interrupt_main() -> None:
    """Interrupt the main thread. With real signals this also wakes a sleeping thread."""
    if sys.platform == "win32":
        _thread.interrupt_main()
    else:
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)


@contextmanager
def time_limit(
    cpu_seconds: float, idle_seconds: float = IDLE_S, last_resort: Callable[[], None] | None = None
) -> Iterator[Clock]:
    """Raise `TookTooLongError` in the enclosed code when its time is over, repeatedly until it ends.

    It works in the main thread, where Python delivers interrupts. In other threads there is no limit, and none in a
    browser's Python, which has no threads. Ctrl-C raises `Interrupted`. The clock can be stopped and restarted.

    Args:
        cpu_seconds: CPU time of this process. Other programs on a busy machine do not use it up.
        idle_seconds: time in which neither this process nor its descendants have anything to compute.
        last_resort: called, from another thread, if the code swallows one interruption after the other.
    """
    clock = Clock(cpu_seconds, idle_seconds, last_resort)
    if sys.platform == "emscripten" or threading.current_thread() is not threading.main_thread():
        yield clock
        return
    before = signal.signal(signal.SIGINT, clock.interrupt)
    clock.restart()
    clock.start()
    try:
        yield clock
    finally:
        clock.over.set()
        clock.join()
        signal.signal(signal.SIGINT, before or signal.default_int_handler)


T = TypeVar("T")


def each_in_time(steps: Iterable[T], cpu_seconds: float) -> Iterator[T]:
    """Yield the steps. Each must be made within this time, or `TookTooLongError` is raised, as in `time_limit`.

    One thread watches all steps. While a step is used, the clock is stopped.
    """
    with time_limit(cpu_seconds, cpu_seconds) as clock:
        for step in steps:
            clock.stop()
            yield step
            clock.restart()


@contextmanager
def hard_limit(cpu_seconds: float, stderr: int) -> Iterator[None]:
    """Let the system end this process soon after its time is over, because code in C may keep Python's lock.

    Then the exit status is not 0, and the running lines are written to `stderr`, the number of an open file. On a
    system without signals, such as Windows, only the wall-clock time counts. Elsewhere there is twice as much of it,
    for code that waits and keeps the lock.
    """
    if sys.platform == "emscripten":
        yield
        return
    patience = _patience_of(cpu_seconds) * (1 if sys.platform == "win32" else 2)
    faulthandler.dump_traceback_later(patience + GRACE_S, exit=True, file=stderr)
    if sys.platform != "win32":
        faulthandler.register(signal.SIGPROF, file=stderr, chain=True)
        signal.setitimer(signal.ITIMER_PROF, cpu_seconds + GRACE_S)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()
        if sys.platform != "win32":
            signal.setitimer(signal.ITIMER_PROF, 0)


@contextmanager
def memory_limit() -> Iterator[None]:
    """Raise `MemoryError` in the enclosed code before the machine is out of memory, on Linux only."""
    if sys.platform != "linux":
        yield
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
    most = [limit for limit in (soft, hard, used + (MEMORY_MB << 20)) if limit != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_AS, (min(most), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))

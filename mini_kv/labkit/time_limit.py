"""A time limit for code that may not return, on every system with threads, and a memory limit."""

import _thread
import argparse
import faulthandler
import math
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

TIME_LIMIT_S = 5
"""Default seconds of computing per lab test. Every test needs less than one."""
WATCH_S = 0.1
"""Seconds between two checks of the clock."""
INTERRUPTS = 10
"""Interruptions that code may swallow before the last resort."""
GRACE_S = 5
"""Additional seconds until the system ends code that Python cannot interrupt."""
MEMORY_MB = 1536
"""MiB that a test may allocate beyond those in use. The labs without PyTorch need a hundredth of it."""

REASON = "an endless loop, or a slow machine (--lab-seconds 30 allows more)"


def seconds_of(text: str) -> float:
    """Return the seconds in the text. Raises `ArgumentTypeError` unless they are above 0 and finite."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < math.inf:
        raise argparse.ArgumentTypeError(f"the seconds must be a number above 0, such as 30, not {text[:20]}")
    return seconds


class TookTooLongError(BaseException):
    """The code did not return in time. It is not an `Exception`, because a loop may swallow every exception."""


class Interrupted(KeyboardInterrupt):
    """Ctrl-C was typed. A `KeyboardInterrupt` that the code itself raises is not an interruption."""


class _Watcher(threading.Thread):
    """Checks the clocks and interrupts the main thread when its time is over."""

    def __init__(self, seconds: float, cpu_seconds: float, last_resort: Callable[[], None] | None) -> None:
        super().__init__(daemon=True)
        self.seconds = seconds
        self.cpu_seconds = cpu_seconds
        self.last_resort = last_resort
        self.done = threading.Event()
        self.verdict = ""
        """The reason why the time is over, or "" while it is not."""

    def run(self) -> None:
        """Check the clocks until the code is done."""
        began, computed, interrupts = time.monotonic(), time.process_time(), 0
        while not self.done.wait(min(WATCH_S, self.seconds / 4)):
            if time.process_time() - computed > self.cpu_seconds:
                self.verdict = f"no end after {self.cpu_seconds:g} s of computing: {REASON}"
            elif time.monotonic() - began > self.seconds:
                self.verdict = f"no end after {self.seconds:g} s: it waits for an event that never occurs, or it loops"
            if self.verdict and interrupts < INTERRUPTS:
                interrupts += 1
                _interrupt_main()
            elif self.verdict and self.last_resort is not None:
                self.last_resort()

    def interrupt(self, signum: int, frame: FrameType | None) -> None:
        """Handle an interruption: that of the time limit, or Ctrl-C."""
        if not self.verdict:
            raise Interrupted
        if not self.done.is_set():
            raise TookTooLongError(self.verdict)


def _interrupt_main() -> None:
    """Interrupt the main thread. With real signals this also wakes a sleeping thread."""
    if sys.platform == "win32":
        _thread.interrupt_main()
    else:
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)


@contextmanager
def time_limit(
    seconds: float, cpu_seconds: float = float("inf"), last_resort: Callable[[], None] | None = None
) -> Iterator[threading.Event]:
    """Raise `TookTooLongError` in the enclosed code when its time is over, repeatedly until it ends.

    It works in the main thread, where Python delivers interrupts. In other threads there is no limit, and none in a
    browser's Python, which has no threads. Ctrl-C raises `Interrupted`. Setting the event stops the clock.

    Args:
        seconds: wall-clock time.
        cpu_seconds: CPU time of this process. Other programs on a busy machine do not use it up.
        last_resort: called, from another thread, if the code swallows one interruption after the other.
    """
    if sys.platform == "emscripten" or threading.current_thread() is not threading.main_thread():
        yield threading.Event()
        return
    watcher = _Watcher(seconds, cpu_seconds, last_resort)
    before = signal.signal(signal.SIGINT, watcher.interrupt)
    watcher.start()
    try:
        yield watcher.done
    finally:
        watcher.done.set()
        watcher.join()
        signal.signal(signal.SIGINT, before or signal.default_int_handler)


@contextmanager
def hard_limit(seconds: float, cpu_seconds: float, stderr: int) -> Iterator[None]:
    """Let the system end this process soon after its time is over, because code in C may keep Python's lock.

    Then the exit status is not 0, and the running lines are written to `stderr`, the number of an open file. On a
    system without signals, such as Windows, only the wall-clock time counts.
    """
    if sys.platform == "emscripten":
        yield
        return
    faulthandler.dump_traceback_later(seconds + GRACE_S, exit=True, file=stderr)
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

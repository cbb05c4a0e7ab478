"""Ctrl-C reaches every process that was started in a terminal. Here it is left to the one that waits for the others."""

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any


@contextmanager
def ignored_by_children() -> Iterator[None]:
    """Let the processes that start in this block never get Ctrl-C: they inherit that the main thread blocks it.

    In this process it waits for the end of the block, also where another thread takes it (numpy starts some): an
    interrupt in between would leave a process that is half started. Windows has no such block.
    """
    if sys.platform == "win32":
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        with _at_the_end() if threading.current_thread() is threading.main_thread() else nullcontext():
            yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _at_the_end() -> Iterator[None]:
    """Note Ctrl-C, and raise it at the end of the block."""
    came: list[int] = []
    handler = signal.signal(signal.SIGINT, lambda number, frame: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if came:
            signal.raise_signal(signal.SIGINT)


def run_child(command: Sequence[str], **options: Any) -> int:
    """Run a program and return its exit status. Ctrl-C ends it, and it prints nothing about that.

    Args:
        command: the program and its arguments.
        options: of `subprocess.Popen`.
    """
    with ignored_by_children():
        process = subprocess.Popen(command, **options)
    try:
        return process.wait()
    except BaseException:
        process.kill()
        process.wait()
        raise

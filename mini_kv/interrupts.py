"""Ctrl-C reaches every process that was started in a terminal. Here it is left to the one that waits for the others."""

import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any


@contextmanager
def ignored_by_children() -> Iterator[None]:
    """Let the processes that start in this block never get Ctrl-C: they inherit that this thread blocks it.

    In this process it waits for the end of the block, if no other thread takes it. Windows has no such block.
    """
    if sys.platform == "win32":
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


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

"""Ctrl-C while processes start: it waits until all of them are whole."""

import os
import signal
import sys
import threading

import pytest

from mini_kv.interrupts import ignored_by_children


def interrupt_itself(reached: list[str], is_over: threading.Event) -> None:
    with ignored_by_children():
        os.kill(os.getpid(), signal.SIGINT)
        is_over.wait(0.2)
        reached.append("the end of the block")


@pytest.mark.skipif(sys.platform == "win32", reason="Windows cannot block a signal")
def test_ctrl_c_waits_for_the_end_of_the_block_when_another_thread_takes_it() -> None:
    """The system gives the signal to any thread that lets it through, and Python raises in the main one."""
    is_over = threading.Event()
    reached: list[str] = []
    other = threading.Thread(target=is_over.wait)
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job ignores it
    other.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            interrupt_itself(reached, is_over)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        is_over.set()
        other.join()
        signal.signal(signal.SIGINT, handler)
    assert reached == ["the end of the block"]

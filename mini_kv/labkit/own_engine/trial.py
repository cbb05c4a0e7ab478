"""Runs code that may be wrong: it may raise, it may never come back."""

import _thread
import argparse
import signal
import threading
from collections import defaultdict
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager, suppress
from types import FrameType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mini_kv.engine.generate_command import Deltas
    from mini_kv.engine.llm_engine import LLMEngine
    from mini_kv.engine.output_processor import DeltaOutput

STEP_LIMIT_S = 30
"""Seconds in which an engine must say something; the slowest right one needs a few."""

Said = Mapping[str, list[int]]
"""Tokens of each request."""


class TookTooLongError(BaseException):
    """The code did not come back. Not an `Exception`: a loop that swallows exceptions would swallow this one too."""


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise `TookTooLongError` in what runs inside after so many seconds, again every second until it gives in.

    For the main thread, which is where Python delivers interrupts; on every system. Ctrl-C still works.
    """
    done, is_over = threading.Event(), threading.Event()

    def interrupt(signum: int, frame: FrameType | None) -> None:
        if is_over.is_set():
            raise TookTooLongError
        raise KeyboardInterrupt

    def watch() -> None:
        wait = seconds
        while not done.wait(wait):
            is_over.set()
            _thread.interrupt_main()
            wait = 1

    before = signal.signal(signal.SIGINT, interrupt)
    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()
        signal.signal(signal.SIGINT, before or signal.default_int_handler)


class Trial:
    """One run of an engine: what it said, and how it ended."""

    def __init__(self, args: argparse.Namespace, parts: Mapping[str, Any]) -> None:
        """Build the engine from these parts and add the prompts; errors are kept."""
        self.said: defaultdict[str, list[int]] = defaultdict(list)
        self.error: BaseException | None = None
        self.engine: LLMEngine | None = None
        self._stream: Deltas | None = None
        self._args, self._parts = args, parts

    def prepare(self) -> "LLMEngine | None":
        """Build the engine and add the prompts; return it, or `None` if that failed."""
        # Imported late: torch is needed from here on.
        from mini_kv.engine.generate_command import make_engine, start
        from mini_kv.labkit.own_engine.assembly import seams

        try:
            with time_limit(STEP_LIMIT_S):
                self.engine = make_engine(self._args, **seams(self._parts))
                self._stream = start(self.engine, self._args)
        except (Exception, SystemExit, TookTooLongError) as error:
            self.error = error
        return self.engine if self._stream is not None else None

    def deltas(self) -> "Generator[DeltaOutput, None, None]":
        """Yield what comes, and end when an error does."""
        while self._stream is not None:
            try:
                with time_limit(STEP_LIMIT_S):
                    delta = next(self._stream)
            except StopIteration:
                return
            except (Exception, SystemExit, TookTooLongError) as error:
                self.error = first_cause(error)
                return
            self.said[delta.request_id] += delta.new_token_ids
            yield delta

    def agrees_with(self, said: Said) -> bool:
        """Run it up to the first token that is another; return whether there is none and no error."""
        if self.prepare() is None:
            return False
        for delta in self.deltas():
            mine = self.said[delta.request_id]
            if mine != said[delta.request_id][: len(mine)]:
                break
        if self._stream is not None:
            with suppress(Exception):  # of requests that are aborted: there is an answer already
                self._stream.close()
        return self.error is None and self.said == said


def first_cause(error: BaseException) -> BaseException:
    """Return the error for whose sake requests were being aborted when this one was raised, if that is how it came."""
    while error.__context__ is not None and _while_aborting(error):
        error = error.__context__
    return error


def _while_aborting(error: BaseException) -> bool:
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_name in ("abort", "_give_up"):
            return True
        trace = trace.tb_next
    return False

"""A line on a terminal that shows that long work goes on: what runs, how much of it is done, and for how long."""

import os
import shutil
import threading
import time
from typing import Self, TextIO

_SHOWN_AFTER_S = 2


class ProgressLine:
    """A line that is redrawn in place, in a `with` block also once a second. It is drawn only on a terminal.

    Work with a text is timed from this text on. The block erases the line at its end.
    """

    def __init__(self, stream: TextIO, text: str = "") -> None:
        self.total = 1
        """The number that is 100 %."""
        self._stream, self._text, self._drawn = stream, text, ""
        self._is_terminal = stream.isatty() and os.environ.get("TERM") != "dumb"
        self._begin = time.monotonic()
        self._lock = threading.RLock()
        self._is_over = threading.Event()

    def __enter__(self) -> Self:
        if self._is_terminal:
            threading.Thread(target=self._redraw, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self.clear()

    def show(self, done: int) -> None:
        """Draw a bar with `done` of `total` filled."""
        percent = 100 * done // self.total
        self.tell(f"{percent:3} % [{'#' * (percent // 5):<20}]")

    def tell(self, text: str) -> None:
        """Draw this text, if it differs from the one on the screen."""
        if text != self._text:
            self._text, self._begin = text, time.monotonic()
            self._draw()

    def print(self, text: str) -> None:
        """Erase the line, and print a text on standard output."""
        with self._lock:
            self.clear()
            print(text, flush=True)

    def clear(self) -> None:
        """Erase the line."""
        with self._lock:
            if self._drawn:
                # Two cells more: on Ctrl-C the terminal writes ^C behind the line.
                self._stream.write("\r" + " " * (len(self._drawn) + 2) + "\r")
                self._stream.flush()
            self._drawn = ""

    def _redraw(self) -> None:
        while not self._is_over.wait(1):
            self._draw()

    def _draw(self) -> None:
        if not self._is_terminal:
            return
        seconds = int(time.monotonic() - self._begin)
        text = f"{self._text}, {seconds} s" if seconds >= _SHOWN_AFTER_S else self._text
        text = text[: shutil.get_terminal_size().columns - 3]
        with self._lock:
            if text and text != self._drawn and not self._is_over.is_set():
                self._stream.write("\r" + text.ljust(len(self._drawn)))
                self._stream.flush()
                self._drawn = text

"""The values of a JSON file that is not one value per line: an array, or objects that are spread over lines.

    [{"prompt": "a"}, {"prompt": "b"}]

    {
      "prompt": "a"
    }

The file is read in pieces, because public chat sets are arrays of hundreds of megabytes.
"""

import codecs
import json
import re
from collections.abc import Iterable, Iterator
from itertools import chain

_ARRAY = re.compile(rb"\s*\[\s*(?:[\[{\]]|$)")
"""Begins an array. A log's line may also begin with a bracket."""
_OPEN_OBJECT = re.compile(rb"\s*\{(?:.*[{\[,])?\s*$")
"""A line that begins an object and leaves it open, as programs write it that indent JSON."""
_SPACE = re.compile(r"[ \t\r\n]*")


def is_over_lines(first_line: bytes) -> bool:
    """Return whether a file with this first line is an array, or has an object on several lines."""
    return bool(_ARRAY.match(first_line) or _OPEN_OBJECT.match(first_line))


class JsonError(ValueError):
    """A place that is not JSON."""

    def __init__(self, problem: str, line: int) -> None:
        super().__init__(problem)
        self.line = line
        """Number of the line, counted from 1."""


def values_in(pieces: Iterable[bytes], max_length: int) -> Iterator[tuple[int, bytes]]:
    """Yield each value, and the number of the line on which it begins.

    Args:
        pieces: the file, in pieces of any length.
        max_length: the most characters of a value.

    Raises `JsonError`. Costs O(file) time, and memory for the longest value.
    """
    values = _Values()
    decode = codecs.getincrementaldecoder("utf-8-sig")().decode
    enough = 0
    for piece in chain(pieces, (b"",)):
        try:
            values.text += decode(piece, final=not piece)
        except UnicodeDecodeError:
            raise JsonError("not UTF-8", values.line) from None
        if piece and len(values.text) < enough:
            continue
        yield from values.complete()
        if len(values.text) > max_length:
            raise JsonError(f"no value ends within {max_length:,} characters", values.line)
        enough = 2 * len(values.text)  # or a long value would be parsed again with each piece
    values.check_end()


class _Values:
    """Text of which the complete values were taken."""

    def __init__(self) -> None:
        self.text = ""
        self.line = 1
        """Line on which the text begins."""
        self._decoder = json.JSONDecoder()
        self._problem, self._place = "", 0
        """Why the text has no value, and at which character."""
        self._is_array: bool | None = None
        self._is_closed = False

    def complete(self) -> Iterator[tuple[int, bytes]]:
        """Yield the complete values at the beginning of the text, each with its line, and remove them from it."""
        place = self._skip(0)
        while place < len(self.text) and not self._is_closed:
            try:
                _, end = self._decoder.raw_decode(self.text, place)
            except json.JSONDecodeError as error:
                self._problem, self._place = error.msg, error.pos - place
                break
            except RecursionError:
                raise JsonError("not JSON that can be read: lists too deep", self.line) from None
            yield self.line, self.text[place:end].encode()
            self.line += self.text.count("\n", place, end)
            place = self._skip(end)
        self.text = self.text[place:]

    def _skip(self, start: int) -> int:
        """Return where the next value begins: after white space, and an array's brackets and commas."""
        place = self._after_space(start)
        if place < len(self.text) and not self._is_closed:
            if self._is_array is None:
                self._is_array = self.text[place] == "["
                place += self._is_array
            elif self._is_array and self.text[place] == ",":
                place += 1
            place = self._after_space(place)
            if self._is_array and self.text.startswith("]", place):
                self._is_closed = True
                place = self._after_space(place + 1)
        self.line += self.text.count("\n", start, place)
        return place

    def _after_space(self, place: int) -> int:
        match = _SPACE.match(self.text, place)
        return place if match is None else match.end()

    def check_end(self) -> None:
        """Raise `JsonError` if the text has no end, or goes on after it."""
        if self._is_closed and self.text:
            raise JsonError("the array ended, and the file goes on", self.line)
        if self.text:
            line = self.line + self.text.count("\n", 0, self._place)
            raise JsonError(f"not JSON: {self._problem}", line)
        if self._is_array and not self._is_closed:
            raise JsonError("the array has no end", self.line)

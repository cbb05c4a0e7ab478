"""Programs that answer the calls of scenarios: what they are asked, and what their replies must look like."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from io import BufferedReader
from queue import Empty, Queue
from tempfile import TemporaryFile
from threading import Thread
from types import TracebackType
from typing import Any, Protocol

from mini_kv.core import strict_json

VERSION = 1
"""Version of the protocol. `start` carries it."""
TIMEOUT_S = 10.0
"""Seconds that a program has for a reply."""
LONGEST_REPLY = 1 << 22
"""Bytes of the longest reply. The replies of mini_kv's own engine have a few thousand."""
PATIENCE_S = 1.0
"""Seconds that a program has to end, before it is killed."""

Message = dict[str, Any]


class Program(Protocol):
    """Answers calls, one at a time."""

    def answer(self, message: Message) -> Message:
        """Return the result of a call, and all that can be seen after it."""
        ...


class ProgramError(Exception):
    """The program gave no usable reply. The message says why."""


SHAPES: Mapping[str, Any] = {
    "result": dict,
    "skip": str,
    "tables": {str: [[int]]},
    "refs": [int],
    "free": [int],
    "hashes": [(str, None)],
    "found": [(int, None)],
    "usage": float,
    "stats": [int],
    "running": [str],
    "waiting": [str],
    "computed": {str: [int]},
}
"""The members of a reply and their types. `(str, None)` is a string or null."""
RESULT_SHAPES: Mapping[str, Any] = {
    "error": str,
    "hit": int,
    "blocks": [[int]],
    "granted": bool,
    "reset": bool,
    "adopters": [str],
    "stats": [int],
    "preempted_stats": [int],
    "steps": [{"request": str, "computed": int, "tokens": int, "drafts": [int], "blocks": [[int]]}],
    "finished": [str],
    "preempted": [str],
    "outputs": [{"request": str, "tokens": [int], "finish": (str, None)}],
}
"""The members of a result and their types."""


NEEDED: Mapping[str, Sequence[str]] = {
    "lookup": ("hit",),
    "allocate": ("granted",),
    "reset": ("reset",),
    "stats": ("stats",),
    "schedule": ("steps", "finished", "preempted"),
    "update": ("outputs",),
}
"""The members that the result of a call must have."""


def check_reply(reply: Any, call: str) -> None:
    """Raise `ProgramError` for a member that is unknown, missing, or has the wrong type."""
    if not isinstance(reply, dict):
        raise ProgramError(f"the reply is not a JSON object: {_shortened(reply)}")
    if "skip" not in reply and "result" not in reply:
        raise ProgramError(f"the reply has no `result`: {_shortened(reply)}")
    _check_members(reply, SHAPES, "")
    result = reply.get("result", {})
    _check_members(result, RESULT_SHAPES, "result.")
    for name in NEEDED.get(call, ()):
        if "result" in reply and "error" not in result and name not in result:
            raise ProgramError(f"the result of `{call}` has no `{name}`: {_shortened(result)}")
    _check_numbers(reply)


def _check_numbers(reply: Message) -> None:
    """Raise `ProgramError` for lists of a wrong length, and for numbers that are no block's."""
    hashes, found = reply.get("hashes", []), reply.get("found")
    if found is not None and len(found) != len(hashes):
        raise ProgramError(f"`hashes` has {len(hashes)} blocks, and `found` has {len(found)}")
    for block_id in found or ():
        if block_id is not None and not 0 <= block_id < len(hashes):
            raise ProgramError(f"`found` has the block {block_id}; blocks go from 0 to {len(hashes) - 1}")
    if len(reply.get("stats", [0, 0, 0])) != 3:
        raise ProgramError(f"`stats` has {len(reply['stats'])} numbers, it must have 3: requests, queries, hits")
    for request, numbers in reply.get("computed", {}).items():
        if len(numbers) != 2:
            raise ProgramError(f"`computed` of {request} has {len(numbers)} numbers, it must have 2: computed, known")


def _check_members(members: Mapping[str, Any], shapes: Mapping[str, Any], where: str) -> None:
    for name, value in members.items():
        if name not in shapes:
            raise ProgramError(f"the reply has `{where}{name}`, which is not a member; there are {', '.join(shapes)}")
        if not _fits(value, shapes[name]):
            raise ProgramError(f"`{where}{name}` is {_shortened(value)}, it must be {_in_words(shapes[name])}")


def _fits(value: Any, shape: Any) -> bool:
    """Return whether the value has the shape."""
    if isinstance(shape, list):
        return isinstance(value, list) and all(_fits(member, shape[0]) for member in value)
    if isinstance(shape, tuple):
        return value is None or _fits(value, shape[0])
    if isinstance(shape, dict) and str in shape:
        return isinstance(value, dict) and all(_fits(member, shape[str]) for member in value.values())
    if isinstance(shape, dict):
        return (
            isinstance(value, dict)
            and value.keys() == shape.keys()
            and all(_fits(value[name], shape[name]) for name in shape)
        )
    if shape is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    return isinstance(value, shape) and (shape is bool or not isinstance(value, bool))


def _in_words(shape: Any) -> str:
    """Return a shape in words.

    >>> _in_words({str: [[int]]})
    'an object of lists of lists of integers'
    """
    if isinstance(shape, tuple):
        return f"{_in_words(shape[0])} or null"
    if isinstance(shape, dict) and str not in shape:
        return f"an object with {', '.join(shape)}"
    if isinstance(shape, dict):
        return f"an object of {_plural(_in_words(shape[str]))}"
    if isinstance(shape, list):
        return f"a list of {_plural(_in_words(shape[0]))}"
    names = {int: "an integer", str: "a string", float: "a number", bool: "true or false", dict: "an object"}
    return names[shape]


def _plural(words: str) -> str:
    """Return `a list of ...` as `lists of ...`, and so on."""
    _, _, noun = words.partition(" ")
    for one, many in (("list", "lists"), ("object", "objects"), ("integer", "integers"), ("string", "strings")):
        if noun.split(" ")[0] == one:
            return noun.replace(one, many, 1)
    return words


def _shortened(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return text if len(text) <= 80 else f"{text[:77]}..."


class Shown:
    """Checks that a program shows the same members after every call. What it hides in some would not be compared."""

    def __init__(self) -> None:
        self._shown: set[str] = set()
        """The members of the last reply to `start`."""

    def check(self, reply: Any, call: str) -> None:
        """Raise `ProgramError` for a reply of a wrong form, or that shows less or more than the reply to `start`."""
        check_reply(reply, call)
        if "skip" in reply:
            return
        if call == "start":
            self._shown = {*reply}
        for name in sorted(self._shown ^ {*reply}):
            one, other = ("has no", "has") if name in self._shown else ("has", "does not have")
            raise ProgramError(f"the reply {one} `{name}`, which the reply to `start` {other}")


class Called:
    """A program that is a function of this process. It gets a message, and returns the reply."""

    def __init__(self, function: Callable[[Message], Any]) -> None:
        self._function = function
        self._shown = Shown()

    def answer(self, message: Message) -> Message:
        """Return the reply. Raises `ProgramError` for one of a wrong form, and what the function raises."""
        reply: Message = self._function(json.loads(json.dumps(message)))
        self._shown.check(reply, message["call"])
        return json.loads(json.dumps(reply))  # type: ignore[no-any-return]  # a copy: its lists may change later


class Piped:
    """A program in a process of its own: one JSON object per line on its standard input, and one back for each.

    Use it as a context manager: it ends the process.
    """

    def __init__(self, command: Sequence[str], timeout_s: float = TIMEOUT_S) -> None:
        """Start the process. Raises `ProgramError` if there is no such command."""
        self.timeout_s = timeout_s
        self.dialogue: list[str] = []
        """All lines since the last `start`: `> ` to the program, `< ` from it."""
        self._errors = TemporaryFile()  # noqa: SIM115  closed with the process
        self._lines: Queue[bytes] = Queue(maxsize=2)
        """What the program has printed. An empty line marks the end: even an empty line of a program has a newline."""
        self.is_silent = False
        """Whether the program has let the time for a reply go by."""
        self._shown = Shown()
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                bufsize=0,
                start_new_session=True,  # so that what it starts can be ended with it
            )
        except OSError as error:
            self._errors.close()
            raise ProgramError(f"{command[0]} cannot be started: {error.strerror}") from None
        self._reader = Thread(target=self._read, daemon=True)  # a thread, because Windows cannot wait for a pipe
        self._reader.start()

    def _read(self) -> None:
        """Put what the program prints into the queue, up to a line that is too long."""
        assert self._process.stdout is not None
        with BufferedReader(self._process.stdout) as lines:  # type: ignore[type-var]
            while line := lines.readline(LONGEST_REPLY + 1):
                self._lines.put(line)
                if len(line) > LONGEST_REPLY:
                    return
        self._lines.put(b"")

    def __enter__(self) -> "Piped":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        """End the process, and those that it has started."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._end()
        ends = time.monotonic() + PATIENCE_S  # only where there are no groups of processes can a pipe still be open
        while self._reader.is_alive() and time.monotonic() < ends:
            with suppress(Empty):
                self._lines.get(timeout=0.01)  # makes room for lines that were not asked for
        self._errors.close()

    def _end(self) -> int:
        """Kill the process if it does not end by itself, and those that it has started. Return its status."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(PATIENCE_S)
        self._process.kill()
        if os.name == "posix":
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
        return self._process.wait()

    def answer(self, message: Message) -> Message:
        """Send the message and return the reply. Raises `ProgramError` if there is none, or none that can be read."""
        line = json.dumps(message)
        if message["call"] == "start":
            self.dialogue.clear()
        self.dialogue.append(f"> {line}")
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line.encode() + b"\n")
        except OSError:  # it reads no more
            raise self._ended() from None
        text = self._next_line()
        self.dialogue.append(f"< {text}")
        try:
            reply: Message = strict_json.loads(text)
        except ValueError:
            raise ProgramError(f"the reply is not JSON: {_shortened(text)}") from None
        self._shown.check(reply, message["call"])
        return reply

    def _next_line(self) -> str:
        """Return the next line of the program's standard output."""
        try:
            line = self._lines.get(timeout=self.timeout_s)
        except Empty:
            self.is_silent = True
            message = f"no reply after {self.timeout_s:g} seconds; does it flush its standard output after each line?"
            raise ProgramError(message) from None
        if not line:
            raise self._ended()
        if len(line) > LONGEST_REPLY:
            raise ProgramError(f"the reply is longer than {LONGEST_REPLY:,} bytes; does it end its lines?")
        return line.decode(errors="replace").rstrip()

    def _ended(self) -> ProgramError:
        status = self._end()
        num_bytes = self._errors.seek(0, os.SEEK_END)
        self._errors.seek(max(num_bytes - 10_000, 0))
        said = self._errors.read().decode(errors="replace").strip().splitlines()[-5:]
        told = "".join(f"\n    {line}" for line in said)
        return ProgramError(f"the program has ended with status {status}{told}")

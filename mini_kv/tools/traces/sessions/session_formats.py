"""The supported formats of session files. The first lines of a file, or `--format`, determine its format."""

import os
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from mini_kv.tools.traces.readers.formats import MAX_LINE_BYTES
from mini_kv.tools.traces.readers.mooncake import TraceError, json_object, lines_of
from mini_kv.tools.traces.sessions.claude_code import ClaudeCodeReader
from mini_kv.tools.traces.sessions.codex import LINES, CodexReader
from mini_kv.tools.traces.sessions.session import Session

EXAMPLE = "example"
"""Read instead of a file: a made-up session that is part of the package."""
_BOM = b"\xef\xbb\xbf"
_NO_TURN = "the file has no answer of a model with token counts"


class _Reader(Protocol):
    """Collects the turns of a file."""

    def add(self, number: int, fields: dict[str, Any]) -> None:
        """Read a line. Raises `ValueError` with the problem."""

    def session(self) -> Session:
        """Return the turns."""


READERS: dict[str, Callable[[], _Reader]] = {"claude-code": ClaudeCodeReader, "codex": CodexReader}
"""By format."""


def read_session_file(path: str | os.PathLike[str], format_name: str | None = None) -> Session:
    """Return the session of a file, which may be compressed with gzip. "-" is standard input.

    The word "example" returns the example of the format. Raises `TraceError` and `OSError` as `read_trace` does.
    """
    if os.fspath(path) == EXAMPLE:
        path = example_path(format_name or "claude-code")
    return read_session(lines_of(path, MAX_LINE_BYTES), os.fspath(path), format_name)


def example_path(format_name: str) -> Path:
    """Return the file with the example of a format."""
    return Path(__file__).parents[1] / f"session-{format_name}.jsonl"


def read_session(lines: Iterable[bytes], name: str, format_name: str | None = None) -> Session:
    """Return the session in these lines.

    Args:
        lines: the lines of a file, with their ends.
        name: the name of the file, for errors.
        format_name: one of `READERS`. `None`: detected from the first lines.

    A last line without an end may be incomplete, because an agent may be writing the file. Then it is left out. So is
    a line that is not JSON, as after a crash, with a note. Raises `TraceError` for a line with a wrong member, and if
    there is no turn with counts.
    """
    reader = None if format_name is None else READERS[format_name]()
    number, notes = 0, []
    first_damaged: TraceError | None = None
    for number, raw in enumerate(lines, start=1):
        text = (raw.removeprefix(_BOM) if number == 1 else raw).strip()
        if not text:
            continue
        try:
            fields = _fields_of(text, len(raw), is_incomplete=not raw.endswith(b"\n"))
        except ValueError as error:
            first_damaged = first_damaged or TraceError(name, number, str(error))
            notes.append(f"line {number} is damaged and was left out")
            continue
        if fields is None:
            notes.append(f"line {number}, the last one, is incomplete and was left out")
            continue
        try:
            reader = reader or _reader_for(fields)
            if reader is not None:
                reader.add(number, fields)
        except ValueError as error:
            is_session = reader is not None
            raise (None if is_session else first_damaged) or TraceError(name, number, str(error)) from None
    session = None if reader is None else reader.session()
    if session is None or not session.turns:
        problem = "; ".join([_NO_TURN, *(session.notes if session else [])]) if number else "the file is empty"
        raise first_damaged or TraceError(name, max(number, 1), problem)
    return replace(session, notes=[*notes, *session.notes])


def _fields_of(text: bytes, length: int, *, is_incomplete: bool) -> dict[str, Any] | None:
    """Return the object in a line, or `None` if the line has no end and is not JSON. Raises `ValueError`."""
    if length > MAX_LINE_BYTES:
        raise ValueError(f"the line is longer than {MAX_LINE_BYTES:,} bytes")
    try:
        return json_object(text)
    except ValueError as error:
        if is_incomplete and text.startswith(b"{"):
            return None
        raise ValueError(_without_text(str(error))) from None


def _without_text(problem: str) -> str:
    """Return an error of JSON without what it quotes, which may be private."""
    if " has the key " in problem:
        return "not JSON that can be read: an object has a key twice"
    return problem.partition(", but ")[0]


def _reader_for(fields: dict[str, Any]) -> _Reader | None:
    """Return the reader that a line indicates, or `None` if another line must decide."""
    if isinstance(fields.get("payload"), dict) and fields.get("type") in LINES:
        return CodexReader()
    if "uuid" in fields and "sessionId" in fields:
        return ClaudeCodeReader()
    if isinstance(fields.get("id"), str) and ("instructions" in fields or "git" in fields):
        raise ValueError("an older format of Codex, which has no token counts")
    if isinstance(fields.get("type"), str):  # a title or a snapshot of files may come first
        return None
    raise ValueError(
        "not a line of a session file: Claude Code's have type and sessionId, Codex's have type and payload"
    )

"""The trace format of Mooncake: each request's arrival time and the blocks of its prompt, without any text.

A request is one line of JSON:

    {"timestamp": 27482, "input_length": 1300, "output_length": 52, "hash_ids": [46, 47, 2353]}

    timestamp       ms since the trace began
    input_length    tokens of the prompt
    output_length   tokens of the answer
    hash_ids        a number for each block of 512 tokens of the prompt; equal numbers mean equal content

Times may have fractions. Other projects' traces have blocks of another size: pass the size to `parse_request`.

    prompt          | 0 ......... 511 | 512 ...... 1023 | 1024 .. 1299 |
    hash_ids              46                47               2353        the last block may be partial

Source: the traces of the Mooncake paper (FAST'25), github.com/kvcache-ai/Mooncake, `FAST25-release/traces`.
"""

import codecs
import errno
import gzip
import io
import json
import os
import re
import shlex
import sys
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Protocol, TypeVar

from mini_kv.core import strict_json
from mini_kv.core.block import BlockHash
from mini_kv.tools.traces.readers.json_values import JsonError, is_over_lines, values_in

BLOCK_SIZE = 512
"""Tokens per block, fixed by the format."""
MAX_LINE_BYTES = 1 << 20
"""A line has a few bytes per block. This limit is enough for a prompt of 50 million tokens."""
NO_REQUEST = "the file has no line that is a request"
_SORT = "jq -cs 'sort_by(.timestamp)[]' FILE sorts them"
_MAX_NUMBER = 10**15
"""Largest time or length in a line: 10**15 ms are 30,000 years."""
_FIELDS = ("timestamp", "input_length", "output_length", "hash_ids")
_HARMLESS = ("session_id", "chat_id", "parent_chat_id", "type", "turn")
"""Fields that published traces also have. They do not change what a request finds."""
_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """One line of a trace."""

    timestamp: int
    """Arrival, in ms since the trace began."""
    input_length: int
    """Tokens of the prompt, at least 1."""
    output_length: int
    """Tokens of the answer."""
    hash_ids: tuple[int, ...]
    """A number for each block of the prompt, the partial last one included."""
    block_size: int = BLOCK_SIZE
    """Tokens per block. It is the same for all requests of a trace."""
    session_id: str = ""
    """The session that sent the request, in formats with sessions."""
    expected_pause: int | None = None
    """Time in ms to the session's next request, as expected from the way the answer ended, if the format says that."""

    @property
    def num_blocks(self) -> int:
        """Number of blocks of the prompt, the partial last one included."""
        return -(-self.input_length // self.block_size)

    @property
    def num_full_blocks(self) -> int:
        """Number of full blocks of the prompt. Only these can be cached."""
        return self.input_length // self.block_size


class TraceError(ValueError):
    """A line of a trace is not in the format."""

    def __init__(self, path: str, line: int, problem: str) -> None:
        super().__init__(f"{path}:{line}: {problem}")
        self.path = path
        self.line = line
        """Number of the first faulty line, counted from 1."""
        self.problem = problem


def read_trace(path: str | os.PathLike[str]) -> list[TraceRequest]:
    """Return the requests of a file, at least one, in its order.

    The file may be compressed with gzip, begin with a byte order mark, and have blank lines. "-" is standard input.
    The whole file is checked before anything is returned. Costs O(file) time and memory.

    Raises:
        TraceError: a line is longer than `MAX_LINE_BYTES`, not UTF-8, not JSON or not an object; lacks a field, or has
            one of a wrong type or out of range; does not have one id per block; is older than the line above; or the
            file has no line.
        OSError: the file cannot be read.
    """
    return read_lines(path, parse_request)


class _Arrives(Protocol):
    """The fields of every line of a trace."""

    @property
    def timestamp(self) -> int:
        """Arrival, in ms since the trace began."""


Line = TypeVar("Line", bound=_Arrives)


def read_lines(
    path: str | os.PathLike[str], parse: Callable[[bytes], Line | None], max_line_bytes: int = MAX_LINE_BYTES
) -> list[Line]:
    """Return the results of `parse` for all lines, at least one request. See `read_trace`.

    The items of a JSON array, and objects that are spread over lines, count as lines.

    `parse` returns `None` for a line that is not a request, and raises `ValueError` for a faulty request.
    """
    name = os.fspath(path)
    lines = lines_of(path, max_line_bytes)
    begin = list(_until_text(lines))
    has_values = bool(begin) and is_over_lines(begin[-1].removeprefix(codecs.BOM_UTF8))
    pieces = chain(begin, lines)
    numbered = values_in(pieces, max_line_bytes) if has_values else enumerate(pieces, start=1)
    trace: list[Line] = []
    item = line = 0
    try:
        for line, raw in numbered:
            item += 1
            if len(raw) > max_line_bytes:
                raise ValueError(f"the line is longer than {max_line_bytes:,} bytes: a trace has one request per line")
            if has_values and not raw.startswith(b"{"):
                raise ValueError(f"not a JSON object, but {quote(json.loads(raw))}")
            raw = (raw.removeprefix(codecs.BOM_UTF8) if line == 1 else raw).rstrip(b"\r\n")
            request = parse(raw) if raw.strip() else None
            if request is None:
                continue
            if trace and request.timestamp < trace[-1].timestamp:
                times = f"{request.timestamp}, before the {trace[-1].timestamp}"
                raise ValueError(f"timestamp is {times} of the line above: {_SORT}")
            trace.append(request)
    except TraceError:
        raise
    except JsonError as error:
        raise TraceError(name, error.line, str(error)) from None
    except ValueError as error:
        place = f"item {item}: " if has_values else ""
        raise TraceError(name, line, f"{place}{error}") from None
    if not trace:
        raise TraceError(name, max(line, 1), NO_REQUEST if begin else "the file is empty")
    return trace


def _until_text(lines: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the lines up to the first one that is not blank."""
    for raw in lines:
        yield raw
        if raw.removeprefix(codecs.BOM_UTF8).strip():
            return


def lines_of(path: str | os.PathLike[str], max_line_bytes: int) -> Iterator[bytes]:
    """Yield the lines of a file, or of standard input for "-", decompressed if they are compressed with gzip.

    The lines are bytes, because text mode does not report the line of a byte that is not UTF-8.
    """
    if "\0" in os.fspath(path):
        raise FileNotFoundError(errno.ENOENT, "no path has a NUL byte in it", os.fspath(path))
    with nullcontext(sys.stdin.buffer) if os.fspath(path) == "-" else Path(path).open("rb") as file:
        is_packed = isinstance(file, io.BufferedReader) and file.peek(2)[:2] == b"\x1f\x8b"
        lines = gzip.GzipFile(fileobj=file) if is_packed else file
        number = 0
        try:
            while raw := lines.readline(max_line_bytes + 1):
                number += 1
                yield raw
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise TraceError(os.fspath(path), number + 1, f"it cannot be unpacked: {error}") from None


def format_request(request: TraceRequest) -> str:
    """Return the request, of blocks of 512 tokens, as a line of a trace, without the line's end."""
    fields = asdict(request)
    del fields["block_size"], fields["session_id"], fields["expected_pause"]
    return json.dumps(fields)


def name_blocks(trace: Sequence[TraceRequest]) -> list[list[BlockHash]]:
    """Return the block hashes of each request's full blocks. A partial last block has none: it cannot be cached.

        hash_ids    7     8     9           2     8     9
        hashes      1 --- 2 --- 3           4 --- 5 --- 6       two blocks with the id 8, after two prefixes

    A hash covers an id and all ids before it, like a `BlockHash`: the KV of a block depends on all
    tokens up to its end. Published ids already have this property (in Mooncake's `synthetic_trace.jsonl` each of
    the 43,924 ids has one predecessor and one place in the prompt). There the hashes are the ids, renumbered.
    In a trace whose ids cover only the content of a block, equal ids after different prefixes get different
    hashes.

    Costs O(ids). Hashes from two calls cannot be compared.
    """
    chains = number_prefixes([request.hash_ids[: request.num_full_blocks] for request in trace])
    largest = max(map(max, filter(None, chains)), default=0)
    hashes = [BlockHash(number.to_bytes(8, "big")) for number in range(largest + 1)]
    return [list(map(hashes.__getitem__, chain)) for chain in chains]


def number_prefixes(chains: Sequence[Sequence[int]]) -> list[list[int]]:
    """Return a number for each id and all ids before it, equal for equal prefixes, from 1 on as they first occur.

    Costs O(ids). It is fastest if each id has one predecessor, as in published traces, because an id then determines
    its prefix.
    """
    before: dict[int, int | None] = {}
    for ids in chains:
        before.update(zip(ids, (None, *ids), strict=False))
    if all(list(map(before.__getitem__, ids)) == [None, *ids[:-1]] for ids in chains if ids):
        number_of = {hash_id: number for number, hash_id in enumerate(before, 1)}
        return [list(map(number_of.__getitem__, ids)) for ids in chains]
    numbers: dict[tuple[int, int], int] = {}
    result = []
    for ids in chains:
        parent, prefixes = 0, []
        for hash_id in ids:
            parent = numbers.setdefault((parent, hash_id), len(numbers) + 1)
            prefixes.append(parent)
        result.append(prefixes)
    return result


def parse_request(raw: bytes, block_size: int = BLOCK_SIZE) -> TraceRequest:
    """Return the request in one line. Raises `ValueError`, which names the fault."""
    return request_in(json_object(raw), block_size)


def request_in(fields: dict[str, Any], block_size: int) -> TraceRequest:
    """Return the request that these fields describe. Raises `ValueError`, which names the fault."""
    refuse_other_fields(fields, (*_FIELDS, *_HARMLESS))
    timestamp = milliseconds(fields)
    input_length = integer(fields, "input_length", minimum=1)
    output_length = integer(fields, "output_length", minimum=0)
    for name in ("input_length", "output_length"):
        if fields[name] > _MAX_NUMBER:
            raise ValueError(f"{name} is {quote(fields[name])}: it must be at most {_MAX_NUMBER:,}")
    request = TraceRequest(timestamp, input_length, output_length, _hash_ids(fields), block_size)
    if len(request.hash_ids) != request.num_blocks:
        message = f"hash_ids has {len(request.hash_ids)} ids, but a prompt of {input_length} tokens has "
        way_out = "--block-size says how many tokens an id stands for"
        raise ValueError(message + f"{request.num_blocks} blocks of {block_size}: {way_out}")
    return request


def milliseconds(fields: Mapping[str, Any]) -> int:
    """Return the timestamp, rounded to whole ms. Raises `ValueError` if it is missing, not a number or out of range."""
    if "timestamp" not in fields:
        raise ValueError("timestamp is missing")
    value = fields["timestamp"]
    if type(value) not in (int, float):
        raise ValueError(f"timestamp is {quote(value)}: it must be a number of milliseconds")
    if not 0 <= value <= _MAX_NUMBER:
        limit = "at least 0" if value < 0 else f"at most {_MAX_NUMBER:,}"
        raise ValueError(f"timestamp is {quote(value)}: it must be {limit}")
    rounded: int = round(value)
    return rounded


def json_object(raw: bytes) -> dict[str, Any]:
    """Return the JSON object in a line. Raises `ValueError` for any other content."""
    try:
        value = strict_json.loads(raw.decode("utf-8"))
    except UnicodeDecodeError as error:
        byte = raw[error.start]
        raise ValueError(f"not UTF-8: byte {error.start + 1} of the line is 0x{byte:02x}") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"the line is not JSON (column {error.colno}): {error.msg}") from None
    except ValueError as error:  # a key that stands there twice, an integer too long, lists too deep
        raise ValueError(f"not JSON that can be read: {error}") from None
    if not isinstance(value, dict):
        raise ValueError(f"not a JSON object, but {quote(value)}")
    return value


def refuse_other_fields(fields: Mapping[str, Any], known: Collection[str], place: str = "") -> None:
    """Raise `ValueError` with the names of the fields that are not known, and with the command that leaves them out.

    Args:
        fields: the fields of an object.
        known: the names of those that are read, and of those that cannot change the prompt or its time.
        place: the path of the object in its line, in the language of jq.
    """
    others = [name for name in fields if name not in known]
    if not others:
        return
    paths = [f"{place}.{name}" if _NAME.fullmatch(name) else f"{place or '.'}[{json.dumps(name)}]" for name in others]
    program = shlex.quote(f"del({', '.join(paths)})")
    raise ValueError(
        f"{', '.join(others)}: not read; if the prompt and its time do not depend on that, jq -c {program} FILE"
        " leaves it out"
    )


def integer(fields: Mapping[str, Any], name: str, minimum: int) -> int:
    """Return the integer of this name. Raises `ValueError` if it is missing, not an integer or too small."""
    if name not in fields:
        raise ValueError(f"{name} is missing")
    return checked_integer(fields[name], name, minimum)


def _hash_ids(fields: dict[str, Any]) -> tuple[int, ...]:
    if "hash_ids" not in fields:
        raise ValueError("hash_ids is missing")
    values = fields["hash_ids"]
    if not isinstance(values, list):
        raise ValueError(f"hash_ids is {quote(values)}: it must be a list")
    check_integers(values, "hash_ids")
    return tuple(values)


def check_integers(values: Sequence[Any], name: str) -> None:
    """Raise `ValueError` for the first value that is not an integer, or below 0."""
    if set(map(type, values)) <= {int} and min(values, default=0) >= 0:
        return  # to save time: a tenth of what the loop costs
    for index, value in enumerate(values):
        checked_integer(value, f"{name}[{index}]", 0)


def checked_integer(value: Any, name: str, minimum: int) -> int:
    """Return the value. Raises `ValueError` if it is not an integer, or too small."""
    # Not isinstance: Python counts true and false as integers.
    if type(value) is not int:
        raise ValueError(f"{name} is {quote(value)}: it must be an integer")
    if value < minimum:
        raise ValueError(f"{name} is {quote(value)}: it must be at least {minimum}")
    return value


def quote(value: Any) -> str:
    """Return the value as JSON again, cut to a length that fits into a line."""
    text = json.dumps(value)
    return text if len(text) <= 40 else text[:37] + "..."

"""The trace format of kv-cache-tester: sessions of coding agents, each with the times and blocks of its requests.

A session is one JSON object on one line. Its file has that line alone. Lines of several sessions are one trace:

    {"id": "trace_0001", "block_size": 64, "hash_id_scope": "local", "requests": [
        {"t": 0.0, "in": 150, "out": 86, "hash_ids": [1, 2]},
        {"t": 9.5, "type": "subagent", "requests": [{"t": 0.0, "in": 70, "out": 12, "hash_ids": [3]}]},
        {"t": 31.0, "in": 290, "out": 40, "hash_ids": [1, 2, 4, 5]}]}

    t               seconds since the session began; of a subagent's request, since the subagent began
    in, out         tokens of the prompt and of the answer
    hash_ids        a number for each full block of the prompt; a partial last block has none
    stop            why the answer ended: tool_use, so a tool runs now, or end_turn, so the user is next; optional
    hash_id_scope   local: a number has a meaning in its session only; global: in all sessions with this scope

All sessions begin at time 0, and their requests are ordered by time. Times of the recording are kept: a request is not
sent later because an answer took longer. Models are ignored: all requests go to one server, as in the tester. Other
fields than those in its documentation are refused.

Source: github.com/callanjfox/kv-cache-tester, `docs/trace_replay_tester.md` and `traces`.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count, islice
from typing import Any

from mini_kv.tools.traces.readers.mooncake import (
    TraceRequest,
    check_integers,
    integer,
    json_object,
    quote,
    refuse_other_fields,
)

_SESSION = (
    *("id", "models", "block_size", "hash_id_scope", "requests", "totals", "tool_tokens", "system_tokens"),
    *("t", "type", "agent_id", "subagent_type", "duration_ms", "total_tokens", "tool_use_count", "status"),
)
"""Fields of a session, and of a subagent in it."""
_REQUEST = (
    *("t", "type", "model", "in", "out", "hash_ids", "stop", "input_types", "output_types"),
    *("api_time", "think_time", "ttft"),
)
_MAX_SECONDS = 10**12
"""Largest time in a file: 30,000 years."""
_MAX_TOKENS = 10**15
_EXPECTED_PAUSES = {"tool_use": 17_000, "end_turn": 221_000}
"""Median times in ms from a request to the session's next one, by `stop`, in 710 of the published sessions."""
_OTHER_PAUSE = 18_000
"""The median of all."""


@dataclass(frozen=True, slots=True)
class Session:
    """The requests of one session, in order of time. Their last block has no id if it is partial."""

    requests: tuple[TraceRequest, ...]
    is_global: bool
    """Whether equal ids of another such session mean equal content."""
    timestamp: int = 0
    """Start in ms: every session begins at time 0."""


class SessionParser:
    """Parses lines with a session each. All have blocks of one size: the size given, or that of the first line."""

    def __init__(self, block_size: int | None = None) -> None:
        self._block_size = block_size

    def __call__(self, raw: bytes) -> Session:
        """Return the session in a line. Raises `ValueError`, which names the fault and its place."""
        fields = json_object(raw)
        block_size = integer(fields, "block_size", minimum=1)
        if self._block_size not in (None, block_size):
            raise ValueError(f"block_size is {block_size}, but {self._block_size} in --block-size or the first session")
        self._block_size = block_size
        return _session_in(fields, block_size)


def _session_in(fields: Mapping[str, Any], block_size: int) -> Session:
    """Return the session that these fields describe. Raises `ValueError`, which names the fault and its place."""
    refuse_other_fields(fields, _SESSION)
    scope = fields.get("hash_id_scope", "local")
    if scope not in ("local", "global"):
        raise ValueError(f"hash_id_scope is {quote(scope)}: it must be local or global")
    session_id = fields.get("id")
    if not isinstance(session_id, str):
        raise ValueError(f"id is {quote(session_id)}: it must be a string")
    requests = sorted(_requests_in(fields, "", 0.0, block_size), key=lambda request: request.timestamp)
    if not requests:
        raise ValueError("requests has no request")
    return Session(tuple(replace(request, session_id=session_id) for request in requests), scope == "global")


def _requests_in(fields: Mapping[str, Any], place: str, start: float, block_size: int) -> Iterator[TraceRequest]:
    """Yield the requests of a session, or of a subagent that began at `start` seconds."""
    entries = fields.get("requests")
    if not isinstance(entries, list):
        raise ValueError(f"{place}requests is {quote(entries)}: it must be a list")
    for index, entry in enumerate(entries):
        here = f"{place}requests[{index}]"
        if not isinstance(entry, dict):
            raise ValueError(f"{here} is {quote(entry)}: it must be an object")
        try:
            seconds = start + _seconds(entry)
            if "requests" in entry:
                refuse_other_fields(entry, _SESSION, ".requests[]")
            request = None if "requests" in entry else _request_in(entry, seconds, block_size)
        except ValueError as error:
            raise ValueError(f"{here}: {error}") from None
        if request is None:
            yield from _requests_in(entry, f"{here}.", seconds, block_size)
        else:
            yield request


def _seconds(entry: Mapping[str, Any]) -> float:
    value: Any = entry.get("t")
    if type(value) not in (int, float) or not 0 <= value <= _MAX_SECONDS:
        raise ValueError(f"t is {quote(value)}: it must be a number of seconds from 0 to {_MAX_SECONDS:,}")
    return float(value)


def _request_in(entry: Mapping[str, Any], seconds: float, block_size: int) -> TraceRequest:
    refuse_other_fields(entry, _REQUEST, ".requests[]")
    lengths = integer(entry, "in", minimum=1), integer(entry, "out", minimum=0)
    if max(lengths) > _MAX_TOKENS:
        raise ValueError(f"in and out are {lengths[0]} and {lengths[1]}: they must be at most {_MAX_TOKENS:,}")
    hash_ids = entry.get("hash_ids")
    if not isinstance(hash_ids, list):
        raise ValueError(f"hash_ids is {quote(hash_ids)}: it must be a list")
    check_integers(hash_ids, "hash_ids")
    pause = _EXPECTED_PAUSES.get(str(entry.get("stop")), _OTHER_PAUSE)
    request = TraceRequest(round(1000 * seconds), *lengths, tuple(hash_ids), block_size, expected_pause=pause)
    if len(hash_ids) != request.num_full_blocks:
        blocks = f"{request.num_full_blocks} full blocks of {block_size}"
        raise ValueError(f"hash_ids has {len(hash_ids)} ids, but a prompt of {lengths[0]} tokens has {blocks}")
    return request


def interleave(sessions: Sequence[Session]) -> list[TraceRequest]:
    """Return the requests of all sessions by time, with one number per block, partial last blocks included.

    Ids are renumbered, so that those of two sessions with local scope are never equal. Costs O(ids).
    """
    numbers = count()
    shared = defaultdict[int, int](numbers.__next__)
    trace: list[TraceRequest] = []
    for session in sessions:
        known = shared if session.is_global else defaultdict[int, int](numbers.__next__)
        for request in session.requests:
            hash_ids = tuple(map(known.__getitem__, request.hash_ids))
            partial = tuple(islice(numbers, request.num_blocks - len(hash_ids)))
            trace.append(replace(request, hash_ids=hash_ids + partial))
    return sorted(trace, key=lambda request: request.timestamp)

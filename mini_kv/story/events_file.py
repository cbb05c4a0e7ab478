"""Recorded calls as JSON lines: the pool in the first line, then one line per call with its edges.

{"version": 1, "num_blocks": 10, "block_size": 4, "enable_caching": true}
{"call": "allocate_slots", "request_id": "A", ..., "edges": [["allocated", 1, 1, null], ...]}
"""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from mini_kv.core.kv_cache_manager import KVCacheManager
from mini_kv.story.edge import Edge, EdgeKind
from mini_kv.story.traced_manager import Span

VERSION = 1


class EventsError(ValueError):
    """A line of a file of events is not in the right format. The message gives its number."""


@dataclass(frozen=True, slots=True)
class EventsHeader:
    """The pool on which the calls were recorded."""

    num_blocks: int
    block_size: int
    enable_caching: bool

    @classmethod
    def of(cls, kv: KVCacheManager) -> "EventsHeader":
        """Return the header for calls of this manager."""
        return cls(kv.kv_cache_config.num_blocks, kv.block_size, kv.enable_caching)


def dump_events(header: EventsHeader, spans: Iterable[Span]) -> str:
    """Return the calls as text, one JSON object per line. Fields that a span does not have are left out."""
    lines = [json.dumps({"version": VERSION, **asdict(header)})]
    for span in spans:
        values = {name: value for name, value in asdict(span).items() if value is not None}
        for name in ("args", "edges"):
            if not values[name]:
                del values[name]
        lines.append(json.dumps(values))
    return "\n".join(lines) + "\n"


def load_events(text: str) -> tuple[EventsHeader, list[Span]]:
    """Return header and spans. Raises `EventsError` with the number of the first invalid line."""
    header, spans = None, []
    for number, line in enumerate(text.splitlines(), start=1):
        try:
            values = json.loads(line)
            if number == 1:
                header = _header(values)
            else:
                spans.append(_span(values))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            what = f"invalid JSON ({error.msg})" if isinstance(error, json.JSONDecodeError) else repr(error)
            raise EventsError(f"line {number}: {what} in {line[:80]!r}") from error
    if header is None:
        raise EventsError("line 1: the file is empty, the header is missing")
    return header, spans


def _header(values: dict[str, Any]) -> EventsHeader:
    version = values.pop("version", None)
    if version != VERSION:
        raise ValueError(f"version is {version}, this reads version {VERSION}")
    return EventsHeader(**values)


def _span(values: dict[str, Any]) -> Span:
    edges = [
        Edge(EdgeKind(kind), block_id, ref_cnt, block_hash)
        for kind, block_id, ref_cnt, block_hash in values.pop("edges", [])
    ]
    return Span(edges=edges, **values)

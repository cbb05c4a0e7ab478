"""Traces of tokens: a line per request, with the prompt itself, so that blocks may have any size.

    {"timestamp": 27482, "token_ids": [3, 17, 99], "output_length": 52, "cache_salt": "a", "lora_name": "chat",
     "images": [[0, 2, "digest"]]}

Only `token_ids` must be there. `images`: first token, number of tokens, and a digest of the content, per image.
"""

import os
from collections.abc import Callable
from typing import Any

from mini_kv.traces.mooncake import (
    TraceRequest,
    checked_integer,
    integer,
    json_object,
    parse_request,
    quote,
    read_lines,
)
from mini_kv.traces.prompts import Trace
from mini_kv.traces.token_request import TokenRequest

MAX_TOKEN = 2**32 - 1


def read_requests(path: str | os.PathLike[str]) -> Trace:
    """Return the requests of a file, whose first line says of which kind it is: hashes (Mooncake), or tokens.

    Raises `TraceError` and `OSError` as `read_trace` does.
    """
    requests = read_lines(path, _EitherKind())
    tokens = [request for request in requests if isinstance(request, TokenRequest)]
    return tokens or [request for request in requests if isinstance(request, TraceRequest)]


class _EitherKind:
    """Parses all lines as what the first one is."""

    def __init__(self) -> None:
        self._parse_line: Callable[[bytes], TokenRequest | TraceRequest] | None = None

    def __call__(self, raw: bytes) -> TokenRequest | TraceRequest:
        """Return the request in one line; raises `ValueError`, saying what is wrong."""
        if self._parse_line is None:
            self._parse_line = _parse if b'"token_ids"' in raw else parse_request
        return self._parse_line(raw)


def _parse(raw: bytes) -> TokenRequest:
    """Return the request in one line; raises `ValueError`, saying what is wrong."""
    fields = json_object(raw)
    token_ids = fields.get("token_ids")
    if not isinstance(token_ids, list) or not token_ids:
        raise ValueError(f"token_ids is {quote(token_ids)}: it must be a list of at least one token")
    for index, token in enumerate(token_ids):
        if checked_integer(token, f"token_ids[{index}]", 0) > MAX_TOKEN:
            raise ValueError(f"token_ids[{index}] is {token}: it must be at most {MAX_TOKEN:,}")
    return TokenRequest(
        integer(fields, "timestamp", minimum=0) if "timestamp" in fields else 0,
        tuple(token_ids),
        integer(fields, "output_length", minimum=0) if "output_length" in fields else 1,
        _text(fields, "cache_salt"),
        _text(fields, "lora_name"),
        tuple(_image(value, index, len(token_ids)) for index, value in enumerate(fields.get("images", []))),
    )


def _text(fields: dict[str, Any], name: str) -> str | None:
    value = fields.get(name)
    if value is not None and (not isinstance(value, str) or not value):
        raise ValueError(f"{name} is {quote(value)}: it must be a text, or absent")
    return value


def _image(value: Any, index: int, num_tokens: int) -> tuple[int, int, str]:
    if not isinstance(value, list) or len(value) != 3 or not isinstance(value[2], str):
        raise ValueError(f"images[{index}] is {quote(value)}: it must be [first token, number of tokens, digest]")
    first = checked_integer(value[0], f"images[{index}][0]", 0)
    length = checked_integer(value[1], f"images[{index}][1]", 1)
    if first + length > num_tokens:
        raise ValueError(f"images[{index}] ends behind the last of {num_tokens} tokens")
    return first, length, value[2]

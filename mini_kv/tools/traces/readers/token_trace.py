"""Traces of tokens: a line per request, with the prompt itself, so that blocks may have any size.

    {"timestamp": 27482, "token_ids": [3, 17, 99], "output_length": 52, "cache_salt": "a", "lora_name": "chat",
     "images": [[0, 2, "digest"]]}

Only `token_ids` is required. `images`: first token, number of tokens, and a digest of the content, per image.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mini_kv.tools.traces.readers.mooncake import (
    check_integers,
    checked_integer,
    integer,
    json_object,
    milliseconds,
    quote,
    refuse_other_fields,
)

FIELDS = ("timestamp", "output_length", "cache_salt", "lora_name", "images")
"""The fields of a request besides its prompt."""
_MAX_TOKEN = 2**32 - 1


@dataclass(frozen=True, slots=True)
class TokenRequest:
    """A request whose tokens are known, so that it can be split into blocks of any size.

    Fields that `TraceRequest` also has have the same meaning.
    """

    timestamp: int
    """Arrival, in ms since the trace began."""
    token_ids: tuple[int, ...]
    """The prompt, at least 1 token."""
    output_length: int
    """Tokens of the answer."""
    cache_salt: str | None = None
    """Requests with different salts share no block (vLLM `Request.cache_salt`)."""
    lora_name: str | None = None
    """The adapter. Requests with different adapters share no block."""
    images: tuple[tuple[int, int, str], ...] = ()
    """Per image the position of its first token, its number of tokens, and the digest of its content."""
    texts: tuple[str, ...] = ()
    """The texts of the tokens, one per message, if the file has them. Used only for explanations."""

    @property
    def input_length(self) -> int:
        """Tokens of the prompt."""
        return len(self.token_ids)


def parse_tokens(raw: bytes) -> TokenRequest:
    """Return the request in one line. Raises `ValueError`, which names the fault."""
    fields = json_object(raw)
    refuse_other_fields(fields, ("token_ids", *FIELDS))
    token_ids = fields.get("token_ids")
    if not isinstance(token_ids, list) or not token_ids:
        raise ValueError(f"token_ids is {quote(token_ids)}: it must be a list of at least one token")
    return request_of(fields, checked_tokens(token_ids, "token_ids"))


def checked_tokens(values: Sequence[Any], name: str) -> Sequence[int]:
    """Return the values. Raises `ValueError` if one is not a token id."""
    check_integers(values, name)
    if max(values, default=0) > _MAX_TOKEN:
        index, token = next((index, token) for index, token in enumerate(values) if token > _MAX_TOKEN)
        raise ValueError(f"{name}[{index}] is {token}: it must be at most {_MAX_TOKEN:,}")
    return values


def request_of(fields: Mapping[str, Any], token_ids: Sequence[int]) -> TokenRequest:
    """Return the request with these tokens and the other fields. Raises `ValueError`, which names the fault."""
    if not token_ids:
        raise ValueError("the prompt has no tokens")
    return TokenRequest(
        milliseconds(fields) if "timestamp" in fields else 0,
        tuple(token_ids),
        integer(fields, "output_length", minimum=0) if "output_length" in fields else 1,
        _text(fields, "cache_salt"),
        _text(fields, "lora_name"),
        tuple(_image(value, index, len(token_ids)) for index, value in enumerate(fields.get("images", []))),
    )


def _text(fields: Mapping[str, Any], name: str) -> str | None:
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

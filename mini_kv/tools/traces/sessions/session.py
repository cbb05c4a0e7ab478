"""A session of a coding agent: its turns in order, each with the texts of its prompt and the provider's counts."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from hashlib import sha256
from typing import Any, NamedTuple


class Kind(StrEnum):
    """The kinds of parts. The words are printed."""

    SYSTEM = "system prompt"
    TOOL = "tool"
    USER = "user"
    RESULT = "tool result"
    ANSWER = "answer"
    THINKING = "thinking"
    CALL = "tool call"


DEFAULT_TTL = 300
"""Seconds that an entry of a provider's cache lives, if the file does not say it."""
_IMAGES = ("image", "document", "input_image", "input_file")
_SHAPES: dict[type, str] = {
    dict: "an object",
    list: "a list",
    str: "a text",
    bool: "true or false",
    int: "an integer",
}
_MOST_TOKENS = 10_000_000
"""A larger count is an error. No model has a longer prompt, and its blocks would need gigabytes."""


class Part(NamedTuple):
    """A text of a prompt, such as a tool's result. The text is never printed unless the reader of the file asks."""

    kind: str
    text: str


@dataclass(slots=True)
class Turn:
    """One call of the model."""

    line: int
    """Line of the file where the answer, or its count, begins."""
    conversation: int
    """Index into `Session.conversations`."""
    started: int
    """Time of the last input before the answer, in ms since 1970."""
    model: str
    parts: Sequence[Part]
    """The texts of the prompt, as far as the file has them."""
    compaction: int = 0
    """Line of the last compaction in this history. 0: there was none."""
    cleared: tuple[int, int] = (0, 0)
    """Line of the last removal of old tool results in this history, and the tokens that the provider removed."""
    num_tokens: int = 0
    """Tokens of the prompt, as the provider counted them."""
    num_cached: int = 0
    """Tokens that the provider read from its cache."""
    num_written: int | None = None
    """Tokens that the provider wrote to its cache. `None`: the file does not say."""
    num_output: int = 0
    ttl: int = DEFAULT_TTL
    """Seconds that the entries live which this turn wrote."""
    reason: str = ""
    """Why the provider did not find an entry, in its own word, such as system_changed. Empty: it does not say."""


@dataclass(frozen=True, slots=True)
class Session:
    """The turns of a file, in its order."""

    format_name: str
    turns: Sequence[Turn]
    conversations: Sequence[str]
    """The names of the conversations: `main`, and one for each subagent."""
    notes: Sequence[str]
    """What was left out."""

    @property
    def has_cached(self) -> bool:
        """Whether the provider counted a token of a cache. Some servers between agent and provider leave this out."""
        return any(turn.num_cached for turn in self.turns)


def milliseconds_of(fields: dict[str, Any]) -> int:
    """Return the line's timestamp in ms since 1970. Raises `ValueError` if it is missing or not a time."""
    value = fields.get("timestamp")
    try:
        if not isinstance(value, str):
            raise ValueError
        return round(1000 * datetime.fromisoformat(value).timestamp())
    except (ValueError, OverflowError, OSError):
        raise ValueError("timestamp must be a time such as 2026-01-31T17:04:00.000Z") from None


def as_text(content: Any) -> str:
    """Return the text of a message's content. An image is replaced by its digest: its length says nothing of tokens."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "\n".join(map(as_text, content))
    if isinstance(content, dict):
        if isinstance(content.get("text"), str):
            return str(content["text"])
        if content.get("type") in _IMAGES:
            return f"image {sha256(json.dumps(content).encode()).hexdigest()}"
    return json.dumps(content, ensure_ascii=False)


def member(fields: dict[str, Any], name: str, kind: type) -> Any:
    """Return the member of this name, or `None` if there is none. Raises `ValueError` if it has another type."""
    value = fields.get(name)
    if value is not None and type(value) is not kind:  # the value itself may be private
        raise ValueError(f"{name} is {_shape(type(value))}: it must be {_shape(kind)}")
    return value


def count_of(fields: dict[str, Any], name: str) -> int:
    """Return the count of this name, 0 if there is none. Raises `ValueError` if it is not a count of tokens."""
    value: int = member(fields, name, int) or 0
    if not 0 <= value <= _MOST_TOKENS:
        raise ValueError(f"{name} must be from 0 to {_MOST_TOKENS:,}")
    return value


def _shape(kind: type) -> str:
    """Return a type in JSON's words."""
    return _SHAPES.get(kind, "a number")

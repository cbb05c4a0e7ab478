"""Public chat sets: whole conversations, of which each answer was a request.

    {"id": "a_0", "conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello"}]}
    {"conversation_id": "b", "model": "vicuna-13b", "conversation": [{"role": "user", "content": "Hi"}, ...]}

    user: Hi              request 1: user
    assistant: Hello
    user: And now?        request 2: user, assistant, user
    assistant: Bye

A prompt is a chat of all messages before an answer (see `chats`). The answer's tokens are its length. These sets have
no times. So all requests are at time 0, and one conversation comes after another: a bounded cache finds more here than
among users who write at the same time. A conversation without an answer is left out. A second model is refused, as in
`texts`.

Sources: the data set that `vllm bench serve --dataset-name sharegpt` reads (ShareGPT_V3_unfiltered_cleaned_split.json;
it sends the first message alone), huggingface.co/datasets: lmsys/lmsys-chat-1m, allenai/WildChat.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from mini_kv.core.errors import ConfigError
from mini_kv.tools.traces.readers.chats import read_chat
from mini_kv.tools.traces.readers.mooncake import json_object, quote, refuse_other_fields
from mini_kv.tools.traces.readers.texts import NO_ENCODER, Encoder, check_model
from mini_kv.tools.traces.readers.token_trace import TokenRequest

_NAMES = ("conversations", "conversation")
_KNOWN = (
    *(*_NAMES, "id", "conversation_id", "conversation_hash", "model", "turn", "language", "redacted", "toxic"),
    *("openai_moderation", "detoxify_moderation", "hashed_ip", "header", "state", "country", "source", "markdown"),
)
_ROLES = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "bing": "assistant",
    "bard": "assistant",
    "assistant": "assistant",
    "system": "system",
}
"""The speakers of these sets, and their roles in a chat."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """The requests of a conversation."""

    requests: tuple[TokenRequest, ...]
    timestamp: int = 0


def conversation_parser(encoder: Encoder | None) -> Callable[[bytes], Conversation | None]:
    """Return a parser of lines. Raises `ConfigError` if there is no encoder."""
    if encoder is None:
        raise ConfigError(NO_ENCODER)
    first: dict[str, object] = {}

    def parse(raw: bytes) -> Conversation | None:
        fields = json_object(raw)
        refuse_other_fields(fields, _KNOWN)
        model = fields.get("model")
        check_model(model, first.setdefault("model", model), "")
        name = next((name for name in _NAMES if name in fields), _NAMES[0])
        entries = fields.get(name)
        if not isinstance(entries, list):
            raise ValueError(f"{name} is {quote(entries)}: it must be a list")
        messages = [_message(entry, f"{name}[{index}]") for index, entry in enumerate(entries)]
        requests = [
            TokenRequest(
                0,
                tuple(encoder.encode_chat(read_chat({"messages": messages[:index]}))),
                len(encoder.encode(message["content"], add_special_tokens=False)),
            )
            for index, message in enumerate(messages)
            if message["role"] == "assistant" and index > 0
        ]
        return Conversation(tuple(requests)) if requests else None

    return parse


def _message(entry: Any, name: str) -> dict[str, Any]:
    """Return a message of a chat. Raises `ValueError` with the name of what it lacks."""
    fields: Mapping[str, Any] = entry if isinstance(entry, dict) else {}
    speaker, text = fields.get("from", fields.get("role")), fields.get("value", fields.get("content"))
    if not isinstance(speaker, str) or speaker not in _ROLES:
        raise ValueError(f"{name} is by {quote(speaker)}: it must be one of {', '.join(_ROLES)}")
    if not isinstance(text, str):
        raise ValueError(f"{name} is {quote(text)}: it must be a text")
    return {"role": _ROLES[speaker], "content": text}

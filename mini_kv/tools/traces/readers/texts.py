"""Traces of texts: a line per request, with the prompt as text or as the messages of a chat.

    {"prompt": "the cache", "timestamp": 27482, "output_length": 52}
    {"messages": [{"role": "user", "content": "the cache"}], "tools": [...], "cache_salt": "a"}
    {"custom_id": "7", "method": "POST", "url": "/v1/chat/completions", "body": {"messages": [...]}}

The first field is required. For the other fields see `token_trace`, and for a chat `chats`. The third form is that of
the batch files of OpenAI's service and `vllm run-batch`.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from mini_kv.core.errors import ConfigError
from mini_kv.tools.traces.readers.chats import Chat, flag, read_chat, refuse_unread
from mini_kv.tools.traces.readers.mooncake import json_object, quote
from mini_kv.tools.traces.readers.token_trace import TokenRequest, request_of


class Encoder(Protocol):
    """Converts prompts to tokens: `PromptTokenizer`, or another class."""

    def encode(self, text: str, *, add_special_tokens: bool = True) -> Sequence[int]:
        """Return the tokens of a prompt of text, by default with those that the model expects around it."""

    def encode_chat(self, chat: Chat) -> Sequence[int]:
        """Return the tokens of a chat up to the beginning of the answer."""


def text_parser(encoder: Encoder | None) -> Callable[[bytes], TokenRequest]:
    """Return a parser of lines. Raises `ConfigError` if there is no encoder."""
    if encoder is None:
        raise ConfigError("its prompts are texts, and a replay needs tokens: give --tokenizer tokenizer.json")

    def parse(raw: bytes) -> TokenRequest:
        fields = json_object(raw)
        if isinstance(fields.get("body"), dict):
            fields = fields["body"]
        return request_of(fields, _encode(fields, encoder))

    return parse


def _encode(fields: Mapping[str, Any], encoder: Encoder) -> Sequence[int]:
    """Return the tokens of a prompt. Raises `ValueError` with the error."""
    if "messages" in fields:
        return encoder.encode_chat(read_chat(fields))
    refuse_unread(fields)
    prompt = fields.get("prompt")
    if not isinstance(prompt, str):
        raise ValueError(f"prompt is {quote(prompt)}: it must be a text, or else there are messages")
    return encoder.encode(prompt, add_special_tokens=flag(fields, "add_special_tokens", default=True))

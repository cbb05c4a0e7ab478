"""Traces of texts: a line per request, with the prompt as text or as the messages of a chat.

    {"prompt": "the cache", "timestamp": 27482, "output_length": 52}
    {"messages": [{"role": "user", "content": "the cache"}], "tools": [], "cache_salt": "a"}
    {"custom_id": "7", "method": "POST", "url": "/v1/chat/completions", "body": {"messages": [...]}}

The first field is needed; what else a line may have is said in `token_trace`. The third form is a batch file's, as
OpenAI's service and `vllm run-batch` take it.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from mini_kv.core.errors import ConfigError
from mini_kv.traces.mooncake import json_object, quote
from mini_kv.traces.token_request import TokenRequest
from mini_kv.traces.token_trace import request_of


class Encoder(Protocol):
    """Makes tokens of prompts: `PromptTokenizer`, or another's."""

    def encode(self, text: str, *, add_special_tokens: bool = True) -> Sequence[int]:
        """Return the tokens of a prompt of text, by default with those that the model expects around it."""

    def encode_chat(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Any] | None) -> Sequence[int]:
        """Return the tokens of a chat up to where the answer begins."""


def text_parser(encoder: Encoder | None) -> Callable[[bytes], TokenRequest]:
    """Return what parses a line; raises `ConfigError` if there is no encoder."""
    if encoder is None:
        raise ConfigError("its prompts are texts, and a cache is asked for tokens: say --tokenizer tokenizer.json")

    def parse(raw: bytes) -> TokenRequest:
        fields = json_object(raw)
        if isinstance(fields.get("body"), dict):
            fields = fields["body"]
        return request_of(fields, _encode(fields, encoder))

    return parse


def _encode(fields: Mapping[str, Any], encoder: Encoder) -> Sequence[int]:
    """Return the tokens of a prompt; raises `ValueError`, saying what is wrong with it."""
    if "messages" in fields:
        tools = fields.get("tools")
        if tools is not None and not isinstance(tools, list):
            raise ValueError(f"tools is {quote(tools)}: it must be a list")
        return encoder.encode_chat(_messages(fields["messages"]), tools or None)
    prompt = fields.get("prompt")
    if not isinstance(prompt, str):
        raise ValueError(f"prompt is {quote(prompt)}: it must be a text, or else there are messages")
    return encoder.encode(prompt)


def _messages(values: Any) -> list[dict[str, Any]]:
    if not isinstance(values, list) or not values:
        raise ValueError(f"messages is {quote(values)}: it must be a list of at least one message")
    messages = []
    for index, value in enumerate(values):
        if not isinstance(value, dict) or not isinstance(value.get("role"), str):
            raise ValueError(f"messages[{index}] is {quote(value)}: it must be an object with a role")
        message = dict(value)
        if "content" in message:
            message["content"] = _content(message["content"], f"messages[{index}].content")
        if isinstance(message.get("tool_calls"), list):
            message["tool_calls"] = [_tool_call(call) for call in message["tool_calls"]]
        messages.append(message)
    return messages


def _content(content: Any, name: str) -> str | None:
    """Return what a message says; its parts of text as vLLM joins them, line by line."""
    if content is None or isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise ValueError(f"{name} is {quote(content)}: it must be a text, or a list of parts")
    texts = []
    for index, part in enumerate(content):
        if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            problem = "only texts can be read, of images their tokens are not known"
            raise ValueError(f"{name}[{index}] is {quote(part)}: {problem}")
        texts.append(part["text"])
    return "\n".join(texts)


def _tool_call(call: Any) -> Any:
    """Return a call with its arguments as an object, which templates expect; in a message they are JSON in a text."""
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("arguments"), str):
        return call
    try:
        arguments = json.loads(function["arguments"] or "{}")
    except ValueError:
        return call  # a model may have written what is no JSON; the template gets it as it is
    return {**call, "function": {**function, "arguments": arguments}}

"""The requests of clients, read from JSON field by field. An error names its field.

Names and limits are OpenAI's, with vLLM's additions (`top_k`, `min_p`, `ignore_eos`, `cache_salt`). An unsupported
field is accepted if its value is neutral. An unknown field is refused, because it may be misspelt. The answer
would then ignore the client's intention. Only labels of the client are accepted without an effect.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from reprlib import repr as shown
from typing import Any

from mini_kv.core import strict_json
from mini_kv.core.errors import ConfigError
from mini_kv.engine.prompt_tokens import Prompt
from mini_kv.engine.sampling import SamplingParams

MOST_PROMPTS, MOST_CHOICES, MOST_LOGPROBS = 64, 64, 20
MOST_STOPS, LONGEST_STOP, LONGEST_SALT = 16, 256, 256
LARGEST = 2**31 - 1

NOT_HERE: dict[str, tuple[Any, ...]] = {
    "best_of": (None, 1),
    "echo": (None, False),
    "frequency_penalty": (None, 0),
    "functions": (None, []),
    "length_penalty": (None, 1),
    "logit_bias": (None, {}),
    "parallel_tool_calls": (None, False, True),
    "presence_penalty": (None, 0),
    "prompt_logprobs": (None,),
    "repetition_penalty": (None, 1),
    "request_id": (None,),
    "response_format": (None, {"type": "text"}),
    "service_tier": (None, "auto", "default"),
    "skip_special_tokens": (None, True),
    "spaces_between_special_tokens": (None, False, True),
    "store": (None, False),
    "suffix": (None, ""),
    "tool_choice": (None, "none"),
    "tools": (None, []),
    "use_beam_search": (None, False),
}
"""Unsupported fields, each with its neutral values."""

LABELS = {"metadata", "prompt_cache_key", "safety_identifier", "user"}
"""Accepted fields that name the client or its conversation. They ask for nothing that an answer could have."""


class RequestError(Exception):
    """A refused request, in OpenAI's form: a status, a message, the field at fault."""

    def __init__(
        self,
        message: str,
        param: str | None = None,
        *,
        status: int = 400,
        code: str | None = None,
        retry_after: int | None = None,
    ) -> None:
        super().__init__(message)
        self.message, self.param, self.status, self.code, self.retry_after = message, param, status, code, retry_after

    @property
    def body(self) -> dict[str, Any]:
        """The JSON of the error answer."""
        kinds = {401: "authentication_error", 429: "rate_limit_error", 404: "not_found_error"}
        kind = kinds.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}


@dataclass(frozen=True, slots=True)
class Ask:
    """One parsed request for texts."""

    model: str | None
    prompts: list[Prompt]
    """Texts or token ids. Empty for a chat."""
    messages: list[dict[str, Any]]
    """The messages of a chat. Empty for a completion."""
    fields: dict[str, Any]
    """The arguments of `SamplingParams`, except `max_tokens`."""
    max_tokens: int | None
    """`None`: as many as fit."""
    n: int
    stream: bool
    include_usage: bool
    cache_salt: str | None

    def params(self, room: int) -> SamplingParams:
        """Return the parameters for a prompt. `room`: tokens that fit after it. Raises `RequestError`."""
        try:
            return SamplingParams(max_tokens=room if self.max_tokens is None else self.max_tokens, **self.fields)
        except ConfigError as error:  # its sentence begins with the name of the field
            raise RequestError(str(error), str(error).split(maxsplit=1)[0]) from None


class Fields:
    """The fields of a request. Each read removes one, so unknown fields remain."""

    def __init__(self, data: Mapping[str, Any]) -> None:
        self._left = dict(data)

    def take(self, name: str) -> Any:
        """Remove a field and return its value, or `None` if it is missing."""
        return self._left.pop(name, None)

    def flag(self, name: str) -> bool:
        """Return a Boolean field."""
        value = self.take(name)
        if not isinstance(value, bool | None):
            raise RequestError(f"{name} is {shown(value)}, it must be true or false", name)
        return bool(value)

    def whole(self, name: str, least: int, most: int = LARGEST) -> int | None:
        """Return a whole number within bounds, or `None`."""
        value = self.take(name)
        if value is None:
            return None
        if type(value) is not int or not least <= value <= most:
            raise RequestError(f"{name} is {shown(value)}, it must be a whole number from {least} to {most}", name)
        return value

    def number(self, name: str) -> float | None:
        """Return a number, or `None`."""
        value = self.take(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(_as_float(value)):
            raise RequestError(f"{name} is {shown(value)}, it must be a number", name)
        return float(value)

    def text(self, name: str, longest: int) -> str | None:
        """Return a text that is not empty, or `None`."""
        value = self.take(name)
        if value is None:
            return None
        if not isinstance(value, str) or not 0 < len(value) <= longest:
            raise RequestError(f"{name} is {shown(value)}, it must be a text of 1 to {longest} characters", name)
        return value

    def items(self, name: str, kind: type, most: int) -> list[Any]:
        """Return a list of items of this kind. A single item becomes a list of one."""
        value = self.take(name)
        found = [] if value is None else [value] if isinstance(value, kind) else value
        if not isinstance(found, list) or len(found) > most or not all(type(item) is kind for item in found):
            raise RequestError(f"{name} is {shown(value)}, it must be a list of up to {most} {kind.__name__}", name)
        return found

    def check_rest(self, within: str = "") -> None:
        """Raise `RequestError` for an unknown field, and for an unsupported one with a value that is not neutral."""
        for name, value in self._left.items():
            if name in LABELS or (name in NOT_HERE and value in NOT_HERE[name]):
                continue
            if name in NOT_HERE:
                raise RequestError(f"{name} is {shown(value)}, but this engine does not support {name}: omit it", name)
            raise RequestError(f"there is no field {shown(within + name)}", within + name, code="unknown_parameter")


def _as_float(value: float) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf


def read_json(body: bytes) -> Fields:
    """Return the fields of a body. Raises `RequestError` if it is not a JSON object, or if a text in it is not Unicode.

    JSON can write one half of a character that takes two (a lone surrogate). No answer could repeat it.
    """
    try:
        data = strict_json.loads(body.decode())
    except ValueError as error:
        raise RequestError(f"the body is not JSON: {error}") from None
    if not isinstance(data, dict):
        raise RequestError(f"the body is {shown(data)}, it must be a JSON object")
    for name, value in data.items():
        try:
            json.dumps([name, value], ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            half = ascii(error.object[error.start])
            raise RequestError(f"{name!a} has {half}, which is half of a character", ascii(name)[1:-1]) from None
    return Fields(data)


def read_completion(fields: Fields) -> Ask:
    """Return the request in a body of /v1/completions. Raises `RequestError`."""
    prompts = _prompts(fields.take("prompt"))
    max_tokens = fields.whole("max_tokens", 1)
    logprobs = fields.whole("logprobs", 0, MOST_LOGPROBS)
    return _ask(fields, prompts, [], 16 if max_tokens is None else max_tokens, logprobs)


def read_chat(fields: Fields) -> Ask:
    """Return the request in a body of /v1/chat/completions. Raises `RequestError`."""
    messages = [_message(index, each) for index, each in enumerate(fields.items("messages", dict, 1000))]
    if not messages:
        raise RequestError("messages is empty, it must have at least one message", "messages")
    older, newer = fields.whole("max_tokens", 1), fields.whole("max_completion_tokens", 1)
    if None not in (older, newer) and older != newer:
        raise RequestError(f"max_tokens is {older}, but max_completion_tokens is {newer}: give one", "max_tokens")
    wanted, num_top = fields.flag("logprobs"), fields.whole("top_logprobs", 0, MOST_LOGPROBS)
    if num_top is not None and not wanted:
        raise RequestError("top_logprobs needs logprobs: true", "top_logprobs")
    return _ask(fields, [], messages, older if newer is None else newer, (num_top or 0) if wanted else None)


def _ask(
    fields: Fields,
    prompts: list[Prompt],
    messages: list[dict[str, Any]],
    max_tokens: int | None,
    logprobs: int | None,
) -> Ask:
    """Return the request, with the fields that chats and completions share."""
    stops = fields.items("stop", str, MOST_STOPS)
    if any(len(stop) > LONGEST_STOP for stop in stops):
        raise RequestError(f"a text in stop is longer than {LONGEST_STOP} characters", "stop")
    top_k = fields.whole("top_k", -1)
    asked = {
        "temperature": fields.number("temperature"),
        "top_p": fields.number("top_p"),
        "min_p": fields.number("min_p"),
        "top_k": None if top_k is None else max(top_k, 0),
        "seed": fields.whole("seed", -(2**63), 2**63 - 1),
        "min_tokens": fields.whole("min_tokens", 0),
        "stop": tuple(stops),
        "stop_token_ids": tuple(fields.items("stop_token_ids", int, 128)),
        "ignore_eos": fields.flag("ignore_eos"),
        "logprobs": logprobs,
    }
    stream, options = fields.flag("stream"), fields.take("stream_options")
    if options is not None and not (isinstance(options, dict) and stream):
        raise RequestError("stream_options must be an object, and stream must be true", "stream_options")
    options = Fields(options or {})
    ask = Ask(
        model=fields.text("model", 1000),
        prompts=prompts,
        messages=messages,
        fields={name: value for name, value in asked.items() if value is not None},
        max_tokens=max_tokens,
        n=fields.whole("n", 1, MOST_CHOICES) or 1,
        stream=stream,
        include_usage=options.flag("include_usage"),
        cache_salt=fields.text("cache_salt", LONGEST_SALT),
    )
    options.check_rest("stream_options.")
    fields.check_rest()
    return ask


def _prompts(value: Any) -> list[Prompt]:
    """Return the prompts: a text, token ids, or a list of either."""
    if isinstance(value, str) or (isinstance(value, list) and value and all(type(item) is int for item in value)):
        return [value]
    if not isinstance(value, list) or not all(isinstance(item, str | list) for item in value):
        raise RequestError(f"prompt is {shown(value)}, it must be a text, token ids, or a list of these", "prompt")
    if not 1 <= len(value) <= MOST_PROMPTS:
        raise RequestError(f"prompt has {len(value)} prompts, it must have 1 to {MOST_PROMPTS}", "prompt")
    return value


def _message(index: int, message: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message with a text as content: parts are joined by newlines, and an empty `tool_calls` is omitted."""
    content, name = message.get("content"), f"messages[{index}]"
    if not isinstance(message.get("role"), str):
        raise RequestError(f"{name} has no role", f"{name}.role")
    if isinstance(content, Sequence) and not isinstance(content, str):
        if not all(isinstance(part, dict) and _is_text(part) for part in content):
            raise RequestError(f"{name} has a part that is not text", f"{name}.content")
        content = "\n".join(part["text"] for part in content)
    if not isinstance(content, str):
        raise RequestError(f"the content of {name} is {shown(content)}, it must be text", f"{name}.content")
    asked = {key: value for key, value in message.items() if key != "tool_calls" or value}
    return {**asked, "content": content}


def _is_text(part: Mapping[str, Any]) -> bool:
    """Return whether a part of a message has a text and nothing else, such as an image."""
    return isinstance(part.get("text"), str) and part.get("type", "text") == "text" and part.keys() <= {"type", "text"}

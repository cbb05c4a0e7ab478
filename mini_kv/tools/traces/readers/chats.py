"""The inputs of a chat template: the fields of a request that vLLM passes to it, and nothing else.

    messages                  role, content and name; tool_calls and reasoning of the assistant; tool_call_id of a tool
    tools                     type, and the function's name, description and parameters, in this order
    documents                 unchanged
    add_generation_prompt     true, unless the request sets it to false
    continue_final_message    the prompt ends with the last message, which the answer continues
    reasoning_effort          unchanged; it also switches `enable_thinking` on or off
    chat_template_kwargs      each by its name; the fields above take precedence
    add_special_tokens        whether the tokenizer adds its own special tokens to those of the template

A field that affects the prompt but is not read is refused by its name (`NOT_READ`), and so is an unknown one (`texts`).

Source: vLLM `ChatCompletionRequest.build_chat_params`, `parse_chat_messages` and `safe_apply_chat_template` (version
0.33), transformers `apply_chat_template` (version 5.23).
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mini_kv.tools.traces.readers.mooncake import quote

NOT_READ = {
    "chat_template": "a template is read from the files beside the tokenizer",
    "echo": "with log-probabilities vLLM does not use the cache for such a request",
    "ec_transfer_params": "the request belongs to several servers",
    "kv_transfer_params": "its KV comes from another server, or goes to one",
    "media_io_kwargs": "only texts are read",
    "mm_payload": "only texts are read",
    "mm_processor_kwargs": "only texts are read",
    "prompt_embeds": "embeddings have no tokens",
    "prompt_logprobs": "vLLM does not use the cache for such a request",
    "return_mm_kwargs": "only texts are read",
    "routed_experts_prompt_start": "vLLM does not use the cache for such a request",
    "suffix": "only the messages before the answer are read",
    "system": "a system prompt is the first of the messages",
    "truncate_prompt_tokens": "prompts are read whole",
    "use_beam_search": "a server runs several requests for it",
}
"""Fields that affect a prompt or its search in the cache but are not read, each with the reason."""
_EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
_TEXT_PARTS = {
    "text": "text",
    "input_text": "text",
    "output_text": "text",
    "refusal": "refusal",
    "thinking": "thinking",
}
"""Types of parts that are texts, and the field in which the text is."""
_BILLING = "x-anthropic-billing-header"
"""Begins a line of a coding assistant that differs in every request. vLLM removes it from system messages."""
_OWN_FIELDS = ("add_generation_prompt", "continue_final_message")
_OTHER_ARGUMENTS = {
    "chat_template",
    "conversation",
    "max_length",
    "messages",
    "padding",
    "return_assistant_tokens_mask",
    "return_dict",
    "return_tensors",
    "sanitize_control_tokens",
    "tokenize",
    "tokenizer_kwargs",
    "tools",
    "truncation",
}
"""Arguments of transformers' `apply_chat_template` that are not the template's."""


@dataclass(frozen=True)
class Chat:
    """The inputs of a template and a tokenizer."""

    messages: list[dict[str, Any]]
    inputs: dict[str, Any]
    """The template's variables besides the messages, by name."""
    continue_final_message: bool = False
    """Whether the prompt ends inside the last message."""
    add_special_tokens: bool = False


def read_chat(fields: Mapping[str, Any]) -> Chat:
    """Return the chat of a request. Raises `ValueError` with the name of a wrong or unsupported field."""
    refuse_unread(fields)
    begins = flag(fields, "add_generation_prompt", default=True)
    continues = flag(fields, "continue_final_message", default=False)
    if begins and continues:
        raise ValueError("continue_final_message is true: then add_generation_prompt must be false")
    inputs = _template_kwargs(fields)
    effort = _reasoning_effort(fields)
    if effort is not None:
        inputs.setdefault("enable_thinking", effort != "none")
        inputs["reasoning_effort"] = effort
    documents = _objects(fields, "documents")
    inputs["documents"] = inputs.get("documents") if documents is None else documents
    tools = _objects(fields, "tools") or ()
    inputs["tools"] = [_tool(tool, f"tools[{index}]") for index, tool in enumerate(tools)] or None
    inputs["add_generation_prompt"] = begins
    return Chat(_messages(fields["messages"]), inputs, continues, flag(fields, "add_special_tokens", default=False))


def refuse_unread(fields: Mapping[str, Any]) -> None:
    """Raise `ValueError` for a field that affects the prompt but is not read."""
    for name, why in NOT_READ.items():
        if fields.get(name) is not None and fields[name] is not False:  # 0 is a number of log-probabilities
            raise ValueError(f"{name} is {quote(fields[name])}: it is not read, {why}")


def flag(fields: Mapping[str, Any], name: str, *, default: bool) -> bool:
    """Return a field that is true or false. Raises `ValueError` for any other value."""
    value = fields.get(name, default)
    if not isinstance(value, bool):
        raise ValueError(f"{name} is {quote(value)}: it must be true or false")
    return value


def developer_as_system(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the messages for a template without the role developer: as system messages, merged at the front.

    vLLM does the same. Messages without that role are returned unchanged.
    """
    if all(message["role"] != "developer" for message in messages):
        return list(messages)
    system = [message for message in messages if message["role"] in ("system", "developer")]
    if len(system) == 1 and messages[0] is system[0]:
        one = {key: value for key, value in system[0].items() if key != "tools"} | {"role": "system"}
    else:
        texts = [message["content"] for message in system if message["content"]]
        one = {"role": "system", "content": "\n\n".join(texts)}
    return [one, *(message for message in messages if message["role"] not in ("system", "developer"))]


def _template_kwargs(fields: Mapping[str, Any]) -> dict[str, Any]:
    values = fields.get("chat_template_kwargs")
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise ValueError(f"chat_template_kwargs is {quote(values)}: it must be an object")
    for name in values:
        if name in _OTHER_ARGUMENTS:
            raise ValueError(f"chat_template_kwargs.{name} is not read: it is not a variable of the template")
    # Here these two say nothing: vLLM puts the request's own fields in their place, given or not.
    return {name: value for name, value in values.items() if name not in _OWN_FIELDS}


def _reasoning_effort(fields: Mapping[str, Any]) -> str | None:
    effort = fields.get("reasoning_effort")
    if effort is not None and effort not in _EFFORTS:
        raise ValueError(f"reasoning_effort is {quote(effort)}: it must be one of {', '.join(_EFFORTS)}")
    return effort


def _objects(fields: Mapping[str, Any], name: str) -> list[dict[str, Any]] | None:
    """Return a list of objects, or `None` if it is absent or null."""
    values = fields.get(name)
    if values is not None and not isinstance(values, list):
        raise ValueError(f"{name} is {quote(values)}: it must be a list")
    for index, value in enumerate(values or ()):
        if not isinstance(value, dict):
            raise ValueError(f"{name}[{index}] is {quote(value)}: it must be an object")
    return values


def _tool(tool: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return a tool with the fields that vLLM knows, in vLLM's order."""
    function = tool.get("function")
    if tool.get("type", "function") != "function" or not isinstance(function, dict) or "name" not in function:
        raise ValueError(f"{name} is {quote(tool)}: it must be a function with a name")
    known = {key: function.get(key) for key in ("name", "description", "parameters")}
    deferred = {"defer_loading": tool["defer_loading"]} if tool.get("defer_loading") is not None else {}
    for key in ("strict", "defer_loading"):
        value = function.get(key) if function.get(key) is not None else deferred.get(key)
        if value is not None:
            known[key] = value
    return {"type": "function", "function": known, **deferred}


def _messages(values: Any) -> list[dict[str, Any]]:
    if not isinstance(values, list) or not values:
        raise ValueError(f"messages is {quote(values)}: it must be a list of at least one message")
    return [_message(value, f"messages[{index}]") for index, value in enumerate(values)]


def _message(value: Any, name: str) -> dict[str, Any]:
    """Return a message for the template. Null fields are left out, because a template would write "None"."""
    if not isinstance(value, dict) or not isinstance(value.get("role"), str):
        raise ValueError(f"{name} is {quote(value)}: it must be an object with a role")
    role = value["role"]
    texts = _texts(value.get("content"), f"{name}.content")
    if role == "system":
        texts = [_without_billing(text) for text in texts]
    message = {"role": role, "content": "\n".join(filter(None, texts))}
    if role == "assistant":
        message |= _assistant(value, name)
    kept = {"tool": "tool_call_id", "developer": "tools"}.get(role)
    if kept is not None and value.get(kept) is not None:
        message[kept] = value[kept]
    for key in ("name", "task"):
        if isinstance(value.get(key), str):
            message[key] = value[key]
    return message


def _texts(content: Any, name: str) -> list[str]:
    """Return the texts of a message, or none for null."""
    if content is None:
        return []
    if isinstance(content, str):
        return [content]
    if not isinstance(content, list):
        raise ValueError(f"{name} is {quote(content)}: it must be a text, or a list of parts")
    return [_text(part, f"{name}[{index}]") for index, part in enumerate(content)]


def _text(part: Any, name: str) -> str:
    text = part.get(_TEXT_PARTS.get(str(part.get("type")), "")) if isinstance(part, dict) else part
    if not isinstance(text, str):
        raise ValueError(f"{name} is {quote(part)}: only texts can be read, of images their tokens are not known")
    return text


def _without_billing(text: str) -> str:
    return text.partition("\n")[2] if text.startswith(_BILLING) else text


def _assistant(value: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return the fields that only an assistant's message has: tool calls, and reasoning under each of its names."""
    found: dict[str, Any] = {}
    calls = value.get("tool_calls")
    if calls is not None and not isinstance(calls, list):
        raise ValueError(f"{name}.tool_calls is {quote(calls)}: it must be a list")
    if calls:
        found["tool_calls"] = [_tool_call(call, f"{name}.tool_calls[{index}]") for index, call in enumerate(calls)]
    reasoning = value.get("reasoning")
    reasoning = value.get("reasoning_content") if reasoning is None else reasoning
    if reasoning is not None:
        if not isinstance(reasoning, str):
            raise ValueError(f"{name}.reasoning is {quote(reasoning)}: it must be a text")
        found |= dict.fromkeys(("reasoning", "reasoning_content", "thinking"), reasoning)
    return found


def _tool_call(call: Any, name: str) -> dict[str, Any]:
    """Return a call with the fields that vLLM knows, in its order, and with its arguments as an object.

    Templates expect an object. In a message the arguments are JSON in a text.
    """
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or call.get("type", "function") != "function":
        raise ValueError(f"{name} is {quote(call)}: it must be a call of a function")
    known = {"arguments": _arguments(function.get("arguments"))} | _pick(function, "name")
    return _pick(call, "id") | {"function": known} | _pick(call, "type")


def _pick(fields: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {name: fields[name]} if name in fields else {}


def _arguments(value: Any) -> dict[str, Any]:
    """Return the arguments of a call. Any value but an object becomes an empty object: a model may have written it."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return {}
    return value if isinstance(value, dict) else {}

"""Converts texts and chats to a server's tokens, with a `tokenizer.json` and the chat template in its folder.

    tokenizer.json            text to token ids
    chat_template.jinja       messages to text; if it is missing:
    tokenizer_config.json     its chat_template; and the names of special tokens, which a template writes

Needs the extra `tokenizer`: the libraries `tokenizers` and, for chats, `jinja2`. A template is an untrusted program, so
it runs in jinja2's sandbox. A template that reads the date always gets the same day, so that a trace has the same hits
every day.

Source: transformers `apply_chat_template` (version 5.23), vLLM `CompletionRequest.add_special_tokens` (version 0.33).
"""

import json
from collections.abc import Callable, Mapping
from datetime import datetime
from importlib import import_module
from pathlib import Path
from typing import Any

from mini_kv.core import strict_json
from mini_kv.core.errors import ConfigError
from mini_kv.installer import install_extra
from mini_kv.tools.traces.readers.chats import Chat, developer_as_system

_TODAY = datetime(2026, 1, 1)
"""The date that every template gets."""
_MAX_CONFIG_BYTES = 1 << 24
_END = "CONTINUE_FINAL_MESSAGE_TAG "
"""Marks the end of a message that the answer continues. Source: transformers."""


class PromptTokenizer:
    """Converts a text or a chat to tokens."""

    def __init__(self, path: Path) -> None:
        """Read a tokenizer and the other files of its folder.

        Args:
            path: a `tokenizer.json`, or its folder.

        Raises:
            ConfigError: a library is missing, or a file is missing or broken.
        """
        path = path / "tokenizer.json" if path.is_dir() else path
        if not path.is_file():
            raise ConfigError(f"--tokenizer {path}: there is no such file")
        try:
            self._tokenizer = library("tokenizers").Tokenizer.from_file(str(path))
        except ConfigError:
            raise
        except Exception as error:  # the library raises nothing narrower
            raise ConfigError(f"--tokenizer {path}: it is not a tokenizer: {_in_a_line(error)}") from None
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._path = path
        self._templates: dict[bool, Callable[..., str]] = {}
        """The templates, by whether a chat has tools."""

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Return the tokens of a prompt of text, by default with those that the model expects around it."""
        text = text.encode("utf-8", "replace").decode()  # JSON may spell halves of characters, the library takes none
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=add_special_tokens).ids
        return ids

    def encode_chat(self, chat: Chat) -> list[int]:
        """Return the tokens of a chat up to the beginning of the answer.

        Raises `ConfigError` if there is no template, `ValueError` if the template refuses this chat.
        """
        has_tools = chat.inputs.get("tools") is not None
        if has_tools not in self._templates:
            self._templates[has_tools] = _load_template(self._path, has_tools=has_tools)
        render = self._templates[has_tools]
        try:
            text = _continued(render, chat) if chat.continue_final_message else render(chat.messages, **chat.inputs)
        except Exception as error:  # a template raises whatever its program stumbles over
            raise ValueError(f"the chat template refuses the messages: {_in_a_line(error)}") from None
        return self.encode(text, add_special_tokens=chat.add_special_tokens)


def _continued(render: Callable[..., str], chat: Chat) -> str:
    """Return the prompt of a chat that ends inside its last message: the text up to the end of that message."""
    *before, last = chat.messages
    text = render([*before, {**last, "content": last["content"] + _END}], **chat.inputs)
    end = text.rfind(_END.strip())
    if end < 0 or last["content"].strip() not in text:
        raise ValueError("continue_final_message is true, and the last message is not in the prompt")
    # A template that strips messages has stripped the space behind the mark: then those before it go, too.
    return text[:end] if text.startswith(_END, end) else text[:end].rstrip()


def _load_template(tokenizer: Path, *, has_tools: bool) -> Callable[..., str]:
    """Return a function that renders messages, and the other variables of the template by name, to a text.

    If there are several templates, `has_tools` selects the one for requests with tools. Raises `ConfigError` if no
    template works.
    """
    config = _read_config(tokenizer.with_name("tokenizer_config.json"))
    source = _template_source(tokenizer, config, has_tools=has_tools)
    environment = library("jinja2.sandbox").ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _to_json
    environment.globals.update(raise_exception=_raise, strftime_now=_TODAY.strftime)
    try:
        template = environment.from_string(source)
    except Exception as error:
        raise ConfigError(f"the chat template beside {tokenizer} is broken: {_in_a_line(error)}") from None
    special = {name: _content(value) for name, value in config.items() if name.endswith("_token")}
    knows_developer = "'developer'" in source or '"developer"' in source

    def render(messages: list[dict[str, Any]], **inputs: Any) -> str:
        messages = messages if knows_developer else developer_as_system(messages)
        text: str = template.render(messages=messages, **{**special, **inputs})
        return text

    return render


def _template_source(tokenizer: Path, config: Mapping[str, Any], *, has_tools: bool) -> str:
    file = tokenizer.with_name("chat_template.jinja")
    if file.is_file():
        return _read_text(file)
    found = config.get("chat_template")
    if isinstance(found, list):  # several, by name
        named = {entry.get("name"): entry.get("template") for entry in found if isinstance(entry, dict)}
        found = named.get("tool_use" if has_tools and "tool_use" in named else "default")
    if not isinstance(found, str):
        raise ConfigError(
            f"there is no chat template beside {tokenizer}, neither chat_template.jinja nor one in"
            " tokenizer_config.json, and messages need one"
        )
    return found


def _read_config(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    text = _read_text(path)
    try:
        config = strict_json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{path} is not JSON that can be read: {_in_a_line(error)}") from None
    if not isinstance(config, dict):
        raise ConfigError(f"{path} is not a JSON object")
    return config


def _read_text(path: Path) -> str:
    if path.stat().st_size > _MAX_CONFIG_BYTES:
        raise ConfigError(f"{path} is larger than {_MAX_CONFIG_BYTES:,} bytes")
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not UTF-8") from None


def _content(token: Any) -> Any:
    """Return the text of a special token, from a string or from an object with its settings."""
    return token.get("content") if isinstance(token, dict) else token


def _to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None, **options: Any) -> str:
    """Return the value as JSON. jinja2's own filter escapes it for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)


def _raise(message: str) -> None:
    raise ValueError(message)


def library(name: str) -> Any:
    """Import a library of the extra `tokenizer`. Raises `ConfigError`, which names the extra."""
    try:
        return import_module(name)
    except ImportError:
        extra = f"the extra tokenizer: {install_extra('tokenizer')}"
        raise ConfigError(f"texts need {name.partition('.')[0]}, which comes with {extra}") from None


def _in_a_line(error: Exception) -> str:
    """Return an error's message without line breaks, cut to a readable length."""
    text = " ".join(f"{error}".split()) or type(error).__name__
    return text if len(text) <= 200 else text[:197] + "..."

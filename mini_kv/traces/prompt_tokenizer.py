"""Texts and chats as the tokens that a server makes of them: a `tokenizer.json`, and the chat template beside it.

    tokenizer.json            text to token ids
    chat_template.jinja       messages to text; or else
    tokenizer_config.json     its chat_template; and the names of special tokens, which a template writes

Needs the extra `tokenizer`: the libraries `tokenizers` and, for chats, `jinja2`. A template is a program from others:
it runs in jinja2's sandbox. One that asks for the date is told the same day always, so that a trace has the same hits
tomorrow.

Source: transformers `apply_chat_template` (version 5.23), vLLM `CompletionRequest.add_special_tokens` (version 0.33).
"""

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from importlib import import_module
from pathlib import Path
from typing import Any

from mini_kv import strict_json
from mini_kv.core.errors import ConfigError

TODAY = datetime(2026, 1, 1)
"""What a template is told that asks for the date."""
_MAX_CONFIG_BYTES = 1 << 24


class PromptTokenizer:
    """Makes tokens of a text or of a chat."""

    def __init__(self, path: Path) -> None:
        """Read a tokenizer and what lies beside it.

        Args:
            path: a `tokenizer.json`, or the folder where it lies.

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
            raise ConfigError(f"--tokenizer {path}: it is no tokenizer: {in_a_line(error)}") from None
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._path = path
        self._render: Callable[..., str] | None = None

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Return the tokens of a prompt of text, by default with those that the model expects around it."""
        text = text.encode("utf-8", "replace").decode()  # JSON may spell halves of characters, the library takes none
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=add_special_tokens).ids
        return ids

    def encode_chat(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Any] | None) -> list[int]:
        """Return the tokens of a chat up to where the answer begins.

        Raises `ConfigError` if there is no template, `ValueError` if the template refuses these messages.
        """
        if self._render is None:
            self._render = load_template(self._path)
        try:
            text = self._render(messages=messages, tools=tools)
        except Exception as error:  # a template raises whatever its program stumbles over
            raise ValueError(f"the chat template refuses the messages: {in_a_line(error)}") from None
        return self.encode(text, add_special_tokens=False)


def load_template(tokenizer: Path) -> Callable[..., str]:
    """Return what makes a text of `messages` and `tools`. Raises `ConfigError` if there is no template that works."""
    config = _read_config(tokenizer.with_name("tokenizer_config.json"))
    source = _template_source(tokenizer, config)
    environment = library("jinja2.sandbox").ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _to_json
    environment.globals.update(raise_exception=_raise, strftime_now=TODAY.strftime)
    try:
        template = environment.from_string(source)
    except Exception as error:
        raise ConfigError(f"the chat template beside {tokenizer} is broken: {in_a_line(error)}") from None
    special = {name: _content(value) for name, value in config.items() if name.endswith("_token")}

    def render(**inputs: Any) -> str:
        text: str = template.render(add_generation_prompt=True, **special, **inputs)
        return text

    return render


def _template_source(tokenizer: Path, config: Mapping[str, Any]) -> str:
    file = tokenizer.with_name("chat_template.jinja")
    if file.is_file():
        return _read_text(file)
    found = config.get("chat_template")
    if isinstance(found, list):  # several, by name
        named = {entry.get("name"): entry.get("template") for entry in found if isinstance(entry, dict)}
        found = named.get("default")
    if not isinstance(found, str):
        raise ConfigError(
            f"there is no chat template beside {tokenizer}, neither chat_template.jinja nor one in"
            " tokenizer_config.json, and messages become a prompt by it"
        )
    return found


def _read_config(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    text = _read_text(path)
    try:
        config = strict_json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{path} is not JSON that can be read: {in_a_line(error)}") from None
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
    """Return the text of a special token, which stands there alone or among its settings."""
    return token.get("content") if isinstance(token, dict) else token


def _to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None, **options: Any) -> str:
    """Return the value as JSON; jinja2's own filter writes it for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)


def _raise(message: str) -> None:
    raise ValueError(message)


def library(name: str) -> Any:
    """Import a library that the extra `tokenizer` brings; raises `ConfigError`, which names the extra."""
    try:
        return import_module(name)
    except ImportError:
        extra = "the extra tokenizer: in a checkout, pip install -e '.[tokenizer]'"
        raise ConfigError(f"texts need {name.partition('.')[0]}, which comes with {extra}") from None


def in_a_line(error: Exception) -> str:
    """Return what an error says, without line breaks, cut to a readable length."""
    text = " ".join(f"{error}".split()) or type(error).__name__
    return text if len(text) <= 200 else text[:197] + "..."

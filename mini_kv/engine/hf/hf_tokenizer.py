"""A tokenizer of transformers with the interface that the engine needs."""

import json
import re
from collections.abc import Mapping, Sequence
from reprlib import repr as shown
from typing import TYPE_CHECKING, Any

from mini_kv.core.errors import ConfigError
from mini_kv.engine.prompt_tokens import PromptError
from mini_kv.installer import install_extra

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


class HuggingFaceTokenizer:
    """Text to token ids and back, as the checkpoint's authors meant it."""

    def __init__(self, tokenizer: "PreTrainedTokenizerFast") -> None:
        """Take a tokenizer whose tokens spell bytes, as those of Llama, Qwen, Mistral and Gemma do.

        Raises:
            ConfigError: another kind, such as WordPiece: its tokens do not say where the spaces are.
        """
        kinds = _decoder_kinds(tokenizer)
        if not kinds & {"ByteLevel", "ByteFallback", "Metaspace"}:
            raise ConfigError(f"tokens that are decoded by {sorted(kinds) or 'nothing'} do not spell bytes")
        self._tokenizer = tokenizer
        self._alphabet = _byte_alphabet() if "ByteLevel" in kinds else None
        self._added = tokenizer.added_tokens_decoder
        self.vocab_size = len(tokenizer)
        self.eos_token_id: int | None = tokenizer.eos_token_id

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Return the ids, with the tokens around them that the model expects, such as one that begins a text.

        `add_special_tokens=False` leaves these out, for a text that already has them, as from a chat template.
        """
        text = text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")  # the library takes real text only
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=add_special_tokens)
        return ids

    def apply_chat_template(
        self, messages: Sequence[Mapping[str, Any]], chat_template: str | None, add_generation_prompt: bool
    ) -> str:
        """Return a conversation as the text that the model has learned to read.

        The template is a small program in the checkpoint. It runs in Jinja's sandbox, without access to files and to
        Python, but without a time limit. Source: transformers `apply_chat_template`.

        Raises:
            ConfigError: there is no template, or jinja2 is not installed.
            PromptError: the template does not accept the messages.
        """
        _check_messages(messages)
        if chat_template is None and self._tokenizer.chat_template is None:
            raise ConfigError("the tokenizer has no chat template: give chat_template, or call generate")
        try:
            text: str = self._tokenizer.apply_chat_template(
                [dict(message) for message in messages],
                chat_template=chat_template,
                add_generation_prompt=add_generation_prompt,
                tokenize=False,
            )
        except ImportError as error:
            advice = install_extra("hf")
            raise ConfigError(f"chat needs jinja2, which the extra hf brings: {advice} ({error})") from None
        except Exception as error:  # whatever the template's author, or its loops and filters, raise
            raise PromptError(f"the chat template does not take these messages: {error}") from error
        return text

    def decode_bytes(self, ids: Sequence[int]) -> bytes:
        """Return the text of the tokens. A character may begin in one token and end in the next.

        Special tokens, and ids that only fill up the model's matrix, have no text.
        """
        return b"".join(self._bytes_of(token_id) for token_id in ids)

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text. Bytes that are not a character become U+FFFD.

        A space before the first word is kept, because the text may continue another one.
        """
        return self.decode_bytes(ids).decode("utf-8", errors="replace")

    def _bytes_of(self, token_id: int) -> bytes:
        if token_id in self._added:
            added = self._added[token_id]
            return b"" if added.special else str(added.content).encode()
        token: str | None = self._tokenizer.convert_ids_to_tokens(token_id) if token_id < self.vocab_size else None
        if token is None:
            return b""
        if self._alphabet is not None:
            spelled = [self._alphabet.get(char) for char in token]
            return token.encode() if None in spelled else bytes(byte for byte in spelled if byte is not None)
        if re.fullmatch("<0x[0-9A-Fa-f]{2}>", token):
            return bytes.fromhex(token[3:5])
        return token.replace("\u2581", " ").encode()


def _check_messages(messages: Sequence[Mapping[str, Any]]) -> None:
    """Raise `PromptError` unless each message is an object with a role, and with a content that is text or a list."""
    for index, message in enumerate(messages):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise PromptError(f"message {index} is {shown(message)}: it must have a role, and a content")
        if "content" in message and not isinstance(message["content"], str | list | None):
            raise PromptError(f"the content of message {index} is {shown(message['content'])}: it must be text")


def _decoder_kinds(tokenizer: "PreTrainedTokenizerFast") -> set[str]:
    """Return which steps the library takes to turn tokens into text."""
    decoder: Any = getattr(getattr(tokenizer, "backend_tokenizer", None), "decoder", None)
    if decoder is None:
        return set()
    state = json.loads(decoder.__getstate__())
    return {step["type"] for step in state.get("decoders", [state])}


def _byte_alphabet() -> dict[str, int]:
    """Return the byte for each character of a byte-level token.

    Printable bytes are unchanged. The others are, in order, the characters from U+0100 on. Source: GPT-2, `encoder.py`.
    """
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAC + 1), *range(0xAE, 0xFF + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(b): b for b in printable} | {chr(256 + i): b for i, b in enumerate(others)}

"""The supported formats of traffic. The first line of a file, or `--format`, determines its format.

Every format is read into requests, of hashes (`TraceRequest`) or of tokens (`TokenRequest`). Any file may be
compressed with gzip, begin with a byte order mark, and have blank lines. "-" is standard input.
"""

import argparse
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

from mini_kv.core.errors import ConfigError
from mini_kv.tools.traces.prompt_hashes import Trace
from mini_kv.tools.traces.readers import mooncake, qwen_bailian
from mini_kv.tools.traces.readers.agents import Session, SessionParser, interleave
from mini_kv.tools.traces.readers.conversations import Conversation, conversation_parser
from mini_kv.tools.traces.readers.mooncake import (
    NO_REQUEST,
    TraceError,
    TraceRequest,
    json_object,
    parse_request,
    quote,
    read_lines,
)
from mini_kv.tools.traces.readers.other_formats import refuse_bytes, refuse_object, table_refusal
from mini_kv.tools.traces.readers.prompt_tokenizer import PromptTokenizer
from mini_kv.tools.traces.readers.qwen_bailian import parse_bailian
from mini_kv.tools.traces.readers.request_logs import HOW_TO_LOG, Logged, LogParser
from mini_kv.tools.traces.readers.texts import Encoder, text_parser
from mini_kv.tools.traces.readers.token_trace import TokenRequest, parse_tokens

MAX_LINE_BYTES = 1 << 26
"""The most bytes of a line: enough for a prompt of five million tokens, as ids and as text."""

_Parsed = TraceRequest | TokenRequest | Logged | Session | Conversation
"""The content of a line."""
Parse = Callable[[bytes], _Parsed | None]
"""Returns the request or session in a line, or `None` if the line has none. Raises `ValueError` with the error."""

_FORMATS: dict[str, Callable[[Encoder | None, int | None], Parse]] = {
    "mooncake": lambda _, size: partial(parse_request, block_size=size or mooncake.BLOCK_SIZE),
    "qwen-bailian": lambda _, size: partial(parse_bailian, block_size=size or qwen_bailian.BLOCK_SIZE),
    "agents": lambda _, size: SessionParser(size),
    "tokens": lambda *_: parse_tokens,
    "texts": lambda encoder, _: text_parser(encoder),
    "conversations": lambda encoder, _: conversation_parser(encoder),
    "log": lambda encoder, _: LogParser(encoder),
}
"""The parser factory of each format. It takes an encoder for texts, and the tokens per id if not the format's."""

_MARKS = {
    "token_ids": "tokens",
    "prompt": "texts",
    "messages": "texts",
    "body": "texts",
    "conversations": "conversations",
    "conversation": "conversations",
    "chat_id": "qwen-bailian",
    "hash_ids": "mooncake",
    "event": "log",
    "levelname": "log",
    "block_size": "agents",
}
"""A field of the first line, and the format that it indicates. If a line has several, the first one here counts."""

_READ = (
    "supported are files of one JSON object per line (with hash_ids as Mooncake's and Qwen-Bailian's,"
    " requests as an agent's session, token_ids, prompt, messages, or conversations), and logs of vLLM and SGLang"
)
_SECONDS = range(10**9, 10**11)
"""Milliseconds at which no trace begins. Seconds since 1970 are in this range until the year 5138."""


def add_trace_arguments(parser: argparse.ArgumentParser, nargs: str | None = None) -> None:
    """Add the arguments that `read_traffic` reads."""
    parser.add_argument("trace", nargs=nargs, metavar="TRACE", help="requests, one per line; - is standard input")
    group = parser.add_argument_group("the trace's form")
    formats = ", ".join(_FORMATS)
    group.add_argument(
        "--format", choices=list(_FORMATS), metavar="NAME", help=f"{formats} (default: by its first line)"
    )
    group.add_argument("--tokenizer", type=Path, metavar="FILE", help="a tokenizer.json, for prompts that are texts")
    about = "tokens per block, or per hash of the trace"
    group.add_argument("--block-size", type=int, metavar="N", help=about)


def read_traffic(args: argparse.Namespace, path: str | None = None) -> Trace:
    """Return the requests that the arguments name, or the requests of another file in the same format."""
    encoder = None if args.tokenizer is None else PromptTokenizer(args.tokenizer)
    return read_requests(args.trace if path is None else path, args.format, encoder, args.block_size)


def read_requests(
    path: str | os.PathLike[str],
    format_name: str | None = None,
    encoder: Encoder | None = None,
    block_size: int | None = None,
) -> Trace:
    """Return the requests of a file, at least one, in its order, and all of one kind: of hashes or of tokens.

    Args:
        path: the file.
        format_name: one of `_FORMATS`. `None`: detected from the first line.
        encoder: converts texts to tokens, for formats with texts.
        block_size: tokens per hash. `None`: the format's number.

    Raises `ConfigError` for a block size below 1, `TraceError` and `OSError` as `read_trace` does. Costs O(file) time
    and memory.
    """
    if block_size is not None and block_size < 1:
        raise ConfigError(f"block_size is {block_size}, it must be at least 1")
    parser = _Parser(format_name, encoder, block_size)
    try:
        requests = read_lines(path, parser, MAX_LINE_BYTES)
    except TraceError as error:
        if error.problem == NO_REQUEST and parser.format_name == "log":
            if refusal := table_refusal(parser.first_line):
                raise TraceError(error.path, 1, refusal) from None
            raise TraceError(error.path, error.line, f"{NO_REQUEST}; {HOW_TO_LOG}; {_READ}") from None
        raise
    if requests[0].timestamp in _SECONDS:
        problem = f"timestamp is {requests[0].timestamp}: it looks like seconds, and milliseconds are read"
        raise TraceError(os.fspath(path), 1, f"{problem}; jq -c '.timestamp *= 1000' FILE writes them")
    sessions = [line for line in requests if isinstance(line, Session)]
    if sessions:
        return interleave(sessions)
    conversations = [line.requests for line in requests if isinstance(line, Conversation)]
    if conversations:
        return [request for conversation in conversations for request in conversation]
    complete = [request.complete() if isinstance(request, Logged) else request for request in requests]
    tokens = [request for request in complete if isinstance(request, TokenRequest)]
    return tokens or [request for request in complete if isinstance(request, TraceRequest)]


class _Parser:
    """Parses all lines in the requested format, or in the format of the first line."""

    def __init__(self, format_name: str | None, encoder: Encoder | None, block_size: int | None) -> None:
        self.format_name = format_name
        self.first_line = b""
        self._encoder = encoder
        self._block_size = block_size
        self._parse: Parse | None = None

    def __call__(self, raw: bytes) -> _Parsed | None:
        """Return the request or session in a line. Raises `ValueError` with the error."""
        if self._parse is None:
            self.first_line = raw
            self.format_name = self.format_name or recognise(raw)
            self._parse = _FORMATS[self.format_name](self._encoder, self._block_size)
        return self._parse(raw)


def recognise(raw: bytes) -> str:
    """Return the format of a file's first line. Raises `ValueError` if it is in no known format."""
    if raw.startswith(b"\x80"):
        raise ValueError(f"a pickle, as SGLang dumps requests, may run any code, so it is not read; {HOW_TO_LOG}")
    refuse_bytes(raw)
    if not raw.lstrip().startswith(b"{"):
        return "log"  # of which any line may come first
    fields = json_object(raw)
    known = next((name for field, name in _MARKS.items() if field in fields), None)
    refuse_object(fields, is_known=known is not None)
    if known is not None:
        return known
    raise ValueError(f"not a line of a known format, which has one of the fields {', '.join(_MARKS)}: {quote(fields)}")

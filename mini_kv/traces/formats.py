"""The formats of traffic that are read, and which of them a file is in: its first line says so, or `--format`.

Every format becomes the same thing: requests, of hashes (`TraceRequest`) or of tokens (`TokenRequest`). Any file may be
packed by gzip, begin with a byte order mark, and have blank lines; "-" is standard input.
"""

import argparse
import os
from collections.abc import Callable
from pathlib import Path

from mini_kv.traces.mooncake import (
    NO_REQUEST,
    TraceError,
    TraceRequest,
    json_object,
    parse_request,
    quote,
    read_lines,
)
from mini_kv.traces.prompt_tokenizer import PromptTokenizer
from mini_kv.traces.prompts import Trace
from mini_kv.traces.qwen_bailian import parse_bailian
from mini_kv.traces.request_logs import HOW_TO_LOG, Logged, LogParser
from mini_kv.traces.texts import Encoder, text_parser
from mini_kv.traces.token_request import TokenRequest
from mini_kv.traces.token_trace import parse_tokens

MAX_LINE_BYTES = 1 << 26
"""Enough for a prompt of five million tokens, as ids and as text."""

Parse = Callable[[bytes], TraceRequest | TokenRequest | Logged | None]
"""Returns the request in a line, or `None` if it holds none; raises `ValueError`, saying what is wrong."""

FORMATS: dict[str, Callable[[Encoder | None], Parse]] = {
    "mooncake": lambda _: parse_request,
    "qwen-bailian": lambda _: parse_bailian,
    "tokens": lambda _: parse_tokens,
    "texts": text_parser,
    "log": LogParser,
}
"""By name, what makes a parser, given what makes tokens of texts."""

_MARKS = {
    "token_ids": "tokens",
    "prompt": "texts",
    "messages": "texts",
    "body": "texts",
    "chat_id": "qwen-bailian",
    "hash_ids": "mooncake",
    "event": "log",
    "levelname": "log",
}
"""A field of the first line, and the format that it stands for; of several the first here counts."""


def add_trace_arguments(parser: argparse.ArgumentParser, nargs: str | None = None) -> None:
    """Add the arguments that `read_traffic` reads."""
    parser.add_argument("trace", nargs=nargs, help="requests, one per line, or packed by gzip; - is standard input")
    parser.add_argument("--format", choices=list(FORMATS), help="the trace's format (default: its first line tells)")
    parser.add_argument("--tokenizer", type=Path, metavar="FILE", help="a tokenizer.json, for prompts that are texts")


def read_traffic(args: argparse.Namespace, path: str | None = None) -> Trace:
    """Return the requests that the arguments ask for, or those of another file in the same format."""
    encoder = None if args.tokenizer is None else PromptTokenizer(args.tokenizer)
    return read_requests(args.trace if path is None else path, args.format, encoder)


def read_requests(
    path: str | os.PathLike[str], format_name: str | None = None, encoder: Encoder | None = None
) -> Trace:
    """Return the requests of a file, at least one, in its order, and all of one kind: of hashes or of tokens.

    Args:
        path: the file.
        format_name: one of `FORMATS`; `None`: the first line says which.
        encoder: what makes tokens of texts, for formats that hold them.

    Raises `TraceError` and `OSError` as `read_trace` does. Costs O(file) time and memory.
    """
    parser = _Parser(format_name, encoder)
    try:
        requests = read_lines(path, parser, MAX_LINE_BYTES)
    except TraceError as error:
        if error.problem == NO_REQUEST and parser.format_name == "log":
            raise TraceError(error.path, error.line, f"{NO_REQUEST}; {HOW_TO_LOG}") from None
        raise
    complete = [request.complete() if isinstance(request, Logged) else request for request in requests]
    tokens = [request for request in complete if isinstance(request, TokenRequest)]
    return tokens or [request for request in complete if isinstance(request, TraceRequest)]


class _Parser:
    """Parses all lines as what was asked for, or as what the first one is."""

    def __init__(self, format_name: str | None, encoder: Encoder | None) -> None:
        self.format_name = format_name
        self._encoder = encoder
        self._parse: Parse | None = None

    def __call__(self, raw: bytes) -> TraceRequest | TokenRequest | Logged | None:
        """Return the request in a line; raises `ValueError`, saying what is wrong."""
        if self._parse is None:
            self.format_name = self.format_name or recognise(raw)
            self._parse = FORMATS[self.format_name](self._encoder)
        return self._parse(raw)


def recognise(raw: bytes) -> str:
    """Return the format that a file's first line is in; raises `ValueError` if it is in none."""
    if raw.startswith(b"\x80"):
        raise ValueError(f"a pickle, as SGLang dumps requests, may run any code, so it is not read; {HOW_TO_LOG}")
    if not raw.lstrip().startswith(b"{"):
        return "log"
    fields = json_object(raw)
    for field, name in _MARKS.items():
        if field in fields:
            return name
    raise ValueError(f"not a line of a known format, which has one of the fields {', '.join(_MARKS)}: {quote(fields)}")

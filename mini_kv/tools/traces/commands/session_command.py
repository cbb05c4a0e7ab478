"""`mini-kv session FILE`: where the prefix of a coding agent's session broke, turn by turn."""

import argparse
import sys
from functools import partial
from pathlib import Path

from mini_kv.command_output import add_json_flag, one_line_errors, print_report
from mini_kv.core.errors import ConfigError
from mini_kv.progress_line import ProgressLine
from mini_kv.tools.traces.readers.mooncake import TraceError
from mini_kv.tools.traces.readers.prompt_tokenizer import PromptTokenizer
from mini_kv.tools.traces.sessions.analysis import BLOCK_SIZE, Analysis, analyse
from mini_kv.tools.traces.sessions.layout import Weigh
from mini_kv.tools.traces.sessions.session_formats import EXAMPLE, READERS, read_session_file
from mini_kv.tools.traces.sessions.session_report import report

_TTLS = {"5m": 300, "1h": 3600}
"""Seconds that an entry of a hosted cache lives, by name."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that `run` reads."""
    parser.add_argument(
        "file",
        metavar="FILE",
        help="of Claude Code (~/.claude/projects) or Codex (~/.codex/sessions);"
        f" - is standard input, {EXAMPLE} a made-up session",
    )
    parser.add_argument("--format", choices=list(READERS), help="the file's format (default: by its first lines)")
    parser.add_argument("--tokenizer", type=Path, metavar="FILE", help="a tokenizer.json, for where texts begin")
    parser.add_argument(
        "--block-size", type=int, default=BLOCK_SIZE, metavar="N", help=f"tokens per block (default: {BLOCK_SIZE})"
    )
    parser.add_argument("--num-blocks", type=int, metavar="N", help="size of a pool, to see what pauses cost there")
    parser.add_argument(
        "--ttl", choices=list(_TTLS), help="how long a hosted cache's entry lives (default: as the file says, or 5m)"
    )
    parser.add_argument(
        "--texts", action="store_true", help="print the beginning of each text where a prefix broke (private!)"
    )
    add_json_flag(parser, "print the figures as one JSON object, without texts")


@one_line_errors("session", TraceError, ConfigError, file="file")
def run(args: argparse.Namespace) -> int:
    """Print the report. Return 0, or 2 with one line on stderr if the file or an argument is wrong."""
    with ProgressLine(sys.stderr, "reading the session"):
        analysis = _analysed(args)
    weights = "characters" if args.tokenizer is None else f"tokens of {args.tokenizer}"
    return print_report(args, analysis.as_dict, lambda: report(analysis, weights=weights, with_texts=args.texts))


def _analysed(args: argparse.Namespace) -> Analysis:
    if args.num_blocks is not None and args.num_blocks < 2:
        raise ConfigError(f"--num-blocks is {args.num_blocks}: the null block takes one, so it must be at least 2")
    weigh: Weigh = len
    if args.tokenizer is not None:
        weigh = partial(_num_tokens, PromptTokenizer(args.tokenizer))
    session = read_session_file(args.file, args.format)
    return analyse(
        session,
        block_size=args.block_size,
        num_blocks=args.num_blocks,
        ttl=None if args.ttl is None else _TTLS[args.ttl],
        weigh=weigh,
    )


def _num_tokens(tokenizer: PromptTokenizer, text: str) -> int:
    return len(tokenizer.encode(text, add_special_tokens=False))

"""`mini-kv explain TRACE`: the causes of lost hits. `--pair A B`: why one prompt finds so little of another."""

import argparse
import sys
from dataclasses import asdict
from typing import Any

from mini_kv.command_output import add_json_flag, one_line_errors, print_report
from mini_kv.core.errors import ConfigError
from mini_kv.core.kv_cache_planning import bytes_per_block, get_kv_cache_groups
from mini_kv.progress_line import ProgressLine
from mini_kv.story.vllm_source import CAUSES, VERSION
from mini_kv.tools.traces.causes import HIDDEN_BY_HASHES, Cause, find_causes
from mini_kv.tools.traces.commands.curve_command import add_size_arguments, blocks_in, flags_of_model
from mini_kv.tools.traces.pair import explain_pair
from mini_kv.tools.traces.prompt_hashes import Trace, get_block_size, make_prompts, token_requests
from mini_kv.tools.traces.readers.formats import add_trace_arguments, read_traffic
from mini_kv.tools.traces.readers.mooncake import TraceError
from mini_kv.tools.traces.runners import Setup, full_attention
from mini_kv.tools.traces.waterfall import Waterfall, make_waterfall


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that `run` reads."""
    add_trace_arguments(parser, nargs="?")
    parser.add_argument("--pair", nargs=2, metavar=("A", "B"), help="two files of one request each: B runs after A")
    add_size_arguments(parser)
    parser.add_argument("--concurrency", type=int, default=1, metavar="N", help="requests at once (default: 1)")
    add_json_flag(parser)


@one_line_errors("explain", TraceError, ConfigError)
def run(args: argparse.Namespace) -> int:
    """Print the rows and the causes. Return 0, or 2 with one line on stderr if a file or an argument is wrong."""
    if (args.trace is None) == (args.pair is None):
        raise ConfigError("give a trace, or --pair and two files")
    if args.pair is not None:
        return _print_pair(args)
    with ProgressLine(sys.stderr, "looking for the causes"):
        trace = read_traffic(args)
        setup = make_setup(trace, args)
        prompts = make_prompts(trace, setup.hash_block_size)
        waterfall = make_waterfall(trace, prompts, setup, concurrency=args.concurrency)
        causes = find_causes(waterfall, prompts)
    lines = [*report(waterfall, causes), *source_lines(causes)]
    return print_report(args, lambda: as_dict(waterfall, causes), lambda: lines)


def make_setup(trace: Trace, args: argparse.Namespace) -> Setup:
    """Return the requested groups and pool. Without a model there is one group of full attention."""
    block_size = get_block_size(trace, args.block_size)
    flags = flags_of_model(args, block_size)
    if args.concurrency < 1:
        raise ConfigError(f"--concurrency is {args.concurrency}, it must be at least 1")
    groups = full_attention(block_size)
    if args.model is not None:
        _, specs = flags.load(args.model)
        groups = tuple(get_kv_cache_groups(specs))
        sizes = {group.kv_cache_spec.block_size for group in groups}
        if not token_requests(trace) and any(size % block_size for size in sizes):
            raise ConfigError(
                f"the model's blocks of {sorted(sizes)} tokens are not multiples of the trace's {block_size}:"
                " a trace of tokens could be cut into them, this one has hashes only"
            )
    num_blocks = args.num_blocks
    if args.memory is not None:
        num_blocks = blocks_in(args.memory, None if args.model is None else bytes_per_block(groups))
    if num_blocks is None and args.concurrency > 1:
        raise ConfigError("--concurrency needs the size of the pool: --num-blocks, or --model and --memory")
    return Setup(groups, num_blocks)


def report(waterfall: Waterfall, causes: list[Cause]) -> list[str]:
    """Return the rows, the ceiling, and the causes by name."""
    total = waterfall.tokens("prompt")
    width = max(len(row.label) for row in waterfall.rows) + 2
    lines = [f"{waterfall.num_requests:,} requests, blocks of {waterfall.setup.hash_block_size} tokens", ""]
    for row in waterfall.rows:
        if row.is_total or row.tokens:
            label = row.label if row.is_total else f"  - {row.label}"
            lines.append(f"{label:<{width + 4}}{row.tokens:>15,} {100 * row.tokens / total:7.2f} %")
    if waterfall.belady is not None:
        lines += ["", f"No policy finds more than {100 * waterfall.belady / total:.2f} % in this pool (Belady)."]
    lines.append("")
    lines += [f"{cause.name}, {100 * cause.share:.1f} % of the prompt tokens: {cause.sentence}." for cause in causes]
    if not causes:
        lines.append("No loss of 3 % or more has a cause that you could remove.")
    if not waterfall.has_tokens:
        lines += ["", "Cannot be determined from hashes:", *(f"  {what}" for what in HIDDEN_BY_HASHES)]
    return lines


def source_lines(causes: list[Cause]) -> list[str]:
    """Return for each cause the function of vLLM in which the hits are lost, with a link to its code."""
    if not causes:
        return []
    lines = ["", f"In the source code of vLLM {VERSION}:"]
    for cause in causes:
        place = CAUSES[cause.name]
        lines += [f"  {cause.name}: {place.symbol}", f"    {place.sentence}", f"    {place.url}"]
    return lines


def as_dict(waterfall: Waterfall, causes: list[Cause]) -> dict[str, Any]:
    """Return all figures by name. The names do not change between versions."""
    return {
        "requests": waterfall.num_requests,
        "block_size": waterfall.setup.hash_block_size,
        "num_blocks": waterfall.setup.num_blocks,
        "rows": [{"name": row.name, "tokens": row.tokens, "is_total": row.is_total} for row in waterfall.rows],
        "belady": waterfall.belady,
        "causes": [{**cause._asdict(), "in_vllm": CAUSES[cause.name].as_dict()} for cause in causes],
        "hidden": [] if waterfall.has_tokens else list(HIDDEN_BY_HASHES),
    }


def _print_pair(args: argparse.Namespace) -> int:
    entries = [token_requests(read_traffic(args, path)) for path in args.pair]
    for path, found in zip(args.pair, entries, strict=True):
        if len(found) != 1:
            raise ConfigError(f"{path} must hold one request, and its tokens or its text")
    block_size = get_block_size(entries[0], args.block_size)
    pair = explain_pair(entries[0][0], entries[1][0], block_size)
    return print_report(args, lambda: asdict(pair), pair.lines)

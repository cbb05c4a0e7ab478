"""`mini-kv why MODEL`: the length of a model's blocks, its reason, and the most tokens that prompts can find."""

import argparse
import re
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from math import lcm
from pathlib import Path
from typing import Any

from mini_kv.command_output import add_json_flag, one_line_errors, print_report
from mini_kv.core.block import BlockHash
from mini_kv.core.errors import ConfigError
from mini_kv.core.kv_cache_interface import (
    AttentionSpec,
    FullAttentionSpec,
    KVCacheGroupSpec,
    KVCacheSpec,
    MambaSpec,
    MLAAttentionSpec,
    UniformTypeKVCacheSpecs,
)
from mini_kv.core.kv_cache_planning import LATENT_STEP, get_kv_cache_groups
from mini_kv.progress_line import ProgressLine
from mini_kv.tools.planning.flags import Flags, add_flags, check_number, read_flags
from mini_kv.tools.planning.models import load_model
from mini_kv.tools.traces.counter_causes import Answer, BlockLengths, Cause, explain_counters
from mini_kv.tools.traces.prompt_hashes import Prompt
from mini_kv.tools.traces.readers.server_counters import Counters, read_log, read_metrics, read_source
from mini_kv.tools.traces.runners import Setup, sequential

LONGEST = 10_000_000
"""Tokens of the longest prompt: its blocks are made and looked up one by one."""
_LEAST_INTERVAL = 512
"""Tokens from one kept window or state to the next. With fewer, they would use most of the memory."""
PAGE, FALLS_PAGE = "book/docs/answers/hit-rate-is-zero.md", "book/docs/answers/hit-rate-falls-to-zero.md"
"""The book's pages on the causes of a hit rate that is zero, or falls to it."""
_TAIL = 1_000
"""Tokens that are different in each request, after the shared ones."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that `run` reads: vLLM's, where vLLM has them."""
    add_flags(parser, nargs="?")
    about = "lengths of prompts, or of the prefix that they share"
    parser.add_argument("--prompt-tokens", type=int, nargs="+", default=[], metavar="N", help=about)
    group = parser.add_argument_group("what your server says of itself, vLLM or SGLang")
    about = "its counters: http://HOST:PORT/metrics, or a file with this text"
    group.add_argument("--metrics", metavar="SOURCE", help=about)
    group.add_argument("--log", metavar="FILE", help="its log, from the start on")
    add_json_flag(parser)


@one_line_errors("why", ConfigError)
def run(args: argparse.Namespace) -> int:
    """Print the answer and return 0, or 2 with one line on stderr if the model or an option cannot be used."""
    is_given = args.model is not None
    counters = _counters(args)
    if counters is not None and (counters.engine == "SGLang" or not (is_given or _is_known(args.model))):
        return _print_counters(args, counters)
    with ProgressLine(sys.stderr, "sending prompts"):
        blocks, rows = answered(args)
        explained = None if counters is None else explain_counters(counters, lengths_of(blocks, counters))

    def lines() -> list[str]:
        root = Path(__file__).parents[4]
        own = [*answer(blocks), *table(blocks, rows), *help_of_flags(args.model, blocks, rows)]
        if counters is None or explained is None:
            return [*own, *more(root)]
        return [
            *_explanation(explained),
            *_of_model(counters, blocks, own, is_asked=bool(rows)),
            *more(root, has_fallen=explained.has_fallen),
        ]

    return print_report(args, lambda: as_dict(blocks, rows, explained), lines)


def _is_known(model: str) -> bool:
    try:
        load_model(model)
    except ConfigError:
        return False
    return True


def _print_counters(args: argparse.Namespace, counters: Counters) -> int:
    """Print what the counters say of a server of which no blocks are planned: SGLang's, or one of an unknown model.

    SGLang's tree of prefixes has no blocks, but pages, by default of one token. vLLM's blocks may be unknown.
    """
    is_sglang, shortest = counters.engine == "SGLang", (counters.block_size or 1) + 1
    lengths = BlockLengths(shortest, shortest, is_late=not is_sglang, is_plain=is_sglang)
    explained = explain_counters(counters, lengths)
    lines = _explanation(explained)
    if not is_sglang:
        lines += ["", f"The model {counters.model} is not known: MODEL, a name or its config.json, tells its blocks."]
    lines += more(Path(__file__).parents[4], has_fallen=explained.has_fallen)
    return print_report(args, lambda: {"model": counters.model, "counters": asdict(explained)}, lambda: lines)


def _counters(args: argparse.Namespace) -> Counters | None:
    """Return what the server's texts say, and use its model and drafts, if none are given. `None`: no text."""
    metrics = None if args.metrics is None else read_metrics(read_source(args.metrics), args.metrics)
    log = None if args.log is None else read_log(read_source(args.log), args.log)
    counters = metrics.beside(log) if metrics and log else metrics or log
    if counters is not None and not args.num_speculative_tokens:
        args.num_speculative_tokens = counters.drafts or 0
    args.model = args.model or (None if counters is None else counters.model)
    if args.model is None and (counters is None or counters.engine == "vLLM"):
        raise ConfigError("MODEL is missing, and no text of a server names it")
    return counters


def lengths_of(blocks: "Blocks", counters: Counters) -> BlockLengths:
    """Return the lengths of prompts that can find something on this server, by its own block size if it says one."""
    unit = counters.block_size or 0
    if unit <= blocks.flags.block_size:  # the default, or the option: the plan knows more
        unit = blocks.unit
    num_blocks = 2 if blocks.flags.num_speculative_tokens else 1
    is_late = (row := _hits_of(blocks, 4 * blocks.unit)).second < row.third
    is_plain = len(blocks.groups) == 1 and isinstance(blocks.groups[0].kv_cache_spec, FullAttentionSpec)
    return BlockLengths(num_blocks * unit + 1, unit + 1, is_late, is_plain)


def _explanation(explained: Answer) -> list[str]:
    """Return the lines about the server's counters."""
    sure = "This is certain." if explained.is_sure else "This is likely, and not certain."
    verdict = f"The cause: {explained.cause}. {sure}"
    if explained.cause is Cause.UNKNOWN:
        verdict = "The cause cannot be told from this."
    elif explained.cause in (Cause.EVICTED_OR_NEW, Cause.DIFFERENT_OR_LATE):
        verdict = f"The cause: {explained.cause}. Counters cannot tell which."
    record = [f"To know more, record {explained.record}"] if explained.record else []
    return [verdict, *explained.sentences, *record]


def _of_model(counters: Counters, blocks: "Blocks", own: list[str], *, is_asked: bool) -> list[str]:
    """Return the lines about the model's blocks, if they say something of this server, or lengths were asked for."""
    if blocks.unit <= blocks.flags.block_size and counters.hits and not is_asked:
        return []  # short blocks have found something
    if counters.block_size in (None, blocks.unit, blocks.flags.block_size):
        return ["", *own]
    if counters.version is not None and not counters.version.startswith("0.33"):
        return ["", f"The server is vLLM {counters.version}: what mini_kv knows of blocks is of 0.33."]
    same = "give the server's --gpu, --tensor-parallel-size and --kv-cache-dtype for the same"
    size = f"The server's blocks have {counters.block_size:,} tokens, and {blocks.unit:,} in vLLM 0.33 as planned"
    return ["", f"{size}: {same}."]


def answered(args: argparse.Namespace) -> tuple["Blocks", list["Hits"]]:
    """Return the model's blocks and what each length of prompt finds. Raises `ConfigError` for a wrong argument."""
    flags = read_flags(args)
    for num_tokens in args.prompt_tokens:
        check_number("prompt_tokens", num_tokens, most=LONGEST)
    blocks = _plan_blocks(args.model, flags)
    return blocks, [_hits_of(blocks, num_tokens) for num_tokens in args.prompt_tokens]


@dataclass(frozen=True, slots=True)
class Blocks:
    """The blocks that a model gets."""

    title: str
    groups: tuple[KVCacheGroupSpec, ...]
    specs: dict[str, KVCacheSpec]
    """Of each layer, before the blocks are made equally large."""
    flags: Flags

    @property
    def unit(self) -> int:
        """Tokens from one place to the next where a hit can end."""
        return lcm(*(group.kv_cache_spec.block_size for group in self.groups))

    @property
    def shortest(self) -> int:
        """Tokens of the shortest prompt that can find anything: whole blocks, and one token to compute.

        With drafts, a hit drops its last block, since a drafter's keys and values depend on the token after it.
        """
        return self.unit * (2 if self.flags.num_speculative_tokens else 1) + 1


def _plan_blocks(model: str, flags: Flags) -> Blocks:
    """Return the blocks of the model with these flags. Raises `ConfigError` as the plan does."""
    loaded, specs = flags.load(model)
    if not any(isinstance(spec, AttentionSpec) for spec in specs.values()):
        raise ConfigError(f"{loaded.title} has states alone, and vLLM caches no prefixes of such a model")
    return Blocks(loaded.title, get_kv_cache_groups(specs), specs, flags)


@dataclass(frozen=True, slots=True)
class Hits:
    """The tokens that requests find at best, in a pool that evicts nothing."""

    num_tokens: int
    repeated: int
    """Tokens that a prompt of this length finds if the same prompt came before."""
    second: int
    """Tokens that a request finds that shares its first `num_tokens` tokens with one request before it."""
    third: int
    """Tokens that the next such request finds."""


def _hits_of(blocks: Blocks, num_tokens: int, retention_interval: int = 0) -> Hits:
    """Return the hits of prompts of this length in mini_kv's own cache manager."""
    drops = blocks.unit if blocks.flags.num_speculative_tokens else 0
    setup = Setup(blocks.groups, retention=None if drops else retention_interval)

    def found(prompts: Sequence[Prompt]) -> list[int]:
        return [max(0, (hit or 0) - drops) for hit in sequential(setup.make_manager(prompts), prompts)]

    def prompt(name: str, length: int) -> Prompt:
        size = setup.hash_block_size
        shared = [f"shared {i}" for i in range(num_tokens // size)]
        own = [f"{name} {i}" for i in range(num_tokens // size, length // size)]
        return Prompt(length, [BlockHash(text.encode()) for text in shared + own])

    _, repeated = found([prompt("same", num_tokens)] * 2)
    _, second, third = found([prompt(name, num_tokens + _TAIL) for name in "ABC"])
    return Hits(num_tokens, repeated, second, third)


def answer(blocks: Blocks) -> list[str]:
    """Return the sentences: the block, the reason for its length, the shortest prompt that finds anything."""
    sizes = sorted({group.kv_cache_spec.block_size for group in blocks.groups})
    lines = [f"{blocks.title}: hits end at multiples of {blocks.unit:,} tokens."]
    if isinstance(blocks.groups[0].kv_cache_spec, UniformTypeKVCacheSpecs) and len(sizes) > 1:
        lines.append(
            f"{_asked(blocks)} The groups have blocks of {_and(sizes)}, as the kernels of compressed layers require."
        )
    elif isinstance(blocks.groups[0].kv_cache_spec, UniformTypeKVCacheSpecs):
        lines.append(_because_of_one_type(blocks))
    elif sizes == [blocks.flags.block_size]:
        lines.append(f"Its blocks have {sizes[0]} tokens: all layers keep equally many bytes per token.")
    elif any(isinstance(spec, MambaSpec) for spec in blocks.specs.values()):
        lines += _because_of_states(blocks)
    else:
        lines.append(
            f"{_asked(blocks)} The groups have blocks of {_and(sizes)}: their layers keep different amounts per token,"
            " and all blocks must be equally large."
        )
    two = ": with drafts, a hit drops its last block, so it takes two" if blocks.flags.num_speculative_tokens else ""
    lines.append(f"A prefix that requests share is found from {blocks.shortest - 1:,} tokens on{two}.")
    lines.append(
        f"The same prompt again is found from {blocks.shortest:,} tokens on, since its last token is always computed."
    )
    return lines


def _asked(blocks: Blocks) -> str:
    """Return the block size that was given, or the default, in a sentence."""
    size = blocks.flags.block_size
    return f"{size} tokens per block are the default." if size == Flags().block_size else f"{size} were requested."


def _because_of_one_type(blocks: Blocks) -> str:
    """Return why layers that keep different amounts have blocks of one length."""
    if blocks.unit == blocks.flags.block_size:
        why = ""
    else:
        why = " The kernels of sparse attention read whole blocks of 64."
    one_table = (
        "Its layers keep different amounts per token, but need equally many blocks, so one table serves them all."
    )
    return f"Its blocks have {blocks.unit} tokens.{why} {one_table}"


def _because_of_states(blocks: Blocks) -> list[str]:
    states = {name: spec for name, spec in blocks.specs.items() if isinstance(spec, MambaSpec)}
    layers = [spec for spec in blocks.specs.values() if isinstance(spec, AttentionSpec)]
    attention = max(layers, key=lambda spec: spec.page_size_bytes)
    state = max(states.values(), key=lambda spec: spec.page_size_bytes)
    per_token = attention.page_size_bytes // attention.block_size
    covers = -(-state.page_size_bytes // per_token)
    lines = [
        f"{_asked(blocks)} But {len(states)} of {len(blocks.specs)} layers keep a state of {state.page_size_bytes:,}"
        f" bytes, which must fit into a block. Attention keeps {per_token:,} bytes per token: {covers:,} tokens.",
    ]
    grid = state.prefill_checkpoint_alignment or 1
    if isinstance(attention, MLAAttentionSpec):
        lines.append(
            f"Rounded up to a multiple of {LATENT_STEP}, as kernels that read latent vectors require: {blocks.unit:,}."
        )
    elif blocks.unit % grid == 0 and grid > blocks.flags.block_size:
        why = "where the prefill's kernel can export a state"
        lines.append(f"Rounded up to a multiple of {grid}, {why}: {blocks.unit:,}.")
    else:
        lines.append(f"Rounded up to whole blocks of {blocks.flags.block_size}: {blocks.unit:,}.")
    return lines


def table(blocks: Blocks, rows: Sequence[Hits]) -> list[str]:
    """Return the hits of prompts of the given lengths, one line each."""
    if not rows:
        return []
    lines = ["", f"{'tokens':>10} {'same prompt':>14} {'2nd to share':>14} {'3rd to share':>14}"]
    for row in rows:
        blocks_needed = "two blocks" if blocks.flags.num_speculative_tokens else "a block"
        note = f"   shorter than {blocks_needed}" if row.num_tokens < blocks.shortest - 1 else ""
        lines.append(f"{row.num_tokens:>10,} {row.repeated:>14,} {row.second:>14,} {row.third:>14,}{note}")
    lines.append(f"  same prompt: repeated. to share: each request has {_TAIL:,} more tokens of its own.")
    if any(row.second < row.third for row in rows):
        lines.append("  By default, vLLM keeps states and windows at the ends of prompts, and where it saw requests")
        lines.append("  differ. The second request shows this place, and the third finds the blocks.")
    if any(row.third for row in rows):
        lines.append("  If a server finds nothing at a length with a number here, the block size is not the reason.")
    return lines


def help_of_flags(model: str, blocks: Blocks, rows: Sequence[Hits]) -> list[str]:
    """Return the flags of vLLM that would bring more hits, each with its effect."""
    better = [*_finer(model, blocks), *_denser(blocks, rows)]
    return ["", "What would help:", *better] if better else []


def _denser(blocks: Blocks, rows: Sequence[Hits]) -> list[str]:
    """Return the flag with which already the second request finds the prefix, if only the third does."""
    late = [row for row in rows if row.second < row.third]
    if not late or blocks.flags.num_speculative_tokens:
        return []
    interval = -(-_LEAST_INTERVAL // blocks.unit) * blocks.unit
    found = _hits_of(blocks, late[-1].num_tokens, interval).second
    if found <= late[-1].second:
        return []
    flag = f"--prefix-cache-retention-interval {interval}"
    return [
        f"  {flag}",
        f"  {'':<30} of {late[-1].num_tokens:,} tokens the second request finds {found:,}, for more memory",
    ]


def _finer(model: str, blocks: Blocks) -> list[str]:
    """Return the flags that make hits finer, each with the block that it brings, and one that may."""
    flags = blocks.flags
    if blocks.unit <= max(flags.block_size, 16):
        return []
    changes: list[tuple[str, Flags]] = [
        ("--gdn-prefill-backend triton", replace(flags, gdn_prefill_backend="triton")),
        ("--kv-cache-dtype auto", replace(flags, kv_cache_dtype="auto")),
        ("no --speculative-config", replace(flags, num_speculative_tokens=0)),
        (f"--block-size {flags.block_size // 2}", replace(flags, block_size=max(1, flags.block_size // 2))),
    ]
    better = []
    for words, changed in changes:
        found = _plan_blocks(model, changed)
        if found.shortest < blocks.shortest and changed.block_size >= 16:
            better.append(f"  {words:<30} hits at multiples of {found.unit:,} tokens, from {found.shortest - 1:,} on")
    if any(isinstance(spec, MambaSpec) for spec in blocks.specs.values()):
        better.append(f"  {'--prefix-match-unit N':<30} hits at multiples of N, which must divide {blocks.unit:,}")
        better.append(f"  {'':<30} (from vLLM's documentation: mini_kv does not model it)")
    return better


def more(root: Path, *, has_fallen: bool = False) -> list[str]:
    """Return a line that names the book's page on a hit rate of zero, or nothing without the book.

    Args:
        root: of the checkout. If its `book/course.toml` has the book's address, the line has the page's.
        has_fallen: name the page on a rate that falls to zero.
    """
    name = FALLS_PAGE if has_fallen else PAGE
    page, course = root / name, root / "book/course.toml"
    if not page.is_file():
        return []
    settings = course.read_text(encoding="utf-8") if course.is_file() else ""
    site = re.search(r'^site = "(https://[^"]+)"', settings, re.MULTILINE)
    place = f"{site[1].rstrip('/')}/{page.parent.name}/{page.stem}/" if site else name
    return ["", f"Other causes of a hit rate of zero: {place}"]


def as_dict(blocks: Blocks, rows: Sequence[Hits], explained: Answer | None = None) -> dict[str, Any]:
    """Return all figures by name, and what the server's counters say, if there are some."""
    return {
        "model": blocks.title,
        "hit_alignment_tokens": blocks.unit,
        "block_sizes": [group.kv_cache_spec.block_size for group in blocks.groups],
        "shortest_prompt_tokens": blocks.shortest,
        "prompts": [
            {
                "tokens": row.num_tokens,
                "same_prompt": row.repeated,
                "second_to_share": row.second,
                "third_to_share": row.third,
            }
            for row in rows
        ],
        **({} if explained is None else {"counters": asdict(explained)}),
    }


def _and(numbers: Sequence[int]) -> str:
    *head, last = [f"{number:,}" for number in numbers]
    return f"{', '.join(head)} and {last}" if head else last

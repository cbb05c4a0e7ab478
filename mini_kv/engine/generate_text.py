"""`mini-kv generate "A block is"`: the engine at a terminal. Torch is imported when the command runs, not before."""

import argparse
import atexit
import io
import os
import shutil
import sys
from collections.abc import Generator, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from mini_kv.core.errors import ConfigError, KVCacheError
from mini_kv.core.kv_cache_planning import CACHE_DTYPES, bytes_per_block, get_kv_cache_groups, with_cache_dtype
from mini_kv.engine.generation_screen import MARKS, Screen, pool_lines, printable, text_lines
from mini_kv.installer import install_extra
from mini_kv.progress_line import ProgressLine

if TYPE_CHECKING:
    from mini_kv.engine.drafts import SpeculativeConfig
    from mini_kv.engine.interface import CausalLM
    from mini_kv.engine.llm_engine import LLMEngine
    from mini_kv.engine.output_processor import DeltaOutput
    from mini_kv.tiers.tier_config import TierConfig

    Deltas = Generator[DeltaOutput, None, None]

LARGEST = 1_000_000
"""The largest value of every whole number except the seed. A pool of this many blocks takes a second to make."""
MOST_ANSWERS = 1000
"""The largest `--n`."""
DISK_CAPACITY = 1024
"""MiB of `--disk-tier`, if nothing is given."""
MOST_BYTES = 64 << 20
"""The largest file that prompts are read from."""


def add_generate_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that `run_generate` reads: first those of every day, then the rarer ones in groups."""
    add = parser.add_argument
    add("prompts", metavar="PROMPT", nargs="*", help="a text to continue; several run in one batch")
    about = "a file with one prompt per line, or - for stdin"
    add("--prompts", dest="files", action="append", default=[], metavar="FILE", help=about)
    add("--chat", action="store_true", help="send each prompt to a chat model, in its template")
    add("--max-tokens", type=int, default=64, metavar="N", help="tokens of each answer (default: 64)")
    add("--n", type=int, default=1, metavar="N", help="answers to each prompt (default: 1)")
    add("--temperature", type=float, default=0.8, metavar="T", help="0: always the likeliest token (default: 0.8)")
    add("--seed", type=int, default=0, metavar="S", help="same seed, same texts (default: 0)")
    add("--stats", action="store_true", help="print the speed on stderr at the end")
    _add_model_arguments(parser)
    _add_sampling_arguments(parser)
    _add_pool_arguments(parser)
    _add_tier_arguments(parser)


def _add_model_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that choose the model."""
    add = parser.add_argument_group("the model").add_argument
    add("--model", type=Path, metavar="DIR", help="a checkpoint's folder (default: the small model)")
    add("--windows", action="store_true", help="a small model: two of three layers see 32 tokens")
    add("--dtype", default="auto", metavar="NAME", help="such as float32 (default: auto, the checkpoint's)")
    add("--untested", action="store_true", help="any architecture with the logits of transformers")


def _add_sampling_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the rarer arguments for sampling."""
    add = parser.add_argument_group("which tokens can be drawn").add_argument
    add("--top-k", type=int, default=0, metavar="K", help="the K likeliest (default: all)")
    add("--top-p", type=float, default=1.0, metavar="P", help="the likeliest, P together (default: 1.0)")
    add("--min-p", type=float, default=0.0, metavar="P", help="at least P times the likeliest's share (default: 0.0)")
    add("--min-tokens", type=int, default=0, metavar="N", help="none that ends it before N tokens (default: 0)")
    add("--logprobs", type=int, metavar="N", help="print log probabilities, of the N likeliest, too")


def _add_pool_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments for the cache, and for drafts."""
    add = parser.add_argument_group("the cache and its steps").add_argument
    add("--num-blocks", type=int, default=65, metavar="N", help="blocks of the pool, null block included (default: 65)")
    add("--block-size", type=int, default=16, metavar="N", help="tokens per block (default: 16)")
    about = f"of keys and values: {', '.join(CACHE_DTYPES)}"
    add("--kv-cache-dtype", choices=CACHE_DTYPES, metavar="NAME", default="auto", help=about)
    add("--drafts", type=int, metavar="N", help="guess N tokens, check them in one step: same text")


def _add_tier_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments for the tiers, which keep the blocks that the pool evicts."""
    add = parser.add_argument_group("a second home for blocks that the pool evicts").add_argument
    add("--memory-tier", type=int, metavar="MIB", help="in this process, up to this many MiB")
    add("--disk-tier", type=Path, metavar="DIR", help="in this folder, which must hold nothing else")
    about = f"with --disk-tier: its size (default: {DISK_CAPACITY})"
    add("--disk-capacity", type=int, metavar="MIB", help=about)
    add("--server-tier", metavar="ADDRESS", help="on a Valkey or Redis server: redis://host:port/0")
    add("--server-cluster", action="store_true", help="the server is one of a cluster")
    about = "cheaper: compute what is slower to reload"
    add("--reload", choices=("always", "cheaper"), default="always", metavar="WHEN", help=about)


def run_generate(args: argparse.Namespace, **parts: Any) -> int:
    """Write the model's text for each prompt and return the exit status. `parts` go to `LLMEngine`.

    On a terminal the texts and the blocks are drawn after every step. Elsewhere only the texts are written.

    0: done. 2: an argument, a prompt or the checkpoint is wrong. Then stderr gets one line and stdout nothing.
    """
    prepared = prepare(args, **parts)
    if prepared is None:
        return 2
    show(*prepared, args)
    return 0


def prepare(args: argparse.Namespace, **parts: Any) -> "tuple[LLMEngine, Deltas] | None":
    """Return an engine with all prompts added, and its outputs. On failure print an error and return `None`.

    `parts` go to `LLMEngine`.
    """
    try:
        _read_files(args)
        with ProgressLine(sys.stderr, "loading the model"):
            engine = make_engine(args, **parts)
        return engine, start(engine, args)
    except ModuleNotFoundError as error:
        print(f"mini-kv generate: {error.name} is not installed: {install_extra('engine')}", file=sys.stderr)
    except (KVCacheError, OSError) as error:
        print(f"mini-kv generate: {printable(str(error))}", file=sys.stderr)  # a chat template may say anything
    return None


def _read_files(args: argparse.Namespace) -> None:
    """Append the files' lines to the prompts, once. Raises `ConfigError` if there is still no prompt."""
    files, args.files = args.files, []
    for name in files:
        with open(0 if name == "-" else name, "rb", closefd=name != "-") as file:
            content = file.read(MOST_BYTES + 1)
        if len(content) > MOST_BYTES:
            raise ConfigError(f"--prompts {name!r} has more than {MOST_BYTES:,} bytes")
        lines = content.decode("utf-8-sig", errors="replace").split("\n")
        args.prompts += [line.removesuffix("\r") for line in lines if line.strip()]
    if not args.prompts:
        raise ConfigError("there is no prompt: write one, or give --prompts FILE with a line that is not blank")


def show(engine: "LLMEngine", stream: "Deltas", args: argparse.Namespace) -> None:
    """Write the texts as they grow. Then write the figures to stderr, if requested."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a prompt, or a model, may say what this terminal cannot show
    between = "\n" if args.chat else ""
    texts = [
        printable(prompt.encode("utf-8", "surrogateescape").decode("utf-8", errors="replace")) + between
        for prompt in args.prompts
        for _ in range(args.n)
    ]
    said: list[list[DeltaOutput]] = [[] for _ in texts]
    stream = _noted(stream, said, args.n)
    if sys.stdout.isatty() and os.environ.get("TERM") != "dumb":
        show_live(engine, stream, texts, sys.stdout, args.n)
    else:
        write_plain(stream, texts, sys.stdout, args.n)
    if args.logprobs is not None:
        for number, deltas in enumerate(said, start=1):
            print("\n".join(logprob_lines(number, deltas)))
    if args.stats:
        stats = engine.stats
        print(engine.stat_logger.line(), file=sys.stderr)
        print(f"{stats.num_steps} steps, {stats.num_scheduled_tokens} tokens through the model", file=sys.stderr)
        if args.drafts is not None:
            print(f"{stats.num_accepted_tokens} of {stats.num_draft_tokens} drafts were right", file=sys.stderr)


def _noted(stream: "Deltas", said: "list[list[DeltaOutput]]", n: int) -> "Deltas":
    """Yield the outputs, and collect them by text."""
    for delta in stream:
        said[int(delta.request_id) * n + delta.index].append(delta)
        yield delta


def logprob_lines(number: int, deltas: "Iterable[DeltaOutput]") -> list[str]:
    """Return a line per token of a text: the token, its log probability, its rank, and the likeliest tokens."""
    lines = [
        f"[{number}] natural logarithms of probabilities, and ranks: the token that was chosen, then the likeliest"
    ]
    for delta in deltas:
        told = [
            f"{printable(repr(each.decoded_token)):>12} {each.logprob:7.3f} #{each.rank}"
            for each in (delta.logprobs or {}).values()
        ]
        lines.append("  ".join(told))
    return lines


def make_engine(args: argparse.Namespace, **parts: Any) -> "LLMEngine":
    """Load the checkpoint and build the engine. `parts` go to `LLMEngine`.

    Raises `ModuleNotFoundError` if torch or safetensors is missing.
    """
    _check_numbers(args)  # before torch is loaded, which takes seconds
    kv_tiers = _tier_config(args)
    from mini_kv.engine.config import EngineConfig
    from mini_kv.engine.llm import load
    from mini_kv.engine.tiered_engine import TieredEngine, open_engine

    model, tokenizer = load(model_folder(args), dtype=args.dtype, untested=args.untested)
    _check_memory(model, args)
    config = EngineConfig(
        args.block_size,
        args.num_blocks,
        kv_cache_dtype=args.kv_cache_dtype,
        speculative_config=_speculative_config(args.drafts),
        kv_tiers=kv_tiers,
    )
    engine = open_engine(model, tokenizer, config, **parts)
    if isinstance(engine, TieredEngine):
        atexit.register(engine.close)
        if engine.tiers.disk is not None and engine.tiers.disk.failures["damaged index"]:
            advice = "it was set aside (index.sqlite3.damaged), and this tier starts empty"
            folder = printable(str(args.disk_tier))
            print(f"mini-kv generate: the index in {folder} is damaged: {advice}", file=sys.stderr)
    return engine


def _check_numbers(args: argparse.Namespace) -> None:
    """Raise `ConfigError` for a number that no model can use."""
    for option in ("num_blocks", "block_size", "max_tokens", "top_k", "n"):
        most = MOST_ANSWERS if option == "n" else LARGEST
        if getattr(args, option) > most:
            name = option.replace("_", "-")
            raise ConfigError(f"--{name} is {getattr(args, option)}, it must be at most {most:,}")
    if args.max_tokens < 1:
        raise ConfigError(f"--max-tokens is {args.max_tokens}, it must be at least 1")


def model_folder(args: argparse.Namespace) -> Path | None:
    """Return the checkpoint's folder. `None`: the small model."""
    from mini_kv.engine.checkpoint import tiny_folder

    if args.windows and args.model is not None:
        raise ConfigError(f"--windows is a small model of its own, and --model says {str(args.model)!r}: give one")
    return tiny_folder(windows=True) if args.windows else args.model


def _speculative_config(num_drafts: int | None) -> "SpeculativeConfig | None":
    """Return the config for drafts: they follow a match of the text's last 2 to 4 tokens."""
    from mini_kv.engine.drafts import SpeculativeConfig

    return None if num_drafts is None else SpeculativeConfig(num_drafts, prompt_lookup_min=2, prompt_lookup_max=4)


def _tier_config(args: argparse.Namespace) -> "TierConfig | None":
    """Return the requested tiers, or `None` if no tier was requested."""
    from mini_kv.tiers.tier_config import TierConfig

    if args.disk_tier is None and args.disk_capacity is not None:
        raise ConfigError("--disk-capacity needs the tier whose size it is: --disk-tier DIR")
    if args.server_tier is None and args.server_cluster:
        raise ConfigError("--server-cluster needs the server: --server-tier ADDRESS")
    if (args.memory_tier, args.disk_tier, args.server_tier) == (None, None, None):
        if args.reload != "always":
            raise ConfigError(f"--reload {args.reload} needs a tier to reload from: --memory-tier, for instance")
        return None
    memory_tier = 64 if args.memory_tier is None else args.memory_tier
    disk_capacity = DISK_CAPACITY if args.disk_capacity is None else args.disk_capacity
    for option, value in (("--memory-tier", memory_tier), ("--disk-capacity", disk_capacity)):
        if not 1 <= value <= LARGEST:
            raise ConfigError(f"{option} is {value}, it must be 1 to {LARGEST:,} MiB")
    return TierConfig(
        memory_tier << 20,
        disk_folder=args.disk_tier,
        disk_bytes=disk_capacity << 20,
        server=args.server_tier,
        is_cluster=args.server_cluster,
        reload=args.reload,
    )


def _check_memory(model: "CausalLM", args: argparse.Namespace) -> None:
    """Raise `ConfigError` if the machine cannot allocate the memory of the pool."""
    import torch

    num_blocks, block_size = args.num_blocks, args.block_size
    specs = with_cache_dtype(model.get_kv_cache_spec(block_size), args.kv_cache_dtype)
    num_bytes = num_blocks * bytes_per_block(get_kv_cache_groups(specs))
    try:
        torch.empty(max(num_bytes, 0), dtype=torch.uint8, device=model.device)
    except (MemoryError, RuntimeError):
        pool = f"a pool of {num_blocks:,} blocks of {block_size:,} tokens"
        raise ConfigError(f"{pool} takes {num_bytes:,} bytes, which this machine cannot allocate") from None


def start(engine: "LLMEngine", args: argparse.Namespace) -> "Deltas":
    """Add all prompts. After an error of `LLMEngine.stream` none is added."""
    from mini_kv.engine.sampling import SamplingParams

    params = SamplingParams(
        max_tokens=args.max_tokens,
        temperature=args.temperature,
        top_k=args.top_k,
        top_p=args.top_p,
        min_p=args.min_p,
        min_tokens=args.min_tokens,
        logprobs=args.logprobs,
        seed=args.seed,
        stop_token_ids=getattr(engine.model, "eos_token_ids", ()),  # a chat model has several
    )
    if not args.chat:
        return engine.stream(args.prompts, params, n=args.n)
    from mini_kv.engine.llm import chat_prompts

    messages = [[{"role": "user", "content": prompt}] for prompt in args.prompts]
    return engine.stream([token_ids for _, token_ids in chat_prompts(engine.tokenizer, messages)], params, n=args.n)


def write_plain(stream: "Iterable[DeltaOutput]", texts: list[str], out: TextIO, n: int) -> None:
    """Write one text as it grows, or several when all are done, each with its number."""
    live = len(texts) == 1
    if live:
        out.write(texts[0])
    for delta in stream:
        new_text = printable(delta.new_text)
        texts[int(delta.request_id) * n + delta.index] += new_text
        if live:
            out.write(new_text)
            out.flush()
    out.write("\n" if live else "".join(f"[{number}] {text}\n" for number, text in enumerate(texts, start=1)))


def show_live(engine: "LLMEngine", stream: "Iterable[DeltaOutput]", texts: list[str], out: TextIO, n: int = 1) -> None:
    """Draw the texts and the pool after every step. At the end leave the complete texts and the last state of the pool.

    There are n texts per prompt, in the order of the prompts.
    """
    screen = Screen(out)
    num_steps = 0
    for delta in stream:
        texts[int(delta.request_id) * n + delta.index] += printable(delta.new_text)
        if engine.stats.num_steps > num_steps:
            num_steps = engine.stats.num_steps
            columns, rows = shutil.get_terminal_size()
            below = _below_the_texts(engine, columns)
            # Lines that have left the screen at the top cannot be drawn again: keep to what fits.
            above = text_lines(texts, columns - 1)[-max(1, rows - len(below) - 1) :]
            screen.draw([*above, *below])
    screen.clear()
    columns = shutil.get_terminal_size().columns
    screen.draw([*text_lines(texts, columns - 1), *_below_the_texts(engine, columns)])


def _below_the_texts(engine: "LLMEngine", columns: int) -> list[str]:
    """Return the drawing of the pool, and the meaning of its marks."""
    pool = engine.kv_cache_manager.block_pool
    num_held = len(pool.blocks) - 1 - pool.num_free_blocks
    heading = f"{num_held} of {len(pool.blocks) - 1} blocks held, step {engine.stats.num_steps}"
    return ["", heading[: columns - 1], *pool_lines(pool, columns - 1), MARKS[: columns - 1]]

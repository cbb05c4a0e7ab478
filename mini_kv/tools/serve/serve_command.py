"""`mini-kv serve`: an OpenAI-compatible endpoint, with the small model or a checkpoint."""

import argparse
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mini_kv.core.errors import ConfigError, KVCacheError
from mini_kv.installer import install_extra
from mini_kv.typed_numbers import output_file, whole_number

if TYPE_CHECKING:
    from mini_kv.engine.llm_engine import LLMEngine
    from mini_kv.tools.serve.app import Service
    from mini_kv.tools.serve.live_story import LiveStory

LOOPBACK = ("127.0.0.1", "localhost", "::1")
SMALL_POOL, SMALL_BLOCK, BLOCK = 97, 8, 16
"""Default number of blocks of the small model's pool, and tokens per block. So few blocks can be drawn with their text.
With a checkpoint a block has 16 tokens, as in vLLM."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    add = parser.add_argument
    add("--model", type=Path, metavar="DIR", help="a checkpoint's folder (default: the small model)")
    add("--windows", action="store_true", help="the small model with sliding-window layers")
    add("--labs", metavar="PATH", help="your labs' parts: starter, solution, or a folder")
    about = "to listen on (default: 8000; 0: any free port)"
    add("--port", type=whole_number(0, 65_535), default=8000, metavar="PORT", help=about)
    about = f"of the pool (default: {SMALL_POOL}, or enough for a full text)"
    add("--num-blocks", type=whole_number(1, 10_000_000), metavar="N", help=about)
    about = f"tokens per block (default: {SMALL_BLOCK}; with --model: {BLOCK})"
    add("--block-size", type=whole_number(1, 100_000), metavar="N", help=about)
    about = "texts that run at once (default: 128)"
    add("--max-num-seqs", type=whole_number(1, 100_000), default=128, metavar="N", help=about)
    about = "texts that may wait (default: 256)"
    add("--max-waiting", type=whole_number(0, 1_000_000), default=256, metavar="N", help=about)
    add("--dtype", default="auto", metavar="NAME", help="the model's dtype (default: auto)")
    add("--served-model-name", metavar="NAME", help="the name for clients (default: the folder's)")
    add = parser.add_argument_group("access").add_argument
    add("--host", default="127.0.0.1", help="to listen on (default: 127.0.0.1, this machine)")
    about = "keys, one per line; clients with other keys share no blocks"
    add("--api-keys", type=Path, metavar="FILE", help=about)
    add("--open", action="store_true", help="serve every client on a public address, without keys")
    about = "It asks for the key. Off with several keys, because it shows all clients' texts."
    add = parser.add_argument_group("the page at /", about).add_argument
    add("--no-page", action="store_true", help="serve no page")
    about = "minimum time of a step, so that you can follow it"
    add("--step-ms", type=whole_number(0, 60_000), default=0, metavar="MS", help=about)
    add("--record", type=output_file(), metavar="FILE", help="write the story at the end, for mini-kv story FILE")


def run(args: argparse.Namespace) -> int:
    """Serve until TERM or Ctrl-C and return the exit status: 0, or 2 if the arguments cannot be used."""
    try:
        from mini_kv.tools.serve.server import Server

        server = Server(make_service(args, _read_keys(args)), args.host, args.port)
    except ModuleNotFoundError as error:
        print(f"mini-kv serve: {error.name} is not installed: {install_extra('serve')}", file=sys.stderr)
        return 2
    except (KVCacheError, OSError) as error:
        print(f"mini-kv serve: {error}", file=sys.stderr)
        return 2
    try:
        server.run()
    except SystemExit:  # the address is in use, which uvicorn has said
        return 2
    return 0


def _read_keys(args: argparse.Namespace) -> list[str]:
    """Return the keys. Raises `ConfigError` for a public address without keys, unless an option allows it."""
    if args.api_keys is None:
        if args.host not in LOOPBACK and not args.open:
            message = f"--host {args.host} can be reached from other machines: add --api-keys FILE or --open"
            raise ConfigError(message)
        return []
    lines = [line.strip() for line in args.api_keys.read_text(encoding="utf-8").splitlines()]
    keys = [line for line in lines if line and not line.startswith("#")]
    if not keys or not all(re.fullmatch("[!-~]{8,}", key) for key in keys):
        raise ConfigError(f"--api-keys {args.api_keys}: a key is a line of 8 characters or more, without spaces")
    return keys


def make_service(args: argparse.Namespace, keys: list[str]) -> "Service":
    """Return the endpoint's service, with its engine. Raises `KVCacheError` if it cannot be made."""
    from mini_kv.engine.generate_text import model_folder
    from mini_kv.tools.serve.app import Service
    from mini_kv.tools.serve.engine_loop import EngineLoop, Watcher
    from mini_kv.tools.serve.live_page import LivePage, save
    from mini_kv.tools.serve.prometheus import Metrics
    from mini_kv.tools.serve.tenants import Tenants

    tenants = Tenants(keys)
    engine, live = make_engine(args, tenants.are_several)
    folder = model_folder(args)
    name = args.served_model_name or (folder.resolve().name if folder is not None else "tiny")
    metrics = Metrics(engine, name)
    watchers: list[Watcher] = [metrics] if live is None else [metrics, live]
    loop = EngineLoop(engine, max_waiting=args.max_waiting, least_step_s=args.step_ms / 1000, watchers=watchers)
    if live is None:
        return Service(loop, name, metrics, tenants)
    head = {"model": name, "key": bool(keys), "longest": engine.config.scheduler.max_model_len}

    def keep() -> None:
        if args.record is not None:
            save(live.recorded() or {}, args.record)

    return Service(loop, name, metrics, tenants, LivePage(live, loop, tenants, head), on_end=keep)


def make_engine(args: argparse.Namespace, multi_tenant: bool) -> "tuple[LLMEngine, LiveStory | None]":
    """Return the engine, and its `LiveStory` if there is a page. Raises `KVCacheError`."""
    from mini_kv.engine.generate_text import model_folder
    from mini_kv.engine.llm import LLM
    from mini_kv.tools.serve.live_story import LiveStory, plain_manager

    parts: dict[str, Any] = {}
    if args.labs is not None:
        lines, parts = args.parts_of_labs(args.labs, args.windows)
        print("\n".join(lines), end="\n\n", flush=True)
    live = None
    if not (args.no_page or multi_tenant):
        live = LiveStory(parts.get("make_manager", plain_manager), record=args.record is not None)
        parts["make_manager"] = live.make_manager
    is_small = args.model is None
    num_blocks = SMALL_POOL if args.num_blocks is None and is_small else args.num_blocks
    llm = LLM(
        model_folder(args),
        dtype=args.dtype,
        parts=parts,
        num_blocks=num_blocks,
        block_size=args.block_size or (SMALL_BLOCK if is_small else BLOCK),
        max_num_seqs=args.max_num_seqs,
        multi_tenant=multi_tenant,
    )
    if live is not None:
        live.watch(llm.llm_engine)
    return llm.llm_engine, live

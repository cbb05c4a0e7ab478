"""`mini-kv generate PROMPT`: generate text, with `--labs` on an engine with the learner's parts."""

import argparse
import sys
from pathlib import Path

from mini_kv.core.errors import ConfigError
from mini_kv.course.labkit.lab import UnknownLabError, find_checkout
from mini_kv.engine.generate_text import add_generate_arguments, run_generate
from mini_kv.installer import install_extra


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the engine, of its events, and of the learner's parts."""
    add_generate_arguments(parser)
    about = "your labs' parts: starter, solution, or a folder"
    parser.add_argument("--labs", metavar="PATH", help=about)
    group = parser.add_argument_group("events of the cache, as vLLM has them (mini-kv attach)")
    group.add_argument("--kv-events", metavar="ENDPOINT", help="publish them at tcp://127.0.0.1:5557")
    group.add_argument("--kv-events-replay", metavar="ENDPOINT", help="address that sends missed batches again")


def run(args: argparse.Namespace) -> int:
    """Write the model's text for each prompt and return the exit status."""
    if args.kv_events is not None or args.kv_events_replay is not None:
        return _run_publishing(args)
    if args.labs is None:
        return run_generate(args)
    from mini_kv.course.finale.command import run_with_labs  # a while to load, and only this case needs it

    try:
        root = find_checkout(Path.cwd())
    except UnknownLabError as error:
        print(f"mini-kv generate: {error}", file=sys.stderr)
        return 2
    return run_with_labs(args, root)


def _run_publishing(args: argparse.Namespace) -> int:
    """Generate the texts on an engine that publishes its cache's events."""
    try:
        if (args.memory_tier, args.disk_tier, args.server_tier, args.labs) != (None, None, None, None):
            raise ConfigError("--kv-events reports the engine's own pool only: omit --labs and tiers")
        if args.kv_events is None:
            raise ConfigError("--kv-events-replay needs --kv-events, whose batches it repeats")
        from mini_kv.tools.serve.kv_events_publisher import ZmqEventPublisher, publishing

        publisher = ZmqEventPublisher(args.kv_events, args.kv_events_replay)
    except ConfigError as error:
        print(f"mini-kv generate: {error}", file=sys.stderr)
        return 2
    except ModuleNotFoundError as error:
        print(f"mini-kv generate: {error.name} is not installed: {install_extra('events')}", file=sys.stderr)
        return 2
    try:
        return run_generate(args, **publishing(publisher))
    finally:
        publisher.shutdown()

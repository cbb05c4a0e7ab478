"""The command `mini-kv`: one verb, one meaning."""

import argparse
import os
import sys
from collections.abc import Sequence

from mini_kv import __version__
from mini_kv.trace.scenario import ScenarioError, load_scenario, scenario_names
from mini_kv.viz.terminal import play_in_terminal
from mini_kv.workload.replay_command import add_replay_arguments, run_replay


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status: 0 done, 2 cannot be done as asked, 130 interrupted."""
    parser = build_parser()
    args = parser.parse_args(argv)
    if args.command is None:
        parser.print_help()
        return 0
    try:
        status: int = args.run(args)
        sys.stdout.flush()
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader (`| head`) has seen enough. Point stdout elsewhere, or Python complains again while it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return status


def build_parser() -> argparse.ArgumentParser:
    """Return the parser with all verbs."""
    parser = argparse.ArgumentParser(prog="mini-kv", description="A small, real KV-cache engine to learn from.")
    parser.add_argument("--version", action="version", version=f"mini-kv {__version__}")
    verbs = parser.add_subparsers(dest="command", metavar="VERB")

    story = verbs.add_parser("story", help="play a scenario: what happens to each block, and why")
    story.add_argument("name", metavar="NAME", help=f"one of: {', '.join(scenario_names())}")
    story.add_argument("--plain", action="store_true", help="print everything at once, wait for no key")
    story.set_defaults(run=run_story)

    replay = verbs.add_parser("replay", help="run a production trace through the cache and report the hit rate")
    add_replay_arguments(replay)
    replay.set_defaults(run=run_replay)
    return parser


def run_story(args: argparse.Namespace) -> int:
    """Play a scenario; step by step if a person is at the terminal."""
    try:
        scenario = load_scenario(args.name)
    except ScenarioError as error:
        print(f"mini-kv story: {error}", file=sys.stderr)
        return 2
    interactive = sys.stdin.isatty() and sys.stdout.isatty() and not args.plain
    play_in_terminal(scenario, sys.stdout, keys=sys.stdin if interactive else None)
    return 0


if __name__ == "__main__":
    sys.exit(main())

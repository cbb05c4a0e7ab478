"""`mini-kv replay TRACE.jsonl`: the command around `replay`."""

import argparse
import json
import sys
from typing import TextIO

from mini_kv.core.errors import ConfigError
from mini_kv.policy.catalogue import POLICIES, find_policy
from mini_kv.policy.eviction import parts_of
from mini_kv.traces.formats import add_trace_arguments, read_traffic
from mini_kv.traces.mooncake import TraceError
from mini_kv.traces.prompts import as_hashes
from mini_kv.traces.replay import ReplayReport, replay


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that `run` reads."""
    add_trace_arguments(parser)
    parser.add_argument("--block-size", type=int, metavar="N", help="tokens per block, for a trace of tokens")
    parser.add_argument(
        "--num-blocks",
        type=int,
        metavar="N",
        help="size of the pool in blocks, the null block included (default: no limit)",
    )
    parser.add_argument(
        "--concurrency",
        type=int,
        default=1,
        metavar="C",
        help="how many requests hold their blocks at once, at most (default: 1)",
    )
    parser.add_argument(
        "--policy",
        metavar="NAME",
        default="lru",
        help=f"which cached block goes first: {', '.join(POLICIES)}, or your own as file.py:Class (default: lru)",
    )
    parser.add_argument("--json", action="store_true", help="print the report as one JSON object")


def run(args: argparse.Namespace) -> int:
    """Replay the trace and print the report; return the exit status.

    0: done. 2: the trace or an argument is wrong, said in one line on stderr, and nothing was replayed.
    130: interrupted with Ctrl-C.
    """
    bar = ProgressBar(sys.stderr)
    try:
        policy = find_policy(args.policy)
        trace = as_hashes(read_traffic(args), args.block_size)
        bar.total = len(trace)
        parts = parts_of(policy)
        report = replay(trace, args.num_blocks, concurrency=args.concurrency, parts=parts, on_progress=bar.show)
    except KeyboardInterrupt:
        return 130
    except (TraceError, ConfigError) as error:
        print(f"mini-kv replay: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"mini-kv replay: {args.trace}: {error.strerror or error}", file=sys.stderr)
        return 2
    except ValueError as error:  # a NUL in the path
        print(f"mini-kv replay: {args.trace!r}: {error}", file=sys.stderr)
        return 2
    finally:
        bar.clear()
    print(json.dumps(report.as_dict(), indent=2) if args.json else _format_report(report))
    return 0


def _format_report(report: ReplayReport) -> str:
    """Return the report as text, one figure per line with the numbers that it is made of."""
    r = report
    lines = [
        f"{r.requests:,} requests, {r.distinct_blocks:,} different full blocks of {r.block_size} tokens",
        f"pool of {r.num_blocks:,} blocks (one is the null block), at most {r.concurrency:,} running at once",
        "",
        f"hit rate by tokens  {_percent(r.hit_rate_of_prompt_tokens):>9}  "
        f"{r.hit_tokens:,} of {r.prompt_tokens:,} prompt tokens were in the cache",
        f"hit rate by blocks  {_percent(r.hit_rate_of_full_blocks):>9}  "
        f"{r.hit_blocks:,} of {r.full_blocks:,} full blocks of prompts (partial ones are never cached)",
        f"warm requests       {r.requests_warm:>9,}  "
        f"found a prefix: {_percent(r.hit_rate_of_warm_prompt_tokens)} of their {r.warm_prompt_tokens:,} tokens",
        f"cold requests       {r.requests_cold:>9,}  found nothing",
        f"refused requests    {r.requests_refused:>9,}  "
        f"are larger than the pool: {r.prompt_tokens_refused:,} prompt tokens, left out above",
        f"evictions           {r.evictions:>9,}  cached blocks lost their key, since their memory was needed",
        f"peak usage          {_percent(r.peak_usage):>9}  {r.peak_held_blocks:,} blocks were held at once",
        f"time                {r.seconds:>7.2f} s  without reading the file",
    ]
    return "\n".join(lines)


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.2f} %"


class ProgressBar:
    """A line on a terminal that is redrawn in place; silent on anything but a terminal."""

    def __init__(self, stream: TextIO) -> None:
        self.total = 1
        """What is 100 %."""
        self._stream = stream
        self._is_terminal = stream.isatty()
        self._drawn = ""

    def show(self, done: int) -> None:
        """Draw the bar with `done` of `total` filled, if that looks different from what is there."""
        percent = 100 * done // self.total
        text = f"{percent:3} % [{'#' * (percent // 5):<20}]"
        if self._is_terminal and text != self._drawn:
            self._drawn = text
            self._stream.write("\r" + text)
            self._stream.flush()

    def clear(self) -> None:
        """Leave the terminal as if the bar had never been there."""
        if self._drawn:
            # Two cells more: on Ctrl-C the terminal writes ^C behind the bar.
            self._stream.write("\r" + " " * (len(self._drawn) + 2) + "\r")
            self._stream.flush()

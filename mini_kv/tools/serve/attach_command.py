"""`mini-kv attach tcp://127.0.0.1:5557`: another engine's cache, drawn from its events or from a recording."""

import argparse
import json
import shutil
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING

from mini_kv.core.errors import ConfigError
from mini_kv.engine.generation_screen import Screen, printable
from mini_kv.installer import install_extra
from mini_kv.typed_numbers import number_above_zero, output_file

if TYPE_CHECKING:
    from mini_kv.tools.serve.attach import Subscriber
    from mini_kv.tools.serve.kv_events import KVEventBatch

_DRAW_EVERY_S = 0.1
_METRICS_EVERY_S = 2.0
_LONGEST_PAUSE_S = 0.3
"""Longest pause in seconds between two batches of a recording, on a terminal."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that `run` reads."""
    parser.add_argument("source", help="where events are published (tcp://HOST:PORT, ipc://PATH), or a recorded file")
    parser.add_argument("--replay", metavar="ENDPOINT", help="the address that sends missed batches again")
    parser.add_argument("--topic", default="", help="listen to this topic only (default: to all topics)")
    parser.add_argument("--metrics", metavar="URL", help="also show the server's counters: http://HOST:PORT/metrics")
    parser.add_argument(
        "--record", type=output_file(), metavar="FILE", help="write all batches, for `mini-kv attach FILE`"
    )
    parser.add_argument(
        "--trace",
        type=output_file(),
        metavar="FILE",
        help="write the requests that were seen, for `mini-kv curve` and `explain`",
    )
    parser.add_argument(
        "--seconds",
        type=number_above_zero(1_000_000),
        metavar="S",
        help="stop after S seconds (default: at Ctrl-C)",
    )


def run(args: argparse.Namespace) -> int:
    """Draw until the end and return 0, or print an error and return 2 if there is no source of events."""
    try:
        if args.metrics is not None and not args.metrics.startswith(("http://", "https://")):
            raise ConfigError(f"--metrics {args.metrics!r} is not an http address")
        if "://" in args.source:
            return _attach(args)
        if not Path(args.source).is_file():
            raise ConfigError(f"{args.source!r} is neither an address, such as tcp://127.0.0.1:5557, nor a file")
        return _play(args)
    except ModuleNotFoundError as error:
        print(f"mini-kv attach: {error.name} is not installed: {install_extra('events')}", file=sys.stderr)
    except ConfigError as error:
        print(f"mini-kv attach: {printable(str(error))}", file=sys.stderr)
    return 2


def _attach(args: argparse.Namespace) -> int:
    """Listen to a running engine."""
    from mini_kv.tools.serve.attach import Subscriber

    subscriber = Subscriber(args.source, args.replay, args.topic)
    try:
        with suppress(KeyboardInterrupt):
            record = None if args.record is None else args.record.open("wb")
            watch = _Watch(args, subscriber, record)
            _listen(watch, subscriber, args.seconds)
        return watch.end()
    finally:
        subscriber.close()


def _listen(watch: "_Watch", subscriber: "Subscriber", seconds: float | None) -> None:
    """Apply the messages as they arrive, until the time is over."""
    begin = time.monotonic()
    watch.draw()
    if watch.args.replay is not None:
        watch.follower.catch_up()
    while seconds is None or time.monotonic() < begin + seconds:
        frames = subscriber.hear(_DRAW_EVERY_S)
        if frames is not None:
            watch.follower.receive(frames)
        watch.draw()


def _play(args: argparse.Namespace) -> int:
    """Play a recording. On a terminal it keeps the recorded pace, with shorter pauses. Elsewhere it runs at once."""
    from mini_kv.tools.serve.attach import read_batches

    watch = _Watch(args, None, None)
    before: float | None = None
    with suppress(KeyboardInterrupt):
        for number, batch in read_batches(Path(args.source)):
            if watch.screen is not None and before is not None:
                time.sleep(min(max(0.0, batch.ts - before), _LONGEST_PAUSE_S))
            before = batch.ts
            watch.follower.take(number, batch)
            watch.draw()
    return watch.end()


class _Watch:
    """A mirror, its recording and trace, and the screen that shows it."""

    def __init__(self, args: argparse.Namespace, subscriber: "Subscriber | None", record: IO[bytes] | None) -> None:
        from mini_kv.tools.serve.mirror import Follower, Mirror
        from mini_kv.tools.serve.mirror_trace import SeenRequests

        self.args, self._record = args, record
        self.mirror = Mirror()
        self.seen = None if args.trace is None else SeenRequests(self.mirror)  # grows with every request
        self.follower = Follower(self.mirror, subscriber.replay if subscriber else lambda first: None, self._note)
        self.screen = Screen(sys.stdout) if sys.stdout.isatty() else None
        self._next_draw = self._next_metrics = 0.0
        self._metrics = ""

    def _note(self, number: int, batch: "KVEventBatch") -> None:
        from mini_kv.tools.serve.attach import write_batch

        if self.seen is not None:
            self.seen.apply(number, batch)
        if self._record is not None:
            write_batch(self._record, number, batch)

    def draw(self) -> None:
        """Draw on a terminal, at most every 0.1 seconds."""
        if self.screen is not None and time.monotonic() >= self._next_draw:
            self._next_draw = time.monotonic() + _DRAW_EVERY_S
            columns, rows = shutil.get_terminal_size()
            self.screen.draw([line[: columns - 1] for line in self._lines(columns - 1, rows - 1)])

    def _lines(self, width: int, most: int) -> Iterable[str]:
        from mini_kv.tools.serve.attach_draw import MARKS, state_lines, tree_lines

        source = printable(self.args.source)
        complaints = [f"cannot be read: {printable(each)}" for each in [*self.follower.complaints][-1:]]
        if not self.follower.next_number:
            return [f"{source}: no batch has arrived yet", *self._metrics_lines(), *complaints]
        asked = f", {self.follower.num_asked_for:,} of them asked for" if self.follower.num_asked_for else ""
        lines = [f"{source}: {self.follower.next_number:,} batches{asked}", *state_lines(self.mirror)]
        lines += [*self._metrics_lines(), *complaints]
        return [*lines, "", *tree_lines(self.mirror, width, max(1, most - len(lines) - 3)), "", MARKS]

    def _metrics_lines(self) -> list[str]:
        from mini_kv.tools.serve.attach import read_metrics
        from mini_kv.tools.serve.attach_draw import metrics_line

        if self.args.metrics is None:
            return []
        if time.monotonic() >= self._next_metrics:
            self._metrics = printable(metrics_line(read_metrics(self.args.metrics)))
            self._next_metrics = time.monotonic() + _METRICS_EVERY_S
        return [self._metrics]

    def end(self) -> int:
        """Draw the last state, write the trace, print a summary and links. Return 1 if no batch arrived, else 0."""
        from mini_kv.tools.serve.attach_draw import source_lines

        if self._record is not None:
            self._record.close()
        if self.screen is not None:
            self.screen.clear()
        print("\n".join(self._lines(width=100, most=24)))
        if self.seen is not None:
            lines = [json.dumps(line) for line in self.seen.trace()]
            self.args.trace.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
            lost = f"; {self.seen.num_headless:,} blocks have an unknown prefix" if self.seen.num_headless else ""
            print(f"{len(lines):,} requests in {self.args.trace}{lost}")
        print("".join(f"{line}\n" for line in source_lines(self.mirror)), end="")
        return 0 if self.follower.next_number else 1

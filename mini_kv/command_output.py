"""The output of `plan`, `why` and the commands on traces: lines or JSON, and one line on stderr for an error."""

import argparse
import json
import sys
from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any

from mini_kv.messages import wrapped

Run = Callable[[argparse.Namespace], int]


def add_json_flag(parser: argparse.ArgumentParser, about: str = "print the figures as one JSON object") -> None:
    """Add the argument that `print_report` reads."""
    parser.add_argument("--json", action="store_true", help=about)


def print_report(
    args: argparse.Namespace, figures: Callable[[], Any], lines: Callable[[], Iterable[str]], *, wrap: bool = True
) -> int:
    """Print the figures if JSON was requested, otherwise the lines. Return the exit status 0. `wrap`: as `wrapped`."""
    if args.json:
        print(json.dumps(figures(), indent=2))
    else:
        print("\n".join(wrapped(lines(), sys.stdout) if wrap else lines()))
    return 0


def one_line_errors(verb: str, *errors: type[Exception], file: str | None = None) -> Callable[[Run], Run]:
    """Let a command print these errors as one line on stderr, and return 2.

    Args:
        verb: the command's name.
        errors: classes whose message is the line.
        file: the argument with the name of a file. The line begins with this name if the file cannot be read.
    """

    def decorate(run: Run) -> Run:
        @wraps(run)
        def wrapper(args: argparse.Namespace) -> int:
            try:
                return run(args)
            except errors as error:
                print(f"mini-kv {verb}: {error}", file=sys.stderr)
            except OSError as error:
                if file is None or error.filename is None:  # such as a pipe whose reader has gone
                    raise
                print(f"mini-kv {verb}: {getattr(args, file)}: {error.strerror or error}", file=sys.stderr)
            return 2

        return wrapper

    return decorate

"""The command `mini-kv`: one verb, one meaning. Only the file of the verb that was typed is loaded."""

import argparse
import os
import signal
import sys
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from io import TextIOWrapper
from itertools import groupby
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

from mini_kv import __version__


class Verb(NamedTuple):
    """A verb's group, its meaning in a line, and the package with its module.

    The module is named `<verb>_command` and has `add_arguments(parser)` and `run(args) -> exit status`.
    """

    group: str
    about: str
    package: str
    joined: str = ""
    """A function of another package, as `module:name`, that the verb must not import. `args` gets it under its name."""


LEARN, ENGINE, SERVER, CLASS, MORE = "learn", "your engine", "your server", "your class", "more"
VERBS = {
    "story": Verb(LEARN, "play a scenario, or a lab's test, step by step", "course.commands"),
    "puzzle": Verb(LEARN, "reach a goal with a few calls to the cache", "course.commands"),
    "labs": Verb(LEARN, "write the labs into a folder, where mini_kv is installed", "course.commands"),
    "run": Verb(LEARN, "test your file of a lab: the first failure, and how many more", "course.commands"),
    "hint": Verb(LEARN, "a hint for a function of a lab; the next time, a plainer one", "course.commands"),
    "predict": Verb(LEARN, "a lab's questions, to be answered before you run it", "course.commands"),
    "status": Verb(LEARN, "your progress in every lab", "course.commands"),
    "reset": Verb(LEARN, "restore a lab's starter; a copy of your file is kept", "course.commands"),
    "questions": Verb(LEARN, "five questions about your own engine, answered by its run", "course.commands"),
    "generate": Verb(ENGINE, "let a model write, and watch the blocks fill", "course.commands"),
    "serve": Verb(
        ENGINE,
        "serve OpenAI's API, with a page that shows the cache at work",
        "tools.serve",
        "mini_kv.course.finale.serve_labs:parts_of_labs",
    ),
    "finale": Verb(ENGINE, "a rush hour through your parts of the labs, compared step by step", "course.commands"),
    "why": Verb(SERVER, "why a server finds nothing: by its counters, log and model", "tools.traces.commands"),
    "plan": Verb(SERVER, "groups, blocks and concurrency of a model in a given memory", "tools.planning"),
    "explain": Verb(SERVER, "why tokens of a trace were not found, one cause per row", "tools.traces.commands"),
    "replay": Verb(SERVER, "send a trace through the cache and report the hit rate", "tools.traces.commands"),
    "curve": Verb(SERVER, "hit rate at every pool size, and what more memory would buy", "tools.traces.commands"),
    "session": Verb(SERVER, "where a coding agent's prompt cache broke, turn by turn", "tools.traces.commands"),
    "attach": Verb(SERVER, "watch the cache of a running engine, ours or vLLM's", "tools.serve"),
    "verify": Verb(SERVER, "any engine against vLLM's recorded answers, call by call", "course.commands"),
    "class": Verb(CLASS, "grade hand-ins, keep a gradebook, release the labs", "course.commands"),
    "trace": Verb(MORE, "fetch a published trace, or make one from a seed", "tools.traces.commands"),
    "doctor": Verb(MORE, "the installed and the missing packages on this machine", "course.commands"),
}
"""All verbs, in the order in which they are printed: group by group."""
_ALL_VERBS = "mini-kv --help"
MOVED = {
    "watch": "run --watch",
    "grade": "class grade",
    "release": "class release",
    "address": "class address",
    "gpu-report": "doctor --gpu",
    "league": "replay --policy all",
}
"""Verbs of earlier versions, and what does their work now."""


def _verb_lines(*without: str) -> list[str]:
    """Return the verbs with their meanings, under the names of their groups."""
    lines = []
    for group, verbs in groupby(VERBS.items(), lambda item: item[1].group):
        if group not in without:
            lines += [group, *(f"  {name:<10}  {verb.about}" for name, verb in verbs)]
    return lines


def _print_any_letter() -> None:
    """Escape letters that the terminal's encoding lacks: a path may have any."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit status: 0 done, 2 unusable arguments, 130 interrupted."""
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        if argv is not None:
            return _run(words)
        _print_any_letter()
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # a shell may have it ignored
            signal.signal(signal.SIGINT, _interrupt)
        return _run(words)
    except KeyboardInterrupt:
        if argv is None:
            signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C again, while Python ends: in silence, too
        return 130


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Raise `KeyboardInterrupt`, or end the process inside an import: modules catch exceptions there, or break."""
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            os._exit(130)
        frame = frame.f_back
    raise KeyboardInterrupt


def _run(words: list[str]) -> int:
    """Run the verb. Raises `KeyboardInterrupt`."""
    for word in words:
        if "\0" in word:  # no shell can pass one on, but a program that calls this function can
            print(f"mini-kv: the argument {word!r} has a NUL byte, which no path can have", file=sys.stderr)
            return 2
    if not words:
        print("\n".join(["begin: mini-kv story share-and-evict", "", *_verb_lines(MORE), "", f"all: {_ALL_VERBS}"]))
        return 0
    if words[0] == "help":
        words = [*words[1:2], "--help"]
    verb = next((word for word in words if not word.startswith("-")), None)
    parser = build_parser(verb)
    if verb is not None and verb not in VERBS:
        parser.error(_unknown(verb))
    try:
        return _parse_and_run(parser, words)
    except BrokenPipeError:
        # The reader (`| head`) has seen enough. Point stdout elsewhere, or Python complains again while it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:  # a folder that is gone, a disk that is full
        print(f"mini-kv {verb}: {error}", file=sys.stderr)
    except UnicodeEncodeError as error:  # a byte that is not UTF-8, where a library needs a text
        print(f"mini-kv {verb}: {ascii(error.object)[:60]} is not a text in UTF-8", file=sys.stderr)
    except ImportError as error:  # a package that is installed in part
        print(f"mini-kv {verb}: {error}. What is installed? mini-kv doctor", file=sys.stderr)
    return 2


def _parse_and_run(parser: argparse.ArgumentParser, words: list[str]) -> int:
    """Parse the arguments, run the verb and return its status."""
    args, unknown = parser.parse_known_args(words)
    if unknown:
        (parser if args.command is None else args.parser).error(f"unrecognized arguments: {' '.join(unknown)}")
    if args.command is None:
        parser.error(f"which verb? All of them: {_ALL_VERBS}")
    status: int = args.run(args)
    sys.stdout.flush()
    return status


def _unknown(verb: str) -> str:
    """Return the message for an unknown verb. Some have another name now. Play has a page, and no verb."""
    from mini_kv.messages import choices, shown

    if verb in MOVED:
        return f"{verb} is now: mini-kv {MOVED[verb]}"
    if verb != "play":
        return f"there is no verb {shown(verb)}; {choices(verb, list(VERBS), _ALL_VERBS)}"
    from mini_kv.course.labkit.course_settings import play_address

    return f"Play is a page of the book: {play_address(Path.cwd())}. In a terminal: mini-kv generate 'A block is'"


class _Help(argparse.HelpFormatter):
    """Help that fits a screen: many options are one word of the usage."""

    def add_usage(
        self,
        usage: str | None,
        actions: Iterable[argparse.Action],
        groups: Iterable[Any],
        prefix: str | None = None,
    ) -> None:
        """Add the usage. More than eight options are `[options]`."""
        words = [action for action in actions if not action.option_strings]
        many = argparse.Action(["[options]"], "options", nargs=0, required=True)
        is_long = len(list(actions)) - len(words) > 8
        super().add_usage(usage, [many, *words] if is_long else actions, [] if is_long else groups, prefix)


def build_parser(verb: str | None) -> argparse.ArgumentParser:
    """Return the parser of all verbs, with the arguments of this one."""
    parser = argparse.ArgumentParser(
        prog="mini-kv",
        description="A small, real KV-cache engine to learn from.",
        epilog="\n".join(_verb_lines()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"mini-kv {__version__}")
    verbs = parser.add_subparsers(dest="command", metavar="VERB", help="one of these; its options: mini-kv help VERB")
    for name, (_, about, package, joined) in VERBS.items():
        parser_of_verb = verbs.add_parser(name, description=f"{about[0].upper()}{about[1:]}.", formatter_class=_Help)
        if name == verb:
            module = import_module(f"mini_kv.{package}.{name.replace('-', '_')}_command")
            module.add_arguments(parser_of_verb)
            parser_of_verb.set_defaults(run=module.run, parser=parser_of_verb)
            if joined:
                home, _, function = joined.partition(":")
                parser_of_verb.set_defaults(**{function: _when_called(home, function)})
    return parser


def _when_called(home: str, name: str) -> Callable[..., Any]:
    """Return a function that loads its module when it is called, because few calls of the verb need it."""

    def call(*args: Any) -> Any:
        return getattr(import_module(home), name)(*args)

    return call


if __name__ == "__main__":
    sys.exit(main())

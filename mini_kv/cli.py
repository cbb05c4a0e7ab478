"""The command `mini-kv`: one verb, one meaning. Only the file of the verb that was typed is loaded."""

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from io import TextIOWrapper
from typing import Any, NamedTuple

from mini_kv import __version__


class Verb(NamedTuple):
    """What a verb does, in a line, and the package with its module.

    The module is named `<verb>_command` and has `add_arguments(parser)` and `run(args) -> exit status`.
    """

    about: str
    package: str
    joined: str = ""
    """A function of another package, as `module:name`, that the verb must not import. `args` gets it under its name."""


VERBS = {
    "story": Verb("play a scenario, or a lab's test, step by step", "labkit.commands"),
    "puzzle": Verb("reach a goal with a few calls to the cache", "labkit.commands"),
    "generate": Verb("let a model write, and watch the blocks fill", "labkit.commands"),
    "finale": Verb("a rush hour through your parts of the labs, compared step by step", "labkit.commands"),
    "serve": Verb(
        "serve OpenAI's API, with a page that shows the cache at work",
        "serve",
        "mini_kv.labkit.own_engine.served:parts_of_labs",
    ),
    "attach": Verb("watch the cache of a running engine, ours or vLLM's", "serve"),
    "replay": Verb("send a trace through the cache and report the hit rate", "traces.commands"),
    "league": Verb("eviction policies side by side on a trace", "traces.commands"),
    "curve": Verb("hit rate at every pool size, and what more memory would buy", "traces.commands"),
    "explain": Verb("why tokens of a trace were not found, one cause per row", "traces.commands"),
    "session": Verb("where the prompt cache of a coding agent's session broke, turn by turn", "traces.commands"),
    "trace": Verb("fetch a published trace, or make one from a seed", "traces.commands"),
    "verify": Verb("any engine against vLLM's recorded answers, call by call", "verify"),
    "plan": Verb("groups, blocks and concurrency of a model in a given memory", "planning"),
    "why": Verb("how long a model's blocks are, and what prompts can find at best", "traces.commands"),
    "labs": Verb("write the labs into a folder, where mini_kv is installed", "labkit.commands"),
    "run": Verb("test your file of a lab: the first failure, and how many more", "labkit.commands"),
    "status": Verb("your progress in every lab", "labkit.commands"),
    "hint": Verb("a hint for a function of a lab; the next time, a plainer one", "labkit.commands"),
    "predict": Verb("a lab's questions, to be answered before you run it", "labkit.commands"),
    "questions": Verb("five questions about your own engine, answered by its run", "labkit.commands"),
    "watch": Verb("test a lab again whenever you save your file", "labkit.commands"),
    "reset": Verb("restore a lab's starter; a copy of your file is kept", "labkit.commands"),
    "grade": Verb("grade a folder of hand-ins, each lab in its own process", "labkit.commands"),
    "class": Verb("a gradebook, and the beliefs of a class", "labkit.commands"),
    "release": Verb("a student's tree, or files for Gradescope and Classroom 50", "labkit.commands"),
    "address": Verb("write your repository's address into every file that has one", "labkit.commands"),
    "gpu-report": Verb("measure the kernels on your GPU, and write one file to send", "labkit.commands"),
    "doctor": Verb("the installed and the missing packages on this machine", "labkit.commands"),
}


def _print_any_letter() -> None:
    """Escape letters that the terminal's encoding lacks: a path may have any."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit status: 0 done, 2 unusable arguments, 130 interrupted."""
    if argv is None:
        _print_any_letter()
    words = list(sys.argv[1:] if argv is None else argv)
    for word in words:
        if "\0" in word:  # no shell can pass one on, but a program that calls this function can
            print(f"mini-kv: the argument {word!r} has a NUL byte, which no path can have", file=sys.stderr)
            return 2
    verb = next((word for word in words if not word.startswith("-")), None)
    parser = build_parser(verb)
    if verb is not None and verb not in VERBS:
        from mini_kv.labkit.lab import did_you_mean, shown

        parser.error(f"there is no verb {shown(verb)}; {did_you_mean(verb, list(VERBS))}there are: {', '.join(VERBS)}")
    args, unknown = parser.parse_known_args(words)
    if unknown:
        (parser if args.command is None else args.parser).error(f"unrecognized arguments: {' '.join(unknown)}")
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
    except OSError as error:  # a folder that is gone, a disk that is full
        print(f"mini-kv {args.command}: {error}", file=sys.stderr)
        return 2
    return status


def build_parser(verb: str | None) -> argparse.ArgumentParser:
    """Return the parser of all verbs, with the arguments of this one."""
    parser = argparse.ArgumentParser(prog="mini-kv", description="A small, real KV-cache engine to learn from.")
    parser.add_argument("--version", action="version", version=f"mini-kv {__version__}")
    verbs = parser.add_subparsers(dest="command", metavar="VERB")
    for name, (about, package, joined) in VERBS.items():
        parser_of_verb = verbs.add_parser(name, help=about)
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

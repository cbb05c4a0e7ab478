"""The command `mini-kv`: one verb, one meaning."""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from mini_kv import __version__
from mini_kv.engine.generate_command import add_generate_arguments, run_generate
from mini_kv.labkit import learner
from mini_kv.labkit.doctor import doctor_lines
from mini_kv.labkit.export import progress_page
from mini_kv.labkit.lab import UnknownLabError, all_labs, did_you_mean, find_checkout, find_lab, shown
from mini_kv.labkit.own_engine.command import add_labs_argument, run_with_labs
from mini_kv.labkit.state import read_state
from mini_kv.planning.plan_command import add_plan_arguments, run_plan
from mini_kv.trace.scenario import ScenarioError, load_scenario, scenario_names
from mini_kv.traces.replay_command import add_replay_arguments, run_replay
from mini_kv.viz.figure import page, story_data
from mini_kv.viz.terminal import play_in_terminal


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status: 0 done, 2 cannot be done as asked, 130 interrupted."""
    words = list(sys.argv[1:] if argv is None else argv)
    parser = build_parser()
    for word in words:
        if "\0" in word:  # no shell can pass one on, but a program that calls this function can
            print(f"mini-kv: the argument {word!r} has a NUL byte in it, which no path can have", file=sys.stderr)
            return 2
    verbs = parser.get_default("verbs")
    verb = next((word for word in words if not word.startswith("-")), None)
    if verb is not None and verb not in verbs:
        parser.error(f"there is no verb {shown(verb)}; {did_you_mean(verb, verbs)}there are: {', '.join(verbs)}")
    args = parser.parse_args(words)
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


def build_parser() -> argparse.ArgumentParser:
    """Return the parser with all verbs, whose names are its default for `verbs`."""
    parser = argparse.ArgumentParser(prog="mini-kv", description="A small, real KV-cache engine to learn from.")
    parser.add_argument("--version", action="version", version=f"mini-kv {__version__}")
    verbs = parser.add_subparsers(dest="command", metavar="VERB")

    story = verbs.add_parser("story", help="play a scenario, or a lab's test, step by step")
    story.add_argument(
        "name", metavar="NAME", nargs="?", help=f"one of: {', '.join(scenario_names())}; or a lab's number"
    )
    story.add_argument("test", metavar="TEST", nargs="?", help="with a lab's number: the test, or its beginning")
    story.add_argument("--plain", action="store_true", help="print everything at once, wait for no key")
    story.add_argument("--html", metavar="FILE", help="write a page to step through instead")
    story.set_defaults(run=run_story)

    generate = verbs.add_parser("generate", help="let a model write, and watch the blocks fill")
    add_generate_arguments(generate)
    add_labs_argument(generate)
    generate.set_defaults(run=run_generate_of)

    replay = verbs.add_parser("replay", help="run a production trace through the cache and report the hit rate")
    add_replay_arguments(replay)
    replay.set_defaults(run=run_replay)

    plan = verbs.add_parser("plan", help="groups, blocks and concurrency of a model in a given memory")
    add_plan_arguments(plan)
    plan.set_defaults(run=run_plan)

    status = verbs.add_parser("status", help="how far you are in every lab")
    status.add_argument("--html", metavar="FILE", help="write a page instead")
    status.set_defaults(run=run_status)
    for verb, about in (
        ("hint", "a hint for a function of a lab; the next time, a plainer one"),
        ("predict", "a lab's questions, to be answered before you run it"),
        ("watch", "test a lab again whenever you save your file"),
        ("reset", "put a lab's starter back as it was; your file is kept"),
    ):
        parser_of_verb = verbs.add_parser(verb, help=about)
        parser_of_verb.add_argument("lab", metavar="LAB", help="its number, such as 05")
        if verb == "hint":
            parser_of_verb.add_argument("function", metavar="FUNCTION", nargs="?", help="left out: for which there are")
        parser_of_verb.set_defaults(run=run_for_lab)
    doctor = verbs.add_parser("doctor", help="what this machine has and lacks")
    doctor.set_defaults(run=run_doctor)
    parser.set_defaults(verbs=list(verbs.choices))
    return parser


def run_generate_of(args: argparse.Namespace) -> int:
    """Run the engine, or one with the learner's parts in it."""
    if args.labs is None:
        return run_generate(args)
    try:
        root = find_checkout(Path.cwd())
    except UnknownLabError as error:
        print(f"mini-kv generate: {error}", file=sys.stderr)
        return 2
    return run_with_labs(args, root)


def run_story(args: argparse.Namespace) -> int:
    """Play a scenario or a lab's test; step by step if a person is at the terminal."""
    interactive = sys.stdin.isatty() and sys.stdout.isatty() and not args.plain
    keys = sys.stdin if interactive else None
    if args.name is None:
        print("\n".join(story_titles()))
        return 0
    of_a_lab = args.test is not None or args.name.removeprefix("lab-").isdigit()
    try:
        if args.html is not None:
            write_story_page(args, of_a_lab)
        elif of_a_lab:
            learner.tell_test(find_lab(args.name, Path.cwd()), args.test or "", sys.stdout, keys)
        else:
            play_in_terminal(load_scenario(args.name), sys.stdout, keys)
    except (ScenarioError, ValueError) as error:
        print(f"mini-kv story: {error}", file=sys.stderr)
        return 2
    return 0


def story_titles() -> list[str]:
    """Return a line per scenario, and how to play one."""
    names = scenario_names()
    width = max(map(len, names))
    titles = [f"  {name:<{width}}  {load_scenario(name).title}" for name in names]
    return ["type  mini-kv story NAME  with one of these, or with a lab's number and a test", *titles]


def write_story_page(args: argparse.Namespace, of_a_lab: bool) -> None:
    """Write the story as a page. Raises `ValueError` if it cannot be told, or the file not be written."""
    if of_a_lab:
        text = learner.page_of_test(find_lab(args.name, Path.cwd()), args.test or "")
    else:
        text = page(story_data(load_scenario(args.name)))
    write_page(args.html, text)


def write_page(file: str, text: str) -> None:
    """Write a page and say so. Raises `ValueError`, naming the file, if that cannot be done."""
    try:
        Path(file).write_text(text, encoding="utf-8", errors="replace")
    except (OSError, ValueError) as error:
        raise ValueError(f"{shown(file)} cannot be written: {getattr(error, 'strerror', error)}") from error
    print(f"open {file} in a browser")


def run_status(args: argparse.Namespace) -> int:
    """Print a line per lab, or write the page."""
    try:
        root = find_checkout(Path.cwd())
        labs = all_labs(root)
        progress = read_state(labs[0].state, "progress")
        if args.html is not None:
            write_page(args.html, progress_page(labs, progress))
            return 0
    except ValueError as error:
        print(f"mini-kv status: {error}", file=sys.stderr)
        return 2
    print("\n".join(learner.status_lines(labs, progress)))
    if root != Path.cwd():
        print(f"(the labs are in {root})")
    return 0


def run_doctor(args: argparse.Namespace) -> int:
    """Print what is there and what is missing; 1 if something needed is."""
    lines, healthy = doctor_lines(Path.cwd())
    print("\n".join(lines))
    return 0 if healthy else 1


def run_for_lab(args: argparse.Namespace) -> int:
    """Run a learner's command on one lab."""
    try:
        lab = find_lab(args.lab, Path.cwd())
        if args.command == "hint":
            return learner.give_hint(lab, args.function, sys.stdout)
        if args.command == "predict":
            return learner.ask_predictions(lab, sys.stdout, sys.stdin)
        if args.command == "reset":
            return learner.reset_starter(lab, sys.stdout)
    except ValueError as error:
        print(f"mini-kv {args.command}: {error}", file=sys.stderr)
        return 2
    return learner.watch(lab, sys.stdout)


if __name__ == "__main__":
    sys.exit(main())

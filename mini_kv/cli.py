"""The command `mini-kv`: one verb, one meaning."""

import argparse
import importlib.util
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from mini_kv import __version__
from mini_kv.engine.generate_command import add_generate_arguments, run_generate
from mini_kv.labkit import learner
from mini_kv.labkit.export import progress_page
from mini_kv.labkit.lab import UnknownLabError, all_labs, find_lab
from mini_kv.labkit.own_engine.command import add_labs_argument, run_with_labs
from mini_kv.labkit.progress import read_state, state_folder
from mini_kv.trace.scenario import ScenarioError, load_scenario, scenario_names
from mini_kv.viz.figure import page, story_data
from mini_kv.viz.terminal import play_in_terminal
from mini_kv.workload.plan_command import add_plan_arguments, run_plan
from mini_kv.workload.replay_command import add_replay_arguments, run_replay


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status: 0 done, 2 cannot be done as asked, 130 interrupted."""
    parser = build_parser()
    for argument in sys.argv[1:] if argv is None else argv:
        if "\0" in argument:  # no shell can pass one on, but a program that calls this function can
            print(f"mini-kv: the argument {argument!r} has a NUL byte in it, which no path can have", file=sys.stderr)
            return 2
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

    story = verbs.add_parser("story", help="play a scenario, or a lab's test, step by step")
    story.add_argument("name", metavar="NAME", help=f"one of: {', '.join(scenario_names())}; or a lab's number")
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

    plan = verbs.add_parser("plan", help="groups, blocks and concurrency of a model in so much memory")
    add_plan_arguments(plan)
    plan.set_defaults(run=run_plan)

    status = verbs.add_parser("status", help="how far you are in every lab")
    status.add_argument("--html", metavar="FILE", help="write a page instead")
    status.set_defaults(run=run_status)
    for verb, about in (
        ("hint", "a hint for a function of a lab; the next time, a plainer one"),
        ("predict", "a lab's questions, to be answered before you run it"),
        ("watch", "run a lab again whenever you save your file"),
        ("reset", "put a lab's starter back as it was; your file is kept"),
    ):
        parser_of_verb = verbs.add_parser(verb, help=about)
        parser_of_verb.add_argument("lab", metavar="LAB", help="its number, such as 05")
        if verb == "hint":
            parser_of_verb.add_argument("function", metavar="FUNCTION")
        parser_of_verb.set_defaults(run=run_for_lab)
    doctor = verbs.add_parser("doctor", help="what this machine has and lacks")
    doctor.set_defaults(run=run_doctor)
    return parser


def run_generate_of(args: argparse.Namespace) -> int:
    """Run the engine, or one with the learner's parts in it."""
    return run_generate(args) if args.labs is None else run_with_labs(args, repository())


def run_story(args: argparse.Namespace) -> int:
    """Play a scenario or a lab's test; step by step if a person is at the terminal."""
    interactive = sys.stdin.isatty() and sys.stdout.isatty() and not args.plain
    keys = sys.stdin if interactive else None
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


def write_story_page(args: argparse.Namespace, of_a_lab: bool) -> None:
    """Write the story as a page. Raises `ValueError` if it cannot be told, or the file not be written."""
    if of_a_lab:
        text = learner.page_of_test(find_lab(args.name, Path.cwd()), args.test or "")
    else:
        text = page(story_data(load_scenario(args.name)))
    try:
        Path(args.html).write_text(text, encoding="utf-8")
    except OSError as error:
        raise ValueError(str(error)) from error
    print(f"open {args.html} in a browser")


def run_status(args: argparse.Namespace) -> int:
    """Print a line a lab, or write the page."""
    labs = all_labs(repository())
    if not labs:
        print("mini-kv status: there is no folder labs/ here: call this in the repository", file=sys.stderr)
        return 2
    progress = read_state(state_folder(labs[0]), "progress")
    if args.html is not None:
        try:
            Path(args.html).write_text(progress_page(labs, progress), encoding="utf-8")
        except OSError as error:
            print(f"mini-kv status: {error}", file=sys.stderr)
            return 2
    else:
        print("\n".join(learner.status_lines(labs, progress)))
    return 0


def run_doctor(args: argparse.Namespace) -> int:
    """Print what is there and what is missing; 1 if something needed is."""
    lines, healthy = doctor_lines(repository())
    print("\n".join(lines))
    return 0 if healthy else 1


def run_for_lab(args: argparse.Namespace) -> int:
    """Run a learner's command on one lab."""
    try:
        lab = find_lab(args.lab, Path.cwd())
    except UnknownLabError as error:
        print(f"mini-kv {args.command}: {error}", file=sys.stderr)
        return 2
    if args.command == "hint":
        return learner.give_hint(lab, args.function, sys.stdout)
    if args.command == "predict":
        return learner.ask_predictions(lab, sys.stdout, sys.stdin)
    if args.command == "reset":
        return learner.reset_starter(lab, sys.stdout)
    return learner.watch(lab, sys.stdout)


def repository() -> Path:
    """Return the nearest folder from here upwards that holds labs/, or this one."""
    here = Path.cwd()
    return next((folder for folder in (here, *here.parents) if (folder / "labs").is_dir()), here)


def doctor_lines(root: Path) -> tuple[list[str], bool]:
    """Return a line for everything that the course may need, and whether all that it must have is there."""
    checks: list[tuple[str, bool, bool, str]] = [
        ("Python 3.11 or newer", sys.version_info >= (3, 11), True, "make PY=/path/to/python3"),
        ("pytest", _importable("pytest"), True, "make"),
        ("pytest-timeout, stops endless loops", _importable("pytest_timeout"), True, "make"),
        ("xxhash, for the faster hash", _importable("xxhash"), True, "make"),
        ("labs/", bool(all_labs(root)), True, "call this in the repository"),
        ("git, for updates", shutil.which("git") is not None, False, "install git"),
        ("Node and npm, for the browser tests", shutil.which("npm") is not None, False, "install Node 18 or newer"),
    ]
    lines = []
    for what, there, needed, remedy in checks:
        mark = "ok     " if there else ("MISSING" if needed else "without")
        lines.append(f"{mark}  {what}{'' if there else f'   ->  {remedy}'}")
    return lines, all(there for _, there, needed, _ in checks if needed)


def _importable(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


if __name__ == "__main__":
    sys.exit(main())

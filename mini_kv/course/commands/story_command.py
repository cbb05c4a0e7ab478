"""`mini-kv story NAME`: play a scenario, a lab's test or a file of events, step by step."""

import argparse
import contextlib
import io
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from mini_kv.course.commands import need_pytest, write_file, write_page
from mini_kv.course.labkit.lab import Lab, find_lab
from mini_kv.messages import shown
from mini_kv.story.events_file import EventsHeader, dump_events, load_events
from mini_kv.story.figure import page, spans_data, story_data
from mini_kv.story.scenario import ScenarioPlayer, load_scenario, scenario_names
from mini_kv.story.still import moving_svg
from mini_kv.story.terminal import draw_spans, play_in_terminal, play_spans, play_texts
from mini_kv.story.text import LEGEND
from mini_kv.typed_numbers import output_file

if TYPE_CHECKING:
    from mini_kv.course.labkit.fixture import LabUnderTest, Note

_BEGIN_WITH = "share-and-evict"
MAX_NOTES = 30
"""The most comparisons in a story. A random test makes thousands."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the name of the story, and the options of its playback."""
    parser.add_argument(
        "name",
        metavar="NAME",
        nargs="?",
        help="of mini-kv story, which lists them; a lab's number; or a file of --to or of mini-kv serve",
    )
    parser.add_argument("test", metavar="TEST", nargs="?", help="with a lab's number: the test, or its beginning")
    parser.add_argument("--beside", metavar="NAME", help="with --to FILE.html: another story, shown next to it")
    parser.add_argument("--plain", action="store_true", help="print all steps at once, without waiting for a key")
    about = "write a page to step through (.html), a moving picture (.svg), or the calls with their changes (.jsonl)"
    parser.add_argument("--to", type=output_file(".html", ".svg", ".jsonl"), metavar="FILE", help=f"instead, {about}")


def run(args: argparse.Namespace) -> int:
    """Play the story, step by step on a terminal, and return the exit status."""
    interactive = sys.stdin.isatty() and sys.stdout.isatty() and not args.plain
    keys = sys.stdin if interactive else None
    if args.name is None:
        print("\n".join(_story_titles()))
        return 0
    suffix = None if args.to is None else args.to.suffix.lower()
    if args.beside is not None and suffix != ".html":
        print("mini-kv story: --beside shows two stories in a page: add --to FILE.html", file=sys.stderr)
        return 2
    of_a_lab = args.test is not None or args.name.removeprefix("lab-").partition("-")[0].isdigit()
    try:
        if args.name.endswith((".json", ".jsonl")):
            (_play_story if args.name.endswith(".json") else _play_events)(args, keys)
        elif suffix == ".html":
            _write_story_page(args, of_a_lab)
        elif suffix is not None:
            if of_a_lab:
                raise ValueError(f"a lab's test is shown in the terminal or as a page: --to FILE.html, not {suffix}")
            (_write_svg if suffix == ".svg" else _write_events)(args)
        elif of_a_lab:
            tell_test(find_lab(args.name, Path.cwd()), args.test or "", sys.stdout, keys)
        else:
            play_in_terminal(load_scenario(args.name), sys.stdout, keys)
    except ValueError as error:
        print(f"mini-kv story: {error}", file=sys.stderr)
        return 2
    return 0


def _story_titles() -> list[str]:
    """Return a line per scenario, and the command to play one."""
    names = scenario_names()
    width = max(map(len, names))
    marks = {_BEGIN_WITH: "   <- begin here"}
    titles = [f"  {name:<{width}}  {load_scenario(name).title}{marks.get(name, '')}" for name in names]
    return ["type  mini-kv story NAME  with one of these, or with a lab's number and a test", *titles]


def _write_events(args: argparse.Namespace) -> None:
    """Play a scenario and write its calls with their changes. Raises `ValueError` if that cannot be done."""
    player = ScenarioPlayer(load_scenario(args.name))
    for _ in player.play():
        pass
    events = dump_events(EventsHeader.of(player.kv.manager), player.kv.spans)
    write_file(args.to, events, f"play it:  mini-kv story {args.to}")


def _write_svg(args: argparse.Namespace) -> None:
    """Write the scenario as a picture of all its steps. Raises `ValueError` if that cannot be done."""
    write_file(args.to, moving_svg(story_data(load_scenario(args.name))) + "\n", f"wrote {args.to}")


def _play_events(args: argparse.Namespace, keys: TextIO | None) -> None:
    """Play recorded calls from a file. Raises `ValueError` if it cannot be read or the calls have no states."""
    if args.to is not None or args.test is not None:
        raise ValueError("a file of events is played in the terminal, without --to or TEST")
    try:
        header, spans = load_events(Path(args.name).read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"{shown(args.name)} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ValueError(f"{shown(args.name)} is not a file of events: {error}") from error
    if any(span.tables is None or span.free_order is None for span in spans):
        raise ValueError(f"{shown(args.name)} has calls without tables and free_order: there is no state to draw")
    play_spans(spans, header.num_blocks, sys.stdout, keys)


def _play_story(args: argparse.Namespace, keys: TextIO | None) -> None:
    """Play a story that a server recorded, or write it as a page. Raises `ValueError` if that cannot be done."""
    if args.test is not None or (args.to is not None and args.to.suffix.lower() != ".html"):
        raise ValueError("a story from a file is played in the terminal, or written as a page: --to FILE.html")
    try:
        data = json.loads(Path(args.name).read_text(encoding="utf-8"))
        steps = [[step.get("do", ""), step.get("say", ""), *step["lines"]] for step in data["steps"]]
        texts = [data["title"], *("\n    ".join(filter(None, step)) for step in steps), data["drawing"]]
        text = page(data) if args.to is not None else ""
    except OSError as error:
        raise ValueError(f"{shown(args.name)} cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise ValueError(f"{shown(args.name)} is not a story: {type(error).__name__}: {error}") from error
    if args.to is not None:
        write_page(args.to, text)
    else:
        play_texts(texts, sys.stdout, keys)


def _write_story_page(args: argparse.Namespace, of_a_lab: bool) -> None:
    """Write the story as a page. Raises `ValueError` if the story is invalid or the file cannot be written."""
    if of_a_lab:
        text = _page_of_test(find_lab(args.name, Path.cwd()), args.test or "")
    else:
        other = None if args.beside is None else story_data(load_scenario(args.beside))
        text = page(story_data(load_scenario(args.name)), other)
    write_page(args.to, text)


def find_test(lab: Lab, beginning: str) -> str:
    """Return the one test whose name has this beginning. Raises `ValueError` with the tests for none or several."""
    tests = lab.tests()
    # As a whole, as `test_1` for test_1_..., which is not test_10, or as any part.
    for fits in (beginning.__eq__, lambda test: test.startswith(f"{beginning}_"), lambda test: beginning in test):
        found = list(filter(fits, tests))
        if found:
            break
    if len(found) != 1:
        listed = "\n  ".join(found or tests)
        found_are = f"{shown(beginning)} is {'several tests' if found else 'not a test'} of {lab.lab_id}:"
        raise ValueError(f"{found_are if beginning else f'which test of {lab.lab_id}?'}\n  {listed}")
    return found[0]


def _run_test(lab: Lab, test: str) -> tuple[Any, Any]:
    """Run one test on the learner's code without output. Return its result and its fixture, which has its story."""
    need_pytest()
    import pytest

    from mini_kv.course.labkit.plugin import FIXTURE, RESULTS

    class Collector:
        """Keeps the result and the fixture of the test."""

        result: Any = None
        fixture: Any = None

        def pytest_runtest_teardown(self, item: pytest.Item) -> None:
            self.result = item.config.stash[RESULTS][item.nodeid]
            self.fixture = item.stash.get(FIXTURE, None)

    collector = Collector()
    os.environ.setdefault("LAB_IMPL", "starter")
    options = ["-q", "-p", "no:cacheprovider", "-W", "ignore::pytest.PytestAssertRewriteWarning"]
    with contextlib.redirect_stdout(io.StringIO()) as out:
        pytest.main([f"{lab.folder / 'test_lab.py'}::{test}", *options], plugins=[collector])
    if collector.result is None:
        raise ValueError(f"{test} could not run:\n{out.getvalue()}")
    return collector.result, collector.fixture


def _page_of_test(lab: Lab, beginning: str) -> str:
    """Run the test on the learner's code and return a page with its cache, call by call.

    Raises `ValueError` if the test made no cache.
    """
    test = find_test(lab, beginning)
    result, fixture = _run_test(lab, test)
    if fixture is None or not fixture.kvs:
        raise ValueError(f"{test} makes no cache, so there is nothing to draw")
    kv = fixture.kvs[-1]
    data = spans_data(kv.spans, kv.manager.kv_cache_config.num_blocks, kv.manager.block_size, f"{lab.lab_id}: {test}")
    data["ending"] = result.message or f"{result.test}: {result.state}"
    return page(data)


def tell_test(lab: Lab, beginning: str, out: TextIO, keys: TextIO | None) -> None:
    """Run the test on the learner's code and play its calls and comparisons, step by step, then its result."""
    result, fixture = _run_test(lab, find_test(lab, beginning))
    message = result.message or f"{result.test}: {result.state}"
    if fixture is not None:
        if fixture.kvs:
            out.write(f"{LEGEND}\n")
        texts = story_texts(fixture, out)
        play_texts(texts, out, keys)
        out.write("\n")
        message = _not_told(message, "\n".join([LEGEND, *texts]))
    out.write(f"{message}\n")


def _not_told(message: str, story: str) -> str:
    """Return the lines of a message that the story has not shown, and the first."""
    first, *lines = message.splitlines()
    labels = ("   calls", "   state")
    news = [line for line in lines if line.removeprefix(labels[0]).removeprefix(labels[1]).strip() not in story]
    return "\n".join([first, *(line.partition("     see it: ")[0] for line in news)])


def story_texts(fixture: "LabUnderTest", out: TextIO) -> list[str]:
    """Return the story of a test: each call of its last cache, and the comparisons after it, as texts."""
    calls: list[str] = []
    if fixture.kvs:
        kv = fixture.kvs[-1]
        calls = draw_spans(kv.spans, kv.manager.kv_cache_config.num_blocks, out)
    notes = [note for note in fixture.notes if note.moment[0] == len(fixture.kvs)]
    steps, told = [], 0
    if len(notes) > MAX_NOTES:
        told = notes[-MAX_NOTES].moment[1]
        steps = [f"({len(notes) - MAX_NOTES:,} earlier comparisons and their calls are omitted)"]
    for note in notes[-MAX_NOTES:]:
        steps += calls[told : note.moment[1]]
        told = note.moment[1]
        steps.append(_draw_note(note))
    return steps + calls[told:]


def _draw_note(note: "Note") -> str:
    """Return a note as text. The last comparison of a failed test is marked as failed."""
    from mini_kv.course.labkit.failure import compared
    from mini_kv.course.labkit.fixture import Comparison, same

    if not isinstance(note, Comparison):
        return note.what
    differs = "" if same(note.want, note.got) else "    <- the first that differs"
    return "\n".join([note.what + differs, *compared(note.want, note.got)])

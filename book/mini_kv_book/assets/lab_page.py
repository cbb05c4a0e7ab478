"""Runs the tests of a lab in the reader's page: the real tests, with the real pytest, in one interpreter for all runs.

`kv_lab_worker.js` loads this file into Pyodide, in the folder of the course, and calls `run` and `tell`. Answers are
JSON: what `mini-kv run` says, the first failure in full, and the whole scoreboard line by line, with what each test
found behind its line.
"""

import contextlib
import io
import json
import linecache
import os
import re
import sys
import time
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any

import pytest

from mini_kv.course.commands.story_command import story_texts
from mini_kv.course.labkit import plugin
from mini_kv.course.labkit.failure import parts_of
from mini_kv.course.labkit.lab import Lab, load_lab
from mini_kv.course.labkit.scoreboard import ASK, BREAKS, LabResult, State, draw_brief, draw_scoreboard
from mini_kv.course.labkit.time_limit import TIME_LIMIT_S, TookTooLongError
from mini_kv.story.figure import spans_data
from mini_kv.story.language import line_in
from mini_kv.story.still import MOST_BLOCKS, svg

_ROW = re.compile(r"    [A-Z ]{8} *\d+/\d+ +(test_\w+)")
"""A line of the scoreboard that is about one test."""

_OPTIONS = (
    "--assert=plain",  # a lab's tests hold no bare assertion, so there is nothing to rewrite
    "--color=no",
    "-p",
    "no:cacheprovider",
    "-W",
    "ignore::pytest.PytestAssertRewriteWarning",
)

_MIN_JUMPS = 2_000_000
"""Rounds of the learner's loops before the clock is asked: 18 times as many as any test needs with its solution."""

Say = Callable[[str, str], None]
"""Is told a test's name and its state: "" before it begins, the scoreboard's word when it is over."""


class Run:
    """pytest's hooks for one run: says where it is, and keeps what each leaves behind."""

    def __init__(self, say: Say) -> None:
        self.say = say
        self.config: pytest.Config | None = None
        self.about: dict[str, str] = {}
        self.printed: dict[str, str] = {}
        self.fixtures: dict[str, Any] = {}

    def pytest_configure(self, config: pytest.Config) -> None:
        """Keep the run's configuration: the plugin's results are in it."""
        self.config = config

    def pytest_collection_modifyitems(self, items: list[pytest.Function]) -> None:
        """Keep what each test says of itself."""
        self.about = {item.name: " ".join((item.function.__doc__ or "").split()) for item in items}

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Say which test begins."""
        self.say(_name(nodeid), "")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self) -> Generator[None, None, None]:
        """Give the test its time, and no more."""
        with time_limit(TIME_LIMIT_S):
            return (yield)

    def pytest_runtest_teardown(self, item: pytest.Item) -> None:
        """Keep the test's caches."""
        self.fixtures[item.name] = item.stash.get(plugin.FIXTURE, None)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep what was printed, of which a test's last report has all, and say how the test ended."""
        self.printed[_name(report.nodeid)] = report.capstdout
        if report.when == "teardown" and self.config is not None:
            self.say(_name(report.nodeid), self.config.stash[plugin.RESULTS][report.nodeid].state.value)


def _name(nodeid: str) -> str:
    return nodeid.rpartition("::")[2]


@contextlib.contextmanager
def time_limit(seconds: float) -> Generator[None]:
    """Raise `TookTooLongError`, as the terminal does, if the learner's own lines still go round after `seconds`.

    A page has no signals and no threads, but Python can watch for jumps: every loop has one. Only the learner's files
    are watched; each place in other files is asked about once and then left alone. What goes round without a jump of
    theirs, in C or in the engine, is ended by the page, worker and all. A page does not know how long it has computed,
    so the clock counts only after `_MIN_JUMPS`: a right solution on a busy machine never gets there.
    """
    watch: Any = sys.monitoring  # type: ignore[attr-defined,unused-ignore]  # Python 3.12 and up, as in every page
    tool = watch.DEBUGGER_ID
    ends = time.monotonic() + seconds
    num_jumps = 0

    def on_jump(code: Any, *_: int) -> Any:
        nonlocal num_jumps
        if not code.co_filename.endswith("/starter.py"):
            return watch.DISABLE
        num_jumps += 1
        if num_jumps > _MIN_JUMPS and time.monotonic() > ends:
            raise TookTooLongError(f"no end after {seconds:g} s: an endless loop, or a slow machine")
        return None

    watch.use_tool_id(tool, "a lab's time limit")
    watch.register_callback(tool, watch.events.JUMP, on_jump)
    watch.set_events(tool, watch.events.JUMP)
    try:
        yield
    finally:
        watch.set_events(tool, watch.events.NO_EVENTS)
        watch.free_tool_id(tool)


_last = Run(lambda test, state: None)


def run(lab_id: str, text: str, say: Say) -> str:
    """Run the lab's tests on `text` as its starter; return the scoreboard and the tests as JSON.

    Args:
        lab_id: such as `lab-05`.
        text: the learner's file.
        say: is told of each test before and after it.
    """
    global _last  # noqa: PLW0603  # what `tell` tells about
    lab = load_lab(Path("labs", lab_id).resolve())
    lab.starter.write_text(text, encoding="utf-8")
    linecache.clearcache()
    os.environ |= {"LAB_IMPL": "starter", "COLUMNS": "100"}
    _last = this = Run(say)
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        pytest.main([f"labs/{lab_id}/test_lab.py", *_OPTIONS], plugins=[this])
    stash = this.config.stash if this.config is not None else pytest.Stash()
    results = list(stash.get(plugin.RESULTS, {}).values())
    answer: dict[str, Any] = {"report": out.getvalue(), "lines": [], "tests": {}}
    if results:
        implementation = stash[plugin.IMPLEMENTATIONS][lab_id]
        lines = draw_scoreboard(implementation, results)
        brief = draw_brief(implementation, results, _printed_first(results, this))
        answer |= {
            "brief": brief,
            "card": _card(lab, results, brief[-1].strip()),
            "lines": [{"text": line, "test": row[1] if (row := _ROW.match(line)) else None} for line in lines],
            "tests": {result.test: _shown(result, this) for result in results},
            "score": sum(result.score for result in results),
            "points": lab.points,
        }
    return json.dumps(answer)


def _card(lab: Lab, results: Sequence[LabResult], last: str) -> dict[str, Any]:
    """Return what the page says first: of the first failure, else of the first test to be passed, else of the lab.

    `last`: the last line of the brief, which says where to go on if nothing has failed.
    """
    not_passed = [result for result in results if result.state is not State.PASS]
    first = next((result for result in not_passed if result.state is State.FAIL), next(iter(not_passed), None))
    if first is None:
        return {"state": "pass", "lesson": lab.lesson, "question": lab.question}
    card = {"state": first.state, "test": first.test, "function": first.short_function, "place": last}
    claims = first.belief and not first.belief.startswith((ASK, BREAKS))
    belief = first.belief.partition("\n")[0] if claims else ""
    return card | {"belief": belief, "question": first.belief.partition(ASK)[2], "parts": parts_of(first.message)}


def _printed_first(results: Sequence[LabResult], this: Run) -> str:
    """Return what was printed in the first failure, as the terminal shows it."""
    return next((this.printed.get(result.test, "") for result in results if result.state is State.FAIL), "")


def _shown(result: LabResult, this: Run) -> dict[str, Any]:
    fixture = this.fixtures.get(result.test)
    kv = _told(result.test, this)
    return {
        "state": result.state.value,
        "points": f"{result.score}/{result.points}",
        "stage": result.stage,
        "function": result.short_function,
        "about": this.about.get(result.test, ""),
        "message": result.message,
        "printed": this.printed.get(result.test, ""),
        "calls": len(kv.spans) if kv is not None else 0,
        "told": kv is not None or (fixture is not None and bool(fixture.notes)),
    }


def _told(test: str, this: Run) -> Any:
    """Return the last cache that the test made and called, if any: the one that a failure draws."""
    fixture = this.fixtures.get(test)
    return next((kv for kv in reversed(fixture.kvs) if kv.spans), None) if fixture is not None else None


def tell(test: str, lang: str = "en") -> str:
    """Return what the last run's test did to its last cache: the figure's `data`, its last step as `still`, an SVG.

    As `texts` what the test compared.

    `lang`: the language in which the figure tells it.
    """
    kv, fixture = _told(test, _last), _last.fixtures[test]
    texts = story_texts(fixture, io.StringIO()) if fixture.notes else []
    if kv is None:
        return json.dumps({"texts": texts})
    words = re.sub(r"^(\d+) ", r"\1: ", test.removeprefix("test_").replace("_", " "))
    title = f"{line_in(lang, 'What your code did: ')}{words}"
    blocks, size = kv.manager.kv_cache_config.num_blocks, kv.manager.block_size
    data = spans_data(kv.spans, blocks, size, title, lang)
    drawn = blocks <= MOST_BLOCKS and data["steps"]
    return json.dumps({"data": data, "texts": texts, "still": svg(data, width=400) if drawn else ""})

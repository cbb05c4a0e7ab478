"""The learner's commands: status, watch, reset, hint, predict, story of a test."""

import ast
import contextlib
import io
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TextIO

from mini_kv.labkit.lab import Lab
from mini_kv.labkit.progress import read_state, state_folder, write_state
from mini_kv.labkit.scoreboard import run_command
from mini_kv.viz.figure import page, spans_data
from mini_kv.viz.terminal import play_spans


def pristine_starter(lab: Lab) -> Path:
    """Return the starter as the course gives it, whatever the learner has made of `starter.py`."""
    return Path(__file__).parent / "starters" / f"{lab.lab_id}.txt"


def status_lines(labs: Sequence[Lab], progress: dict[str, Any]) -> list[str]:
    """Return one line a lab: best points, what is to do, where to go on."""
    lines = []
    for lab in labs:
        entry = progress.get(lab.lab_id, {"best": 0, "score": 0, "tests": {}})
        best = entry["best"]
        bar = f"[{'#' * (20 * best // lab.points):.<20}]"
        now = "" if entry["score"] == best else f"   now {entry['score']}"
        lines.append(f"{lab.lab_id}  {bar} {best:>3}/{lab.points}{now:<9}  {lab.minutes:>3} min  {lab.title}")
    open_labs = [lab for lab in labs if progress.get(lab.lab_id, {}).get("best", 0) < lab.points]
    if open_labs:
        lines += ["", f"next: read labs/{open_labs[0].lab_id}/README.md, then type  {run_command(open_labs[0])}"]
    return lines


def give_hint(lab: Lab, function: str, out: TextIO) -> int:
    """Write the function's hints up to the next level, three at most; return 2 if there is no such function."""
    hints = tomllib.loads((lab.folder / "hints.toml").read_text(encoding="utf-8"))
    names = {lab.short_name(name): name for name in hints} | {name: name for name in hints}
    if function not in names:
        print(f"{lab.lab_id} has no function {function!r}; there are: {', '.join(hints)}", file=sys.stderr)
        return 2
    function = names[function]
    levels = hints[function]["levels"]
    folder = state_folder(lab)
    given = read_state(folder, "hints")
    key = f"{lab.lab_id} {function}"
    level = min(given.get(key, 0) + 1, len(levels))
    write_state(folder, "hints", {**given, key: level})
    for number, hint in enumerate(levels[:level], start=1):
        out.write(f"{number}. {hint}\n")
    if level < len(levels):
        out.write(f"(the same command again gives the next one; there are {len(levels)})\n")
    return 0


def ask_predictions(lab: Lab, out: TextIO, answers: TextIO) -> int:
    """Ask the lab's questions one by one; say what would have had to be true for a wrong answer."""
    questions = tomllib.loads((lab.folder / "predict.toml").read_text(encoding="utf-8"))["question"]
    folder = state_folder(lab)
    state = read_state(folder, "predictions")
    for number, question in enumerate(questions, start=1):
        out.write(f"\n[{number}/{len(questions)}] {question['ask']}\n> ")
        out.flush()
        answer = answers.readline()
        if not answer:
            out.write("\n")
            return 0
        right = _plain(answer) == _plain(question["answer"])
        state[f"{lab.lab_id} {question['id']}"] = {"answer": answer.strip(), "right": right}
        write_state(folder, "predictions", state)
        if right:
            out.write(f"Yes: {question['answer']}. {question['why']}\n")
            continue
        supposed = {_plain(wrong): reason for wrong, reason in question.get("wrong", {}).items()}.get(_plain(answer))
        if supposed is not None:
            out.write(f"No. {supposed}\n")
        out.write(f"It is {question['answer']}. {question['why']}\n")
    return 0


def _plain(answer: str) -> str:
    """Return the answer without what does not matter: case, spaces, commas, brackets, a unit or a percent sign."""
    return " ".join(re.sub(r"[\[\](),%]|tokens?|blocks?|percent", " ", answer.lower()).split())


def reset_starter(lab: Lab, out: TextIO) -> int:
    """Put the course's starter back; the learner's file is kept under a new name first."""
    kept = lab.root / ".mini_kv" / "backup"
    kept.mkdir(parents=True, exist_ok=True)
    if lab.starter.is_file():
        copy = kept / f"{lab.lab_id}-{time.strftime('%Y%m%d-%H%M%S')}.py"
        number = 1
        while copy.exists():  # twice in one second
            number += 1
            copy = copy.with_stem(f"{copy.stem}-{number}")
        shutil.copy2(lab.starter, copy)
        out.write(f"your file is kept as {os.path.relpath(copy)}\n")
    shutil.copyfile(pristine_starter(lab), lab.starter)
    out.write(f"{os.path.relpath(lab.starter)} is as it was at the start\n")
    return 0


def watch(lab: Lab, out: TextIO, poll_seconds: float = 0.5) -> int:
    """Run the lab each time the starter changes, until Ctrl-C; a failing run is what it is there for."""
    seen = None
    while True:
        stamp = lab.starter.stat().st_mtime_ns if lab.starter.is_file() else None
        if stamp != seen:
            seen = stamp
            out.write("\033[2J\033[H" if out.isatty() else "")
            out.flush()
            subprocess.run(
                [sys.executable, "-m", "pytest", str(lab.folder), "-q"],
                cwd=lab.root,
                env={**os.environ, "LAB_IMPL": "starter"},
                check=False,
            )
            out.write(f"watching {os.path.relpath(lab.starter)}; Ctrl-C stops\n")
            out.flush()
        time.sleep(poll_seconds)


def find_test(lab: Lab, beginning: str) -> str:
    """Return the one test whose name begins so. Raises `ValueError`, naming the tests, for none or several."""
    tree = ast.parse((lab.folder / "test_lab.py").read_text(encoding="utf-8"))
    tests = [node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")]
    found = [test for test in tests if test == beginning] or [
        test for test in tests if re.match(rf"{re.escape(beginning)}(_|$)", test) or beginning in test
    ]
    if len(found) != 1:
        listed = "\n  ".join(found or tests)
        raise ValueError(f"{beginning!r} is {'no test' if not found else 'several tests'} of {lab.lab_id}:\n  {listed}")
    return found[0]


def run_test(lab: Lab, test: str) -> tuple[Any, Any]:
    """Run one test on the learner's code, in silence; return its result and its fixture, for telling its story."""
    import pytest

    from mini_kv.labkit.plugin import FIXTURE, RESULTS

    class Collector:
        """Keeps what the test leaves behind."""

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


def page_of_test(lab: Lab, beginning: str) -> str:
    """Run the test on the learner's code and return a page that shows what it did to its cache, call by call.

    Raises `ValueError` if the test made no cache.
    """
    test = find_test(lab, beginning)
    result, fixture = run_test(lab, test)
    if fixture is None or not fixture.kvs:
        raise ValueError(f"{test} makes no cache, so there is nothing to draw")
    kv = fixture.kvs[-1]
    data = spans_data(kv.spans, kv.manager.kv_cache_config.num_blocks, kv.manager.block_size, f"{lab.lab_id}: {test}")
    data["ending"] = result.message or f"{result.test}: {result.state}"
    return page(data)


def tell_test(lab: Lab, beginning: str, out: TextIO, keys: TextIO | None) -> None:
    """Run the test on the learner's code and play what it did to its cache, call by call; then how it ended."""
    result, fixture = run_test(lab, find_test(lab, beginning))
    if fixture is not None and fixture.kvs:
        kv = fixture.kvs[-1]
        play_spans(kv.spans, kv.manager.kv_cache_config.num_blocks, out, keys)
        out.write("\n")
    out.write(f"{result.message or f'{result.test}: {result.state}'}\n")

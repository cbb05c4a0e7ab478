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

from mini_kv.labkit.lab import Lab, did_you_mean, shown
from mini_kv.labkit.scoreboard import run_command
from mini_kv.labkit.state import State, backup_path, locked, update_state
from mini_kv.viz.figure import page, spans_data
from mini_kv.viz.terminal import play_spans


def pristine_starter(lab: Lab) -> Path:
    """Return the starter as the course gives it, whatever the learner has made of `starter.py`."""
    return Path(__file__).parent / "starters" / f"{lab.lab_id}.txt"


def status_lines(labs: Sequence[Lab], progress: dict[str, Any]) -> list[str]:
    """Return one line per lab: best points, what is to do, where to go on."""
    lines = []
    for lab in labs:
        entry = progress.get(lab.lab_id, {"best": 0, "score": 0, "tests": {}})
        best = min(entry["best"], lab.points)  # of an edition where it was worth more
        bar = f"[{'#' * (20 * best // lab.points):.<20}]"
        now = "" if entry["score"] == best else f"   now {entry['score']}"
        lines.append(f"{lab.lab_id}  {bar} {best:>3}/{lab.points}{now:<9}  {lab.minutes:>3} min  {lab.title}")
    open_labs = [lab for lab in labs if progress.get(lab.lab_id, {}).get("best", 0) < lab.points]
    if open_labs:
        page = os.path.relpath(open_labs[0].folder / "README.md")
        lines += ["", f"next: read {page}, then type  {run_command(open_labs[0])}"]
    return lines


def read_course_file(lab: Lab, name: str) -> dict[str, Any]:
    """Return what one of the lab's TOML files says. Raises `ValueError` that names the file."""
    file = lab.folder / name
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{file}: {error}") from error


def give_hint(lab: Lab, function: str | None, out: TextIO) -> int:
    """Write the function's hints up to the next level, three at most; without a function, say for which there are.

    Raises `ValueError`, naming the functions, if there is no such one.
    """
    hints = read_course_file(lab, "hints.toml")
    short = [lab.short_name(name) for name in hints]
    if function is None:
        out.write(f"{lab.lab_id} has hints; type one of\n")
        for name in short:
            out.write(f"  mini-kv hint {lab.lab_id.removeprefix('lab-')} {name}\n")
        return 0
    names = dict(zip(short, hints, strict=True)) | {name: name for name in hints}
    names |= {also: name for name, hint in hints.items() for also in hint.get("also", ())}
    if function not in names:
        advice = did_you_mean(function, list(names))
        raise ValueError(f"{lab.lab_id} has no function {shown(function)}; {advice}there are: {', '.join(short)}")
    function = names[function]
    levels = hints[function]["levels"]
    key = f"{lab.lab_id} {function}"

    def one_more(given: State) -> None:
        given[key] = min(given.get(key, 0) + 1, len(levels))

    level = update_state(lab.state, "hints", one_more)[key]
    for number, hint in enumerate(levels[:level], start=1):
        out.write(f"{number}. {hint}\n")
    if level < len(levels):
        out.write(f"(the same command again gives the next one; there are {len(levels)})\n")
    return 0


def ask_predictions(lab: Lab, out: TextIO, answers: TextIO) -> int:
    """Ask the lab's questions one by one; say what would have had to be true for a wrong answer."""
    questions = read_course_file(lab, "predict.toml")["question"]
    given: State = {}
    try:
        for number, question in enumerate(questions, start=1):
            out.write(f"\n[{number}/{len(questions)}] {question['ask']}\n> ")
            out.flush()
            answer = answers.readline()
            if not answer:
                out.write("\n")
                break
            right = _plain(answer) == _plain(question["answer"])
            given[f"{lab.lab_id} {question['id']}"] = {"answer": answer.strip(), "right": right}
            out.write(_reply(question, answer, right))
    finally:  # whatever was answered before Ctrl-C counts
        if given:
            update_state(lab.state, "predictions", lambda state: state.update(given))
    return 0


def _reply(question: dict[str, Any], answer: str, right: bool) -> str:
    """Return what is said to an answer: why it is right, or what would have had to be true."""
    if right:
        return f"Yes: {question['answer']}. {question['why']}\n"
    supposed = {_plain(wrong): reason for wrong, reason in question.get("wrong", {}).items()}.get(_plain(answer))
    no = "" if supposed is None else f"No. {supposed}\n"
    return f"{no}It is {question['answer']}. {question['why']}\n"


def _plain(answer: str) -> str:
    """Return the answer without what does not matter: case, spaces, commas, brackets, a unit or a percent sign."""
    return " ".join(re.sub(r"[\[\](),%]|tokens?|blocks?|percent", " ", answer.lower()).split())


def reset_starter(lab: Lab, out: TextIO) -> int:
    """Put the course's starter back; the learner's file is kept under a new name first. Raises `OSError`."""
    lab.state.mkdir(exist_ok=True)
    with locked(lab.state):
        if lab.starter.is_file():
            copy = backup_path(lab.state, f"{lab.lab_id}.py")
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
    """Return the one test whose name begins so. Raises `ValueError` with the tests for none or several."""
    tree = ast.parse((lab.folder / "test_lab.py").read_text(encoding="utf-8"))
    functions = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
    tests = [name for name in functions if name.startswith("test_")]
    # As a whole, as `test_1` for test_1_..., which is not test_10, or as any part.
    for fits in (beginning.__eq__, lambda test: test.startswith(f"{beginning}_"), lambda test: beginning in test):
        found = list(filter(fits, tests))
        if found:
            break
    if len(found) != 1:
        listed = "\n  ".join(found or tests)
        found_are = "several tests" if found else "no test"
        raise ValueError(f"{shown(beginning)} is {found_are} of {lab.lab_id}:\n  {listed}")
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

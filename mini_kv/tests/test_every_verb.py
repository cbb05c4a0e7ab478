"""Every verb, with every argument of its parser: an unusable value is a message and status 2; Ctrl-C is 130."""

import argparse
import io
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mini_kv.cli import VERBS, build_parser, main
from mini_kv.course.commands.class_command import PARTS
from mini_kv.tools import traces

ROOT = Path(__file__).resolve().parents[2]
SMALL = str(Path(traces.__file__).with_name("small.jsonl"))
HOSTILE = ["no-such-thing", "0", "-1", "1e30", "nan", "", "-", "."]
WORKS = {
    "story": ["share-and-evict"],
    "puzzle": ["make-room"],
    "hint": ["05"],
    "predict": ["05"],
    "generate": ["A block is", "--max-tokens", "1"],
    "explain": [SMALL, "--model", "llama-3-8b"],
    "curve": [SMALL, "--model", "llama-3-8b"],
    "replay": [SMALL],
    "plan": ["llama-3-8b"],
    "why": ["llama-3-8b"],
    "session": ["example"],
    "trace": ["make", "chat", "--num-requests", "1"],
}
"""Arguments with which a verb is soon done."""
STOPS = {
    "serve": ["--model", "no/such/folder"],
    "finale": ["--labs", "no/such/folder"],
    "questions": ["--labs", "no/such/folder"],
    "attach": ["no/such/file"],
    "class grade": ["no/such/folder"],
    "class book": ["no/such/folder"],
    "class address": ["no address"],
    "run": ["no-such-lab"],
    "reset": ["no-such-lab"],
}
"""Arguments with which a verb that would go on stops at once."""
ALL = [*sorted(set(VERBS) - {"class"}), *(f"class {part}" for part in PARTS)]


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout with lab-05 alone; we are in it."""
    shutil.copytree(ROOT / "labs/lab-05", tmp_path / "labs/lab-05", ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO()))
    return tmp_path


def arguments(verb: str) -> Iterator[list[str]]:
    """Yield the verb's arguments: none, those that work, and these with each hostile value in each place."""
    words = verb.split()
    parser = build_parser(words[0])
    for word in words:
        parts = next(action.choices for action in parser._actions if isinstance(action, argparse._SubParsersAction))
        parser = parts[word]
    base = WORKS.get(verb) or STOPS.get(verb) or []
    yield []
    yield base
    for place in range(len(base) if verb in WORKS else 0):
        yield from ([*base[:place], value, *base[place + 1 :]] for value in HOSTILE)
    for action in parser._actions:
        if not action.option_strings or action.dest in ("help", "gpu"):  # a GPU is measured for minutes
            continue
        option = action.option_strings[-1]
        if action.nargs == 0:
            yield [*base, option]
        else:
            times = action.nargs if isinstance(action.nargs, int) else 1
            yield from ([*base, option, *[value] * times] for value in HOSTILE)


def check(verb: str, argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Run the verb here. An exception is a traceback for the user, and fails the test."""
    try:
        status = main([*verb.split(), *argv])
    except SystemExit as end:
        status = int(end.code or 0)
    said = capsys.readouterr().err
    assert status in (0, 1, 2), argv
    assert (status != 2) or said.strip(), argv
    assert "Traceback" not in said, argv


@pytest.mark.parametrize("verb", ALL)
def test_no_arguments_and_wrong_words_are_no_traceback(
    verb: str, checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if verb in ("serve", "finale", "questions", "status", "doctor"):  # these need none
        return
    check(verb, [], capsys)
    if verb != "generate":  # any word is a prompt
        check(verb, ["no-such-thing"], capsys)


@pytest.mark.slow
@pytest.mark.parametrize("verb", ALL)
def test_no_argument_is_a_traceback(verb: str, checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for argv in arguments(verb):
        if argv or verb not in STOPS:
            check(verb, argv, capsys)


LONG = {
    "generate": ["A block is", "--max-tokens", "500"],
    "finale": ["--labs", "solution"],
    "replay": [SMALL, "--policy", "all", "--jobs", "2"],
    "curve": [SMALL, "--block-sizes", "512", "1024", "--jobs", "2"],
    "run": ["05"],
    "run --watch": ["05"],
    "serve": ["--port", "0"],
    "verify": ["--", sys.executable, "-c", "import time; time.sleep(60)"],
}
"""Arguments with which a verb works for a while."""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="the terminal's Ctrl-C is another one on Windows")
@pytest.mark.parametrize("seconds", [0.05, 0.3, 1.0])
@pytest.mark.parametrize("verb", list(LONG))
def test_ctrl_c_ends_a_verb_in_silence_with_130(verb: str, seconds: float) -> None:
    """As in a terminal: every process of the group gets the signal, also those that the verb has started.

    On a quick machine some verbs are at their end after a second, and the signal may come when all is printed, or
    while Python ends: then it ends the process.
    """
    heard = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"  # a background job ignores it
    code = f"{heard}; import sys; from mini_kv.cli import main; print('ready', flush=True); sys.exit(main())"
    command = [sys.executable, "-c", code, *verb.split(), *LONG[verb]]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "stdin": subprocess.DEVNULL}
    with subprocess.Popen(command, cwd=ROOT, text=True, start_new_session=True, **pipes) as process:  # type: ignore[call-overload]
        assert process.stdout.readline() == "ready\n"
        time.sleep(seconds)
        is_done = process.poll() is not None  # on a quick machine
        if not is_done:
            os.killpg(process.pid, signal.SIGINT)
        out, said = process.communicate(timeout=60)
    at_its_end = seconds == 1.0 and verb in ("curve", "replay", "run") and out != ""
    at_its_end = at_its_end and process.returncode in (0, 1, -signal.SIGINT)
    assert is_done or at_its_end or process.returncode == 130
    assert "Traceback" not in said + out and "KeyboardInterrupt" not in said + out

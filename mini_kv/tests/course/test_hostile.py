"""Hostile and unlucky code under plain pytest: the right exit status, and results for every test, within the time."""

import json
import os
import subprocess
import sys

import pytest

from mini_kv.course.labkit.fixture import LabUnderTest
from mini_kv.tests.throwaway_lab import ROOT, SOLUTION, ThrowawayLab

pytest_plugins = ["pytester"]


@pytest.fixture
def lab(pytester, monkeypatch):
    return ThrowawayLab(pytester, monkeypatch)


def in_double(*lines):
    """Return the solution whose `double`, which the last test is about, first runs these lines."""
    start = SOLUTION.index("    return [2 *")
    return SOLUTION[:start] + "".join(f"    {line}\n" for line in lines) + SOLUTION[start:]


FOREVER = "while True: pass"
ENDED = (1, -27)
"""By SIGPROF, when the computing took too long. Windows has only the clock on the wall."""
HOSTILE = {
    # What would end the run, and with success.
    "ends Python": (in_double("import os", "os._exit(0)"), 1, "PPPF"),
    "ends Python on loading": (f"import os\nos._exit(0)\n{SOLUTION}", 1, "FWWW"),
    "ends Python without os": (in_double(f"import {os.name}", f"{os.name}._exit(0)"), 1, "PPPF"),
    "leaves pytest": (in_double("import pytest", "pytest.exit('x', 0)"), 1, "PPPF"),
    "leaves pytest on loading": (f"import pytest\npytest.exit('x', 0)\n{SOLUTION}", 1, "FWWW"),
    "exits": (in_double("import sys", "sys.exit(0)"), 1, "PPPF"),
    "exits on loading": (f"raise SystemExit(0)\n{SOLUTION}", 1, "FWWW"),
    "skips": (f"import pytest\npytest.skip(allow_module_level=True)\n{SOLUTION}", 1, "FWWW"),
    "says Ctrl-C": (in_double("raise KeyboardInterrupt"), 1, "PPPF"),
    "ends Python at the end": (in_double("import atexit, os", "atexit.register(os._exit, 0)", "return 7"), 1, "PPPF"),
    "ends Python in a thread": (
        in_double("import os, threading", "threading.Timer(0.2, os._exit, [0]).start()", "return 7"),
        1,
        "PPPF",
    ),
    "is killed": (in_double("import os, signal", "os.kill(os.getpid(), signal.SIGKILL)"), -9, "PPPF"),
    # What would not end.
    "a loop in C": (in_double("import itertools", "sum(itertools.repeat(1))"), ENDED, "PPPF"),
    "a loop in C on loading": (f"import itertools\nsum(itertools.repeat(1))\n{SOLUTION}", ENDED, "FNNN"),
    "a loop behind a loop": (in_double("try:", f"    {FOREVER}", "finally:", f"    {FOREVER}"), 1, "PPPF"),
    "hears no interruption": (
        in_double("import signal", "signal.signal(signal.SIGINT, lambda *_: 0)", FOREVER),
        1,
        "PPPF",
    ),
    "a thread that stays": (
        in_double("import threading, time", "threading.Thread(target=time.sleep, args=[10**6]).start()"),
        0,
        "PPPP",
    ),
    # What would take everything, or the others' points.
    "takes all memory": (in_double("x = []", "while True: x.append(bytes(10**7))"), 1, "PPPF"),
    "asks for too much memory": (in_double("x = [0] * 10**14"), 1, "PPPF"),
    "a recursion": (in_double("return double(numbers)"), 1, "PPPF"),
    "a recursion that goes on": (
        in_double("try: return double(numbers)", "except RecursionError: return double(numbers)"),
        1,
        "PPPF",
    ),
    "prints without end": (in_double("for _ in range(100): print('x' * 10**6)", "return 7"), 1, "PPPF"),
    "a thread that raises": (
        in_double("import threading", "threading.Thread(target=int, args=['x']).start()"),
        0,
        "PPPP",
    ),
    "deletes the results": (
        in_double("import pathlib", "pathlib.Path('out.json').unlink(missing_ok=True)", "return 7"),
        1,
        "PPPF",
    ),
    "closes the terminal": (in_double("import sys", "sys.stdout.close()", "return 7"), 1, "PPPF"),
    "closes every file": (in_double("import os", "os.closerange(0, 99)"), 1, "PPPF"),
    "changes the judge": (
        "from mini_kv.course.labkit.fixture import LabUnderTest\nLabUnderTest.expect = lambda *_, **__: None\n"
        + in_double("return 7"),
        1,
        "FFFF",
    ),
}
"""Code, exit status, and how each of the four tests ends, by its first letter."""


@pytest.mark.slow
@pytest.mark.parametrize("name", HOSTILE)
def test_whatever_the_code_does(lab, name):
    """No success but for what has passed; the file has every test's result, those before a breakdown as they were."""
    code, status, letters = HOSTILE[name]
    run = lab.run_apart(code, "--lab-seconds=0.3", "--lab-json=out.json", environment=os.environ)
    tests = json.loads((lab.root / "out.json").read_text(encoding="utf-8"))["tests"]
    assert run.status in (status if status is ENDED else (status,))
    assert "".join(test["state"][0].upper() for test in tests) == letters
    assert len(run.out) < 30_000


MESSAGES = {
    "says Ctrl-C": "the code raised KeyboardInterrupt",
    "leaves pytest": "the code called exit()",
    "takes all memory": "out of memory: the code needs more than a test may use",
    "asks for too much memory": "out of memory: the code needs more than a test may use",
}


@pytest.mark.parametrize("name", MESSAGES)
def test_what_a_learner_reads(lab, name):
    code, status, letters = HOSTILE[name]
    run = lab.run_code(code)
    assert (run.status, run.letters, run.message.splitlines()[1]) == (status, letters, MESSAGES[name])


def test_a_busy_machine_gives_no_verdict_and_what_builds_on_the_test_waits(lab):
    """Not a failure. The last line says why, and the message is in the file for machines."""
    busy = "from mini_kv.course.labkit.time_limit import NoVerdictError\nraise NoVerdictError('no verdict: busy')\n"
    run = lab.run_code(f"{busy}{SOLUTION}", "--lab-json=out.json")
    tests = json.loads((lab.root / "out.json").read_text(encoding="utf-8"))["tests"]
    assert [test["state"] for test in tests] == ["no verdict", "wait", "wait", "wait"]
    assert tests[0]["message"] == "no verdict: busy"
    assert "    NO VERDICT 0/3   test_1_cold " in run.out
    assert "  next: test_1_cold  no verdict: busy. Run it again.\n" in run.out


def test_of_much_that_was_printed_the_beginning_and_the_end_are_shown(lab):
    run = lab.run_code(in_double("print('begin' + 10**6 * '.' + 'end')", "return 7"))
    assert "begin..." in run.out
    assert "\n(990,009 characters are left out)\n" in run.out
    assert "...end" in run.out


def test_who_changes_the_judge_gets_nothing_and_is_told_why(lab):
    code, status, letters = HOSTILE["changes the judge"]
    own = LabUnderTest.expect
    try:
        run = lab.run_code(code)
    finally:
        LabUnderTest.expect = own  # type: ignore[method-assign]
    assert (run.status, run.letters) == (status, letters)
    assert run.out.splitlines()[-2] == (
        "note: the code changed functions of the judge, so no test counts: "
        "mini_kv.course.labkit.fixture.LabUnderTest.expect"
    )


@pytest.mark.slow
def test_at_a_debugger_no_clock_runs(lab):
    """Twice the time that a test may wait for, at the prompt of pdb; then it goes on, and passes."""
    lab.write("mine.py", in_double("breakpoint()"))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "labs/lab-77", "--lab-seconds=0.1"],
        cwd=lab.root,
        env={**os.environ, "LAB_IMPL": "mine.py", "PYTHONPATH": str(ROOT)},
        input="import time; time.sleep(2.4)\ncontinue\n",
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, "TookTooLong" in done.stdout, "10 of 10 points" in done.stdout) == (0, False, True)

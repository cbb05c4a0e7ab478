"""The scoreboard: states, points and the next thing to do; compared as whole texts."""

import importlib.util
import json
import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from mini_kv.course.labkit.lab import load_lab
from mini_kv.installer import pip
from mini_kv.tests.throwaway_lab import LAB_TOML, ROOT, SOLUTION, STARTER, TESTS, ThrowawayLab

pytest_plugins = ["pytester"]


@pytest.fixture
def lab(pytester, monkeypatch):
    return ThrowawayLab(pytester, monkeypatch)


def board(run):
    """Return the scoreboard without pytest's own last lines."""
    return run.scoreboard.replace(os.sep, "/").partition("\n===")[0]


def test_untouched(lab):
    """Nothing passes, everything is TODO, no reproach, no traceback: what to write first, where, how long."""
    run = lab.run("starter")
    assert run.status == 1
    assert run.messages == {}
    assert "Traceback" not in run.out and "Error" not in run.out and "FAIL" not in run.out
    assert board(run) == (
        "lab-77  A lab to throw away\n"
        "code that ran: labs/lab-77/starter.py (LAB_IMPL=starter)\n"
        "\n"
        "  biography\n"
        "    TODO     0/3   test_1_cold    prefill\n"
        "    TODO     0/2   test_2_warm    prefill\n"
        "  adversary\n"
        "    TODO     0/1   test_3_three   prefill\n"
        "    TODO     0/4   test_4_double  double\n"
        "\n"
        "  [..............................]  0 of 10 points   prefill 0/6  double 0/4\n"
        "  NOT PASSED YET\n"
        "  next: test_1_cold  labs/lab-77/starter.py:5 prefill, about 15 minutes"
    )
    assert run.out.rstrip().splitlines()[-1].strip("= ").startswith("4 todo in ")


def test_half_way(lab):
    """One function is written: its points are there, the other is next, and a test that is TODO holds up no other."""
    run = lab.run_code(STARTER.replace('todo("lab-77", "double", "multiply by 2")', "return [2 * n for n in numbers]"))
    assert run.states == dict(zip(TESTS, ["TODO 0/3", "TODO 0/2", "TODO 0/1", "PASS 4/4"], strict=True))
    assert board(run).splitlines()[-3:] == [
        "  [############..................]  4 of 10 points   prefill 0/6  double 4/4",
        "  NOT PASSED YET",
        "  next: test_1_cold  mine.py:5 prefill, about 15 minutes",
    ]


def test_full_marks(lab):
    """PASSED, exit 0."""
    run = lab.run_code(SOLUTION)
    assert run.status == 0
    assert run.states == {test: f"PASS {points}/{points}" for test, points in TESTS.items()}
    assert board(run).splitlines()[10:12] == [
        "  [##############################]  10 of 10 points   prefill 6/6  double 4/4",
        "  PASSED",
    ]
    assert "NOT PASSED" not in run.out


def test_a_failure_makes_those_wait_that_build_on_it(lab):
    """The first real problem is on top, and its grandchildren wait as well; the others run."""
    run = lab.run_code(SOLUTION.replace("new_request(request_id", "new_request('X'"))
    assert run.status == 1
    assert run.states == dict(zip(TESTS, ["FAIL 0/3", "WAIT 0/2", "WAIT 0/1", "PASS 4/4"], strict=True))
    assert list(run.messages) == ["test_1_cold"]
    assert board(run).splitlines()[-1] == "  next: test_1_cold  mine.py:1 prefill"


def test_a_failure_in_the_middle(lab):
    """What comes before it keeps its points."""
    run = lab.run_code(SOLUTION.replace("num_cached, num_cached, blocks", "num_cached").replace("- num_cached)", ")"))
    assert run.states == dict(zip(TESTS, ["PASS 3/3", "FAIL 0/2", "WAIT 0/1", "PASS 4/4"], strict=True))


def test_a_todo_holds_up_no_other_test(lab):
    """TODO is no failure: who writes the second step first sees what it does."""
    lab.write(
        "labs/lab-77/test_lab.py",
        "from mini_kv.course import points\n\n\n"
        '@points(5, "double")\ndef test_1(lab):\n    """One."""\n    lab.double([])\n\n\n'
        '@points(5, "double", after="test_1")\ndef test_2(lab):\n    """Two."""\n'
        '    lab.expect("the doubles", [2], lab.double([1]))\n',
    )
    code = "from mini_kv.course import todo\n" + SOLUTION.replace(
        "    return [", "    if not numbers:\n        todo('lab-77', 'double', 'no numbers')\n    return ["
    )
    run = lab.run_code(code)
    assert run.states == {"test_1": "TODO 0/5", "test_2": "PASS 5/5"}


CASES = '''
import pytest

from mini_kv.course import points


@pytest.mark.parametrize(
    "number",
    [
        pytest.param(1, id="test_1_one", marks=points(4, "double")),
        pytest.param(2, id="test_2_two", marks=points(6, "prefill", after="test_1_one")),
    ],
)
def test_a_number(lab, number):
    """A number is doubled."""
    lab.expect("the doubles", [2 * number], lab.double([number]))
'''


def test_a_case_of_a_parametrized_test_has_its_id_as_its_name(lab):
    """On the scoreboard, in `after`, and on the command line."""
    lab.write("labs/lab-77/test_lab.py", CASES)
    assert lab.run_code(SOLUTION).states == {"test_1_one": "PASS 4/4", "test_2_two": "PASS 6/6"}
    wrong = lab.run_code(SOLUTION.replace("2 *", "30 *"))
    assert wrong.states == {"test_1_one": "FAIL 0/4", "test_2_two": "WAIT 0/6"}
    assert "test_1_one" in wrong.message
    lab.write("mine.py", SOLUTION)
    one = lab.run("mine.py", target="labs/lab-77/test_lab.py::test_2_two")
    assert one.states == lab.run("mine.py", "-k", "two").states == {"test_2_two": "PASS 6/6"}
    assert load_lab(lab.root / "labs/lab-77").tests() == ["test_1_one", "test_2_two"]


def test_a_part_of_the_lab_is_not_the_lab(lab):
    """`-k` runs what it selects; the points of the rest stay in the denominator, and nothing is called PASSED."""
    run = lab.run_code(SOLUTION, "-k", "test_1")
    assert (run.status, run.states) == (0, {"test_1_cold": "PASS 3/3"})
    assert board(run).splitlines()[-2:] == [
        "  [#########.....................]  3 of 10 points   prefill 3/3",
        "  PASSED, but only some tests ran. All tests:  pytest labs/lab-77",
    ]
    run = lab.run_code(SOLUTION, "--deselect=labs/lab-77/test_lab.py::test_4_double")
    assert "6 of 10 points" in board(run)


def test_only_a_whole_run_is_remembered(lab):
    """A part of the lab leaves no record, nor does the reference; the learner's whole run does."""
    progress = lab.root / ".mini_kv/progress.json"
    lab.write("labs/lab-77/starter.py", SOLUTION)
    lab.run("starter", "-k", "test_1")
    lab.run("starter", target="labs/lab-77/test_lab.py::test_1_cold")
    lab.run("solution")
    assert not progress.exists()
    lab.run("starter")
    kept = json.loads(progress.read_text(encoding="utf-8"))["entries"]["lab-77"]
    assert (kept["score"], kept["best"], kept["points"], list(kept["tests"])) == (10, 10, 10, list(TESTS))


@pytest.mark.slow
def test_a_run_that_stops_early_has_not_lost_a_point_from_the_total(lab):
    """`-x`, or Ctrl-C: what never ran is NOT RUN, with its points."""
    run = lab.run_code("", "-x")
    assert run.states == dict(zip(TESTS, ["FAIL 0/3", "NOT RUN 0/2", "NOT RUN 0/1", "NOT RUN 0/4"], strict=True))
    assert "0 of 10 points" in board(run)
    run = lab.run_code(
        f"{SOLUTION}\n\ndef double(numbers):\n    import signal\n    signal.raise_signal(signal.SIGINT)\n"
    )
    assert list(run.states.values()) == ["PASS 3/3", "PASS 2/2", "PASS 1/1", "NOT RUN 0/4"]
    assert run.status == 2


def test_collecting_is_no_run(lab):
    """`--collect-only` lists the tests and gives no points."""
    run = lab.run("starter", "--collect-only", "-q")
    assert run.status == 0
    assert "points" not in run.out


@pytest.mark.parametrize("choice", ["starter", "solution"])
def test_junitxml_has_every_test(lab, choice):
    """A teacher's machine reads the same run: no test is missing from it, TODO counts as failed."""
    lab.run(choice, "--junitxml=out.xml")
    cases = list(ET.parse(lab.root / "out.xml").getroot().iter("testcase"))
    assert [case.get("name") for case in cases] == list(TESTS)
    failed = [case.get("name") for case in cases if case.find("failure") is not None]
    assert failed == (list(TESTS) if choice == "starter" else [])


EXPORTS = {"--lab-json": "a.json", "--junitxml": "d.xml"}


@pytest.mark.slow
def test_results_of_an_earlier_run_do_not_survive_a_crash(lab):
    """Full marks were written; then comes a run that is killed, and one that does not even begin.

    Of the first one, what was known when it was killed is there. JUnit's file is pytest's, and written at the end.
    """
    options = [f"{option}={file}" for option, file in EXPORTS.items()]
    assert lab.run("solution", *options).status == 0
    assert all((lab.root / file).is_file() for file in EXPORTS.values())
    killed = "    import os, signal\n    os.kill(os.getpid(), signal.SIGKILL)\n"
    run = lab.run_apart(f"{SOLUTION}\n\ndef double(numbers):\n{killed}", *options, environment=os.environ)
    assert (run.status, run.states) == (-9, {})
    tests = json.loads((lab.root / "a.json").read_text(encoding="utf-8"))["tests"]
    assert [(test["state"], test["score"], test["message"]) for test in tests] == [
        ("pass", 3, ""),
        ("pass", 2, ""),
        ("pass", 1, ""),
        ("fail", 0, "Python ended in this test, before the test did"),
    ]
    assert not (lab.root / "d.xml").exists()
    assert lab.run("no_such_file.py", *options).status == 4
    assert [file for file in EXPORTS.values() if (lab.root / file).exists()] == []


def test_results_are_written_whole(lab):
    """What is there is a whole file and nothing beside it; a pipe is written to as it is."""
    lab.run("solution", "--lab-json=a.json")
    lab.run("starter", "--lab-json=a.json")
    assert [test["score"] for test in json.loads((lab.root / "a.json").read_text())["tests"]] == [0, 0, 0, 0]
    assert list(lab.root.glob("a.json*")) == [lab.root / "a.json"]
    assert lab.run("solution", f"--lab-json={os.devnull}").status == 0
    assert not Path(os.devnull).is_file()


def test_a_test_for_another_machine(lab):
    """A skip is told at the end, with its reason, and without it nothing is told."""
    lab.write("test_gpu.py", 'import pytest\n\n\ndef test_gpu():\n    pytest.skip("needs a GPU")\n')
    run = lab.run(None, target="test_gpu.py")
    assert run.status == 0
    lines = run.out.partition("what could not run on this machine")[2].split("\n")
    assert [line for line in lines if line.startswith("  ")] == ["  Skipped: needs a GPU"]
    assert "could not run" not in lab.run(None).out


@pytest.mark.parametrize(("name", "value"), [("CI", "true"), ("MINI_KV_NO_SKIP", "1")])
def test_no_skip_in_ci(lab, name, value):
    """Where everything must be present, what is missing is a failure; its reason is kept."""
    lab.write("test_gpu.py", 'import pytest\n\n\ndef test_gpu():\n    pytest.skip("needs a GPU")\n')
    lab.write("test_mark.py", 'import pytest\n\n\n@pytest.mark.skip(reason="no npm")\ndef test_npm():\n    pass\n')
    lab.monkeypatch.setenv(name, value)
    run = lab.run(None, "test_mark.py", target="test_gpu.py")
    assert run.status == 1
    assert "1 failed, 1 error" in run.out  # pytest says error where the mark was found before the test began
    assert run.messages == {
        "test_gpu": "skipped, which is not allowed here: Skipped: needs a GPU",
        "ERROR at setup of test_npm": "skipped, which is not allowed here: Skipped: no npm",
    }
    assert "could not run" not in run.out


def test_an_expected_failure_is_no_skip(lab):
    """xfail stays what it is, in CI too."""
    lab.write("test_x.py", 'import pytest\n\n\n@pytest.mark.xfail(reason="known")\ndef test_x():\n    assert False\n')
    lab.monkeypatch.setenv("CI", "true")
    run = lab.run(None, target="test_x.py")
    assert (run.status, "1 xfailed" in run.out) == (0, True)


def test_a_learner_cannot_skip(lab):
    """Neither `pytest.skip` nor `pytest.xfail` in the learner's code turns red into yellow."""
    for excuse in ("skip", "xfail"):
        code = SOLUTION.replace("    return [", f'    import pytest\n\n    pytest.{excuse}("later")\n    return [')
        run = lab.run_code(code)
        assert (run.status, run.states["test_4_double"]) == (1, "FAIL 0/4")


def test_a_function_of_one_minute_is_not_about_1_minutes(lab):
    lab.write("labs/lab-77/lab.toml", LAB_TOML.replace("minutes = 15", "minutes = 1"))
    assert "prefill, about 1 minute\n" in lab.run("starter").out


def test_a_lab_that_needs_what_is_not_here(lab):
    """No points and no reproach: every test stays in the table, and the last line says what to type."""
    lab.write("labs/lab-77/lab.toml", LAB_TOML.replace('needs = "C"', 'needs = "T"'))
    find_spec = importlib.util.find_spec
    lab.monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "torch" else find_spec(name))
    needed = f"lab-77 needs PyTorch, on a CPU: {pip()} install torch --index-url https://download.pytorch.org/whl/cpu"
    run = lab.run("starter")
    assert run.states == {test: f"NOT RUN 0/{points}" for test, points in TESTS.items()}
    assert board(run).splitlines()[-2:] == [
        "  [..............................]  0 of 10 points   prefill 0/6  double 0/4",
        f"  NOT RUN: {needed}",
    ]
    assert f"  Skipped: {needed}" in run.out.partition("what could not run on this machine")[2].splitlines()
    assert not (lab.root / ".mini_kv").exists()  # no record of 0 points
    lab.monkeypatch.setenv("MINI_KV_NO_SKIP", "1")
    assert lab.run(None).status == 1


@pytest.mark.parametrize(
    ("half", "said"),
    [
        ("raise OSError('libtorch.so: no such file')", "OSError: libtorch.so: no such file"),
        ("from torch._C import *", "ModuleNotFoundError: No module named 'torch._C'"),
        ("", "AttributeError: module 'torch' has no attribute 'set_num_threads'"),
    ],
)
def test_an_unfinished_torch_is_one_sentence(lab, half, said):
    lab.write("labs/lab-77/lab.toml", LAB_TOML.replace('needs = "C"', 'needs = "T"'))
    lab.write("torch/__init__.py", half)
    environment = {**os.environ, "LAB_IMPL": "starter", "PYTHONPATH": os.pathsep.join((str(lab.root), str(ROOT)))}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "labs/lab-77"],
        cwd=lab.root, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr.splitlines()) == (
        4,
        [
            f"ERROR: lab-77 needs PyTorch, on a CPU, and what is installed cannot be imported ({said}). Was the"
            f" installation interrupted? Repeat it: {pip()} uninstall torch, then install them again",
            "",
        ],
    )


@pytest.mark.slow
def test_two_processes_make_one_scoreboard(lab):
    """`make test` shares the tests out among workers: states, messages, exports and record are those of one process."""
    pytest.importorskip("xdist", reason="needs pytest-xdist: make test")
    lab.monkeypatch.setenv("PYTHONPATH", str(ROOT))
    code = SOLUTION.replace("2 * number", "number")
    alone = lab.run_code(code, "--lab-json=alone.json")
    shared = lab.run_code(code, "--lab-json=shared.json", "-p", "xdist", "-n", "2", "--dist=loadfile")
    assert (shared.status, board(shared), shared.messages.keys()) == (1, board(alone), {"test_4_double"})
    assert (lab.root / "shared.json").read_text() == (lab.root / "alone.json").read_text()
    todo = lab.run("starter", "-p", "xdist", "-n", "1")
    assert (todo.letters, todo.messages) == ("TTTT", {})
    assert '"score": 0' in (lab.root / ".mini_kv/progress.json").read_text()


@pytest.mark.slow
def test_a_skip_in_a_worker_is_told(lab):
    """And where none may be, it is a failure there, too."""
    pytest.importorskip("xdist", reason="needs pytest-xdist: make test")
    lab.monkeypatch.setenv("PYTHONPATH", str(ROOT))
    lab.write("test_gpu.py", 'import pytest\n\n\ndef test_gpu():\n    pytest.skip("needs a GPU")\n')
    run = lab.run(None, "-p", "xdist", "-n", "1", target="test_gpu.py")
    assert "  Skipped: needs a GPU" in run.out.partition("what could not run on this machine")[2].split("\n")
    lab.monkeypatch.setenv("MINI_KV_NO_SKIP", "1")
    refused = lab.run(None, "-p", "xdist", "-n", "1", target="test_gpu.py")
    assert refused.status == 1
    assert refused.messages["test_gpu"].endswith("skipped, which is not allowed here: Skipped: needs a GPU")

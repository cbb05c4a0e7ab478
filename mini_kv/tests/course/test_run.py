"""`mini-kv run`: one failure at a time, a number to foresee before it, and what a pass is worth."""

import io
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from mini_kv.course.commands.predict_command import ask_next
from mini_kv.course.labkit.lab import Lab, load_lab
from mini_kv.course.labkit.learner_state import update_state
from mini_kv.course.labkit.progress import foreseen

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
SOLUTION = (ROOT / "solutions/lab-05/solution.py").read_text(encoding="utf-8")


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lab:
    """A repository with labs 05 and 06, their starters as the course gives them."""
    for number in ("05", "06"):
        folder = tmp_path / f"labs/lab-{number}"
        shutil.copytree(ROOT / f"labs/lab-{number}", folder, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(load_lab(folder).pristine_starter, folder / "starter.py")
    for name in ("conftest.py", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    monkeypatch.chdir(tmp_path)
    return load_lab(tmp_path / "labs/lab-05")


def mini_kv(*words: str) -> tuple[int, list[str]]:
    """Run the command as a learner does, without LAB_IMPL; return its exit status and the lines it prints."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    environment.pop("LAB_IMPL", None)
    done = subprocess.run(
        [sys.executable, "-m", "mini_kv", *words],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        check=False,
    )
    return done.returncode, done.stdout.splitlines()


def test_the_first_run_says_where_to_begin(lab: Lab) -> None:
    """Nothing is written: five lines and no failure."""
    status, lines = mini_kv("run", "05")
    assert status == 1
    assert lines[1:-1] == [
        "lab-05  Share and evict: the life of a cached block",
        "",
        "  [..............................]  0 of 50 points   20 todo",
        "  next: test_1_first_request_populates_a_cold_cache",
        "        labs/lab-05/starter.py:14 prefill, about 30 minutes",
    ]


def test_one_failure_and_how_many_more(lab: Lab) -> None:
    """It fits on a screen, shows what print() printed, and the hint is for the function at fault."""
    wrong = SOLUTION.replace("= kv.get_computed_blocks(request)", "= None, 0; print('here')")
    wrong = wrong.replace("[block.ref_cnt for", "[1 for").replace("hits / stats.queries", "hits / 1000")
    lab.starter.write_text(wrong, encoding="utf-8")
    status, lines = mini_kv("run", "05")
    assert status == 1
    assert [line for line in lines if line.startswith("lab-05")] == [
        "lab-05  test_2_identical_prompt_shares_all_but_the_tail_block"
    ]
    assert "   printed   here" in lines
    assert lines[-3:-1] == [
        "  2 more failures; all of them:  mini-kv run 05 --all",
        "  [#####.........................]  9 of 50 points   4 pass, 3 fail, 13 wait",
    ]
    assert len(lines) <= 24
    _, everything = mini_kv("run", "05", "--all")
    assert sum(line.startswith("lab-05  test_") for line in everything) == 3
    status, hint = mini_kv("hint", "05")
    assert (status, hint[0]) == (0, "prefill, the function at fault in your last run:")


def test_what_is_known_of_another_function_is_one_line(lab: Lab) -> None:
    """The first failure names its own belief; that of `ref_counts` would be found by `--all` only."""
    wrong = SOLUTION.replace("= kv.get_computed_blocks(request)", "= None, 0").replace(
        "in table]", "in reversed(table)]"
    )
    lab.starter.write_text(wrong, encoding="utf-8")
    _, lines = mini_kv("run", "05")
    assert lines[-4:-1] == [
        "  1 more failure; all of them:  mini-kv run 05 --all",
        "  in ref_counts your code acts as if a table lists its blocks in the order in which they are freed",
        "  [#########.....................]  15 of 50 points   6 pass, 2 fail, 12 wait",
    ]


def test_a_pass_says_what_it_is_worth(lab: Lab) -> None:
    """Exit 0; what is in vLLM, what comes next, a question to take away. The hint has nothing to be about."""
    lab.starter.write_text(SOLUTION, encoding="utf-8")
    status, lines = mini_kv("run", "05")
    assert status == 0
    assert "  PASSED. Part 1 done: 50 of 50" in lines
    assert "  Five questions about your own code:  mini-kv questions --lab 05" in lines
    assert "  Next: Slots for the next token (60 minutes), labs/lab-06/README.md" in lines
    assert " ".join(" ".join(lines).split()).count(f"To take away: {lab.question}") == 1
    assert mini_kv("hint", "05")[1][0] == "lab-05 has hints; type one of"


def test_a_pass_names_the_parts_that_are_the_learners_now(lab: Lab) -> None:
    solution = ROOT / "solutions/lab-06/solution.py"
    shutil.copy(solution, lab.root / "labs/lab-06/starter.py")
    _, lines = mini_kv("run", "06")
    place = lines.index("  The engine can run on your KVCacheManager:")
    assert lines[place + 1] == '    mini-kv generate "A block is free when" --labs starter'


def test_a_file_that_ends_python_is_no_result(lab: Lab) -> None:
    """Exit 2, and a line that says so. What was known before stays."""
    lab.starter.write_text("import os, signal\n\nos.kill(os.getpid(), signal.SIGKILL)\n", encoding="utf-8")
    test = "test_1_first_request_populates_a_cold_cache"
    said = f"Python ended with status -9 in {test}. Does starter.py end it, or crash it?"
    assert mini_kv("run", "05") == (2, [said])
    assert mini_kv("run", "55")[0] == 2


@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "inf", "many"])
def test_no_time_at_all_is_no_limit(lab: Lab, capfd: pytest.CaptureFixture[str], seconds: str) -> None:
    """A line that says what would do, by the command and by pytest."""
    said = f"'{seconds}' is not a number above 0, and at most 1,000,000,000"
    assert mini_kv("run", "05", f"--lab-seconds={seconds}")[0] == 2
    assert said in capfd.readouterr().err
    command = [sys.executable, "-m", "pytest", "labs/lab-05", f"--lab-seconds={seconds}"]
    assert subprocess.run(command, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False).returncode == 4
    assert said in capfd.readouterr().err


def test_a_number_is_asked_for_before_it_is_shown(lab: Lab) -> None:
    """One question per run, about a test that has not passed; Enter skips it, and it is not asked again."""
    update_state(lab.state, "progress", lambda entries: entries.update({"lab-05": PROGRESS}))
    out = io.StringIO()
    ask_next(lab, out, io.StringIO("9 8\n"))  # both questions about test 2 are passed over: it has passed
    assert out.getvalue().startswith("Before you look: A (blocks 1 to 8) is freed, then B")
    assert "B would have to leave before A." in out.getvalue()
    assert foreseen(lab) == (0, 1)
    told = []
    for typed in ("", "\n", "\n"):  # the end of input is no answer; Enter skips; no question is left
        out = io.StringIO()
        ask_next(lab, out, io.StringIO(typed))
        told.append(out.getvalue().partition("\n")[0])
    rate = "Before you look: After A and B, both with 32 tokens, what is the hit rate, in percent?"
    assert told == [rate, rate, ""]
    assert foreseen(lab) == (0, 1)


PROGRESS = {
    "score": 9,
    "best": 9,
    "points": 50,
    "source": "labs/lab-05/starter.py",
    "tests": {"test_2_identical_prompt_shares_all_but_the_tail_block": "pass"},
    "when": "2027-01-01 10:00",
}


def test_what_was_foreseen_is_exported_beside_the_points(lab: Lab) -> None:
    ask_next(lab, io.StringIO(), io.StringIO("28\n"))
    lines = mini_kv("run", "05")[1]
    assert lines[-1] == "code 0/50, foreseen 1/1"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "LAB_IMPL": "starter"}
    command = [sys.executable, "-m", "pytest", "-q", "labs/lab-05", "--lab-json=out.json"]
    subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, check=False)
    assert json.loads(Path("out.json").read_text(encoding="utf-8"))["foreseen"] == {"lab-05": {"right": 1, "asked": 1}}

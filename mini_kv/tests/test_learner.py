"""The learner's commands and the files for machines, on a copy of lab-05."""

import io
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType

import pytest

from mini_kv.cli import main
from mini_kv.course.commands.hint_command import give_hint
from mini_kv.course.commands.predict_command import ask_predictions
from mini_kv.course.commands.reset_command import reset_starter
from mini_kv.course.commands.status_command import status_lines
from mini_kv.course.commands.story_command import find_test
from mini_kv.course.labkit.export import as_json
from mini_kv.course.labkit.implementation import Implementation
from mini_kv.course.labkit.lab import Lab, UnknownLabError, find_lab, load_lab
from mini_kv.course.labkit.learner_state import read_state
from mini_kv.course.labkit.progress import record_run
from mini_kv.course.labkit.scoreboard import LabResult, State, draw_scoreboard

ROOT = Path(__file__).parents[2]


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lab:
    """A repository with lab-05 alone, its starter as the course gives it."""
    shutil.copytree(ROOT / "labs/lab-05", tmp_path / "labs/lab-05", ignore=shutil.ignore_patterns("__pycache__"))
    copied = load_lab(tmp_path / "labs/lab-05")
    shutil.copy(copied.pristine_starter, copied.starter)
    monkeypatch.chdir(tmp_path)
    return copied


def result(lab: Lab, test: str, state: State, points: int, message: str = "") -> LabResult:
    return LabResult(lab, test, points, "prefill", "biography", None, state, message)


def test_hints_come_one_at_a_time(lab: Lab) -> None:
    """The first call asks a question; each further one adds a plainer hint, and the third says so no more."""
    told = []
    for _ in range(4):
        out = io.StringIO()
        assert give_hint(lab, "prefill", out) == 0
        told.append([line[:2] for line in out.getvalue().splitlines()])
    assert told == [["1.", "(t"], ["1.", "2.", "(t"], ["1.", "2.", "3."], ["1.", "2.", "3."]]


def test_a_hint_for_nothing_names_the_functions(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    """One line, and no state is kept for it."""
    assert main(["hint", "05", "prefil"]) == 2
    advice = "did you mean prefill? there are: prefill, ref_counts, cache_hit_rate"
    assert capsys.readouterr().err == f"mini-kv hint: lab-05 has no function 'prefil'; {advice}\n"


def test_two_methods_of_one_name_are_told_apart() -> None:
    """lab-12 has two classes with a `find_longest_cache_hit`: each is called by both names, and found in its class."""
    lab_12 = load_lab(ROOT / "labs/lab-12")
    assert [lab_12.short_name(function.name) for function in lab_12.functions] == [
        "get_num_skipped_tokens",
        "remove_skipped_blocks",
        "SlidingWindowManager.find_longest_cache_hit",
        "HybridKVCacheCoordinator.find_longest_cache_hit",
        "group_layers",
    ]
    starter = lab_12.pristine_starter
    above = []
    for function in lab_12.functions[2:4]:
        to_do = LabResult(lab_12, "test_1", 50, function.name, "biography", None, State.TODO)
        board = draw_scoreboard(Implementation(lab_12, "starter", str(starter), lambda: ModuleType("none")), [to_do])
        line = int(board[-1].split(" " + function.name)[0].rpartition(":")[2])
        classes = [text for text in starter.read_text(encoding="utf-8").splitlines()[:line] if text[:6] == "class "]
        above.append(classes[-1].partition("(")[0])
    assert above == ["class SlidingWindowManager", "class HybridKVCacheCoordinator"]


def test_predictions_are_answered(lab: Lab) -> None:
    """A right answer in other words is right; a wrong one hears what would have had to be true; silence ends it."""
    out = io.StringIO()
    assert ask_predictions(lab, out, io.StringIO("32\n1 block\n[8, 9]\n")) == 0
    lines = [line.removeprefix("> ") for line in out.getvalue().splitlines() if not line.startswith("[")]
    lines = [line for line in lines if line]
    assert [line.split()[0] for line in lines] == ["No.", "It", "Yes:", "Yes:"]
    assert "prediction after the last token" in lines[0]
    kept = read_state(lab.state, "predictions")
    assert {key.split()[1]: value["right"] for key, value in kept.items()} == {
        "identical-prompt": False,
        "what-b-costs": True,
        "first-victims": True,
    }


def test_reset_keeps_the_learners_file(lab: Lab) -> None:
    """Twice within a second: two backups, and the starter as it was."""
    pristine = lab.pristine_starter.read_text(encoding="utf-8")
    for text in ("my first try", "my second try"):
        lab.starter.write_text(text, encoding="utf-8")
        assert reset_starter(lab, io.StringIO()) == 0
        assert lab.starter.read_text(encoding="utf-8") == pristine
    kept = sorted(path.read_text(encoding="utf-8") for path in (lab.root / ".mini_kv/backup").iterdir())
    assert kept == ["my first try", "my second try"]


def test_status_says_how_far_and_what_next(lab: Lab) -> None:
    """The best score stays, the present one is told beside it."""
    progress = {"lab-05": {"best": 20, "score": 12, "tests": {}, "when": "2027-01-01 10:00"}}
    lines = status_lines([lab], progress)
    assert lines[0].startswith("lab-05  [########............]  20/50   now 12")
    assert lines[-1] == "next: read labs/lab-05/README.md, then type  mini-kv run 05"
    assert len(status_lines([lab], {"lab-05": {**progress["lab-05"], "best": 50}})) == 1


def test_results_for_machines(lab: Lab) -> None:
    """Nothing that did not pass has a score, nothing is missing."""
    run = [result(lab, "test_1", State.PASS, 30), result(lab, "test_2", State.TODO, 20, "to be written")]
    assert [(t["test"], t["state"], t["score"], t["points"]) for t in json.loads(as_json(run))["tests"]] == [
        ("test_1", "pass", 30, 30),
        ("test_2", "todo", 0, 20),
    ]


def test_labs_and_tests_are_found_by_what_one_types(lab: Lab) -> None:
    """5, 05 and lab-05 are one lab; the beginning of a test's name is enough, if it is the only one."""
    assert {find_lab(name, lab.root / "labs").lab_id for name in ("5", "05", "lab-05")} == {"lab-05"}
    with pytest.raises(UnknownLabError):
        find_lab("77", lab.root)
    assert find_test(lab, "test_2") == "test_2_identical_prompt_shares_all_but_the_tail_block"
    assert find_test(lab, "scrambled") == "test_scrambled_frees_leave_a_queue_that_you_can_predict"
    lab_01 = load_lab(ROOT / "labs/lab-01")
    assert find_test(lab_01, "test_1") == "test_1_what_the_cache_saves"  # there is a test_10, too
    for beginning in ("test_9", "block", ""):
        with pytest.raises(ValueError):
            find_test(lab, beginning)


def test_doctor_lists_what_is_there(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Where this suite runs nothing that is needed can be missing."""
    monkeypatch.chdir(ROOT)
    assert main(["doctor"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line.startswith("MISSING")] == []
    assert lines[0] == "ok       Python 3.11 or newer"


def test_only_ones_own_whole_run_is_recorded(lab: Lab) -> None:
    """A run of the reference, or of half the tests, says nothing about the"""
    from mini_kv.course.labkit.implementation import resolve

    whole = [result(lab, "test_1", State.PASS, 30), result(lab, "test_2", State.FAIL, 20)]
    starter = resolve("starter", lab, 1, lab.root)
    record_run(starter, whole[:1])
    assert read_state(lab.state, "progress") == {}
    record_run(starter, whole)
    record_run(starter, [result(lab, "test_1", State.FAIL, 30), whole[1]])
    entry = read_state(lab.state, "progress")["lab-05"]
    assert (entry["best"], entry["score"], entry["points"]) == (30, 0, 50)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="the terminal's Ctrl-C is another one on Windows")
def test_watch_runs_again_when_the_file_is_saved(lab: Lab) -> None:
    """One run at once, one more after each save, until Ctrl-C."""
    shutil.copy(ROOT / "conftest.py", lab.root)
    shutil.copy(ROOT / "pyproject.toml", lab.root)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
    code = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); from mini_kv.cli import main; "
    watching = subprocess.Popen(
        [sys.executable, "-c", code + "raise SystemExit(main(['run', '--watch', '05']))"],
        cwd=lab.root,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert watching.stdout is not None
    runs = 0
    for line in watching.stdout:
        if line.startswith("watching labs/lab-05/starter.py"):
            runs += 1
            if runs == 2:
                break
            time.sleep(0.01)  # another time stamp
            lab.starter.touch()
    watching.send_signal(2)
    assert (runs, watching.wait(timeout=20)) == (2, 130)
    watching.stdout.close()

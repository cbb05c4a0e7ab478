"""The measurement of the finale: which wrong versions it detects, and which are out of its reach."""

import pytest

from mini_kv.course.labkit.audit import load_mutants
from mini_kv.dev.finale_detection import Count, MutationRun, changed_lines, main, measure, out_of_reach, report
from mini_kv.tests.course.attempts import FOLDER, Attempt, all_attempts
from mini_kv.tests.engine.test_own_engine import LABS, REPOSITORY

BLIND = all_attempts(FOLDER.with_name("blind_versions"))
"""Twenty wrong schedulers and managers, by an author who had seen neither the finale nor the labs' tests."""
NEEDS_FORKS = "lab-11 2"
"""Wrong only if the last request in line has no block of its own. Then it is a fork, and lab-11 has none."""
REACHABLE = [attempt for attempt in BLIND if attempt.name != NEEDS_FORKS]


@pytest.fixture(autouse=True)
def in_the_repository(monkeypatch):
    monkeypatch.chdir(REPOSITORY)


def test_a_change_is_the_whole_statement_and_of_a_new_line_the_one_before():
    right = "def f(x):\n    if x < 0:\n        raise ValueError(\n            x\n        )\n    return x\n"
    assert changed_lines(right, right.replace("            x\n", "            -x\n")) == {3, 4, 5}
    assert changed_lines(right, right.replace("x < 0", "x > 0")) == {2}
    assert changed_lines(right, right.replace("    return x\n", "    return x\n    print(x)\n")) == {6}
    assert changed_lines(right, right) == set()


def test_every_reason_is_for_a_wrong_version_that_exists():
    known = {(lab.lab_id, mutant.id) for lab in LABS if lab.parts for mutant in load_mutants(lab)}
    assert set(out_of_reach(REPOSITORY)) <= known


def test_the_table_adds_up_and_lists_what_is_not_detected():
    one = Count("lab-01", 5, {"it only costs time": ["slow"]}, ["a", "b", "c"], ["c"], ["d"], ["b"])
    assert list(report([one, Count("lab-02", 1, detected=["e"])])) == [
        "             versions  reachable   detected      named     missed",
        "lab-01              5          4          3          2          1",
        "lab-02              1          1          1          1          0",
        "all                 6          5          4          3          1",
        "80.0% of those in reach are detected.",
        "lab-01 out of reach, it only costs time: 1: slow",
        "lab-01 missed: d",
        "lab-01 not named: c",
        "lab-01 stale reason: b",
    ]


@pytest.mark.slow
def test_all_wrong_versions_of_lab_05_are_detected_and_named():
    told: list[str] = []
    jury = MutationRun(REPOSITORY, num_hours=12)
    count = measure(jury, next(lab for lab in LABS if lab.lab_id == "lab-05"), {}, told.append)
    assert (count.num_all, len(count.detected), count.not_named, count.missed) == (31, 31, [], [])
    assert told[0].startswith("lab-05 never-looks: Detection(where='Prompts without a scheduler, run 1'")


@pytest.fixture(scope="module")
def jury():
    return MutationRun(REPOSITORY)


def test_twenty_wrong_versions_were_written_blind_and_all_but_one_are_in_reach():
    assert (len(BLIND), len(REACHABLE)) == (20, 19)


@pytest.mark.slow
@pytest.mark.parametrize("attempt", REACHABLE, ids=[attempt.name for attempt in REACHABLE])
def test_a_wrong_version_that_was_written_blind_is_detected_and_its_lab_is_named(attempt: Attempt, jury, tmp_path):
    detection = jury.detect(attempt.lab, jury.folder(tmp_path, attempt.lab, attempt.file()))
    assert detection is not None and detection.is_named


def test_an_unknown_lab_is_refused(capsys):
    with pytest.raises(SystemExit):
        main(["lab-99"])
    assert "lab-99 has no part in the finale" in capsys.readouterr().err

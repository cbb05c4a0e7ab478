"""A misconception is named by an exact match of a whole run, or not at all."""

import json
from pathlib import Path

from mini_kv.labkit.lab import Lab, load_lab
from mini_kv.labkit.misconception import fingerprint, name_misconception
from mini_kv.labkit.scoreboard import LabResult, State

LAB_05 = Path(__file__).parents[2] / "labs" / "lab-05"


def results(lab: Lab, *states: State, observed: str = "got 0") -> list[LabResult]:
    """Return one result per state; together they are worth the whole lab."""
    share = lab.points // len(states)
    points = [share] * (len(states) - 1) + [lab.points - share * (len(states) - 1)]
    return [
        LabResult(lab, f"test_{number}", worth, "prefill", "biography", None, state, observed=observed)
        for number, (state, worth) in enumerate(zip(states, points, strict=True))
    ]


def lab_that_knows(tmp_path: Path, run: list[LabResult]) -> Lab:
    """Return a copy of lab-05 whose only known misconception looks like this run."""
    folder = tmp_path / "labs" / "lab-05"
    folder.mkdir(parents=True)
    (folder / "lab.toml").write_text((LAB_05 / "lab.toml").read_text(encoding="utf-8"), encoding="utf-8")
    (folder / "fingerprints.json").write_text(json.dumps({fingerprint(run): "the idea"}), encoding="utf-8")
    return load_lab(folder)


def test_the_same_failures_with_the_same_values_are_named(tmp_path: Path) -> None:
    """Tests that wait or pass say nothing; the failed one and what it saw say all."""
    run = results(load_lab(LAB_05), State.PASS, State.FAIL, State.WAIT)
    assert name_misconception(lab_that_knows(tmp_path, run), run) == "the idea"


def test_another_value_is_met_with_silence(tmp_path: Path) -> None:
    """Near is not enough: the same test failed, but it saw something else."""
    lab = lab_that_knows(tmp_path, results(load_lab(LAB_05), State.PASS, State.FAIL))
    assert name_misconception(lab, results(lab, State.PASS, State.FAIL, observed="got 1")) is None


def test_a_part_of_the_lab_is_met_with_silence(tmp_path: Path) -> None:
    """A run of a few tests does not show the whole picture."""
    run = results(load_lab(LAB_05), State.PASS, State.FAIL)
    assert name_misconception(lab_that_knows(tmp_path, run), run[1:]) is None


def test_full_marks_are_no_misconception(tmp_path: Path) -> None:
    """Even if a mutant survives and its fingerprint is that of no failure at all."""
    run = results(load_lab(LAB_05), State.PASS, State.PASS)
    assert name_misconception(lab_that_knows(tmp_path, run), run) is None

"""A lab may go on in a folder of its own: found, graded and shown after its lab, and not counted among the labs."""

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from mini_kv.course.commands.status_command import status_lines
from mini_kv.course.labkit.implementation import Implementation, load_file
from mini_kv.course.labkit.lab import all_labs, find_lab
from mini_kv.course.labkit.scoreboard import LabResult, State, draw_scoreboard

ROOT = Path(__file__).parents[3]
LABS = all_labs(ROOT)
FULL = {lab.lab_id: {"best": lab.points, "score": lab.points, "tests": {}} for lab in LABS}


def test_it_is_found_by_its_name_and_stands_after_its_lab():
    names = ("5-further", "05-further", "lab-05-further")
    assert {find_lab(name, ROOT).lab_id for name in names} == {"lab-05-further"}
    assert {find_lab(name, ROOT).lab_id for name in ("5", "05", "lab-05")} == {"lab-05"}
    ids = [lab.lab_id for lab in LABS]
    assert ids[ids.index("lab-05") : ids.index("lab-06")] == ["lab-05", "lab-05-further"]


def test_the_labs_without_it_are_numbered_without_a_gap():
    ids = [lab.lab_id for lab in LABS if not lab.is_further]
    assert ids == [f"lab-{number:02}" for number in range(1, len(ids) + 1)]


def test_status_shows_it_indented_and_does_not_ask_for_it():
    """With all the labs a learner is done; with nothing but what goes beyond one, not."""
    without = {lab.lab_id: FULL[lab.lab_id] for lab in LABS if not lab.is_further}
    lines = status_lines(LABS, without)
    assert len(lines) == len(LABS)
    indented = [line.strip() for line in lines if line.startswith("  ")]
    assert [line.split()[0] for line in indented] == [lab.lab_id for lab in LABS if lab.is_further]
    assert indented[3].startswith(f"lab-05-further  [{'.' * 20}]   0/30")
    only_further = {lab.lab_id: FULL[lab.lab_id] for lab in LABS if lab.is_further}
    assert status_lines(LABS, only_further)[-1].startswith("next: read ")


def passed(name: str) -> str:
    """Return the scoreboard of a lab that has just been passed."""
    lab = find_lab(name, ROOT)
    result = LabResult(lab, "test_1", lab.points, lab.functions[0].name, "biography", None, State.PASS)
    starter = Implementation(lab, "starter", str(lab.starter), lambda: load_file(lab.starter))
    return "\n".join(draw_scoreboard(starter, [result]))


def test_after_a_lab_it_is_offered_and_the_next_one_is_the_next_of_the_twelve():
    offer, following = (
        "  Part 2: share, revive and evict, in your own words (45 minutes),",
        "  Next: Slots for the next",
    )
    assert 0 < passed("5").index(offer) < passed("5").index(following)
    assert following in passed("5-further") and offer not in passed("5-further")
    assert offer not in passed("4")


@pytest.fixture
def own_copy(tmp_path: Path) -> Path:
    """Return a checkout with both parts of lab-05, of which the first is solved."""
    for lab_id in ("lab-05", "lab-05-further"):
        shutil.copytree(ROOT / "labs" / lab_id, tmp_path / "labs" / lab_id)
        shutil.copyfile(find_lab(lab_id, ROOT).pristine_starter, tmp_path / "labs" / lab_id / "starter.py")
    shutil.copyfile(ROOT / "solutions" / "lab-05" / "solution.py", tmp_path / "labs" / "lab-05" / "starter.py")
    for name in ("conftest.py", "pyproject.toml"):
        shutil.copyfile(ROOT / name, tmp_path / name)
    return tmp_path


def run_of(checkout: Path, *arguments: str) -> str:
    """Return what a run of the learner's own files prints."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    environment = {**os.environ, "LAB_IMPL": "starter"}
    return subprocess.run(command, cwd=checkout, env=environment, capture_output=True, text=True, check=False).stdout


@pytest.mark.slow
def test_part_1_ends_green_by_itself_and_part_2_is_run_after_it_once_it_is_begun(own_copy: Path) -> None:
    alone = run_of(own_copy, "labs/lab-05")
    assert "PASSED. Part 1 done: 50 of 50" in alone and "20 passed" in alone.splitlines()[-1]
    assert "of 30 points" not in alone and "further" not in alone.rpartition("PASSED")[0]
    second = own_copy / "labs" / "lab-05-further" / "starter.py"
    second.write_text(second.read_text(encoding="utf-8").replace('todo("lab-05-further", "take",', "print("), "utf-8")
    both = run_of(own_copy, "labs/lab-05")
    assert both.index("PASSED. Part 1 done: 50 of 50") < both.index("0 of 30 points")
    assert "of 30 points" not in run_of(own_copy, "labs/lab-05/test_lab.py")
    assert "of 50 points" not in run_of(own_copy, "labs/lab-05-further")


def test_the_queues_that_are_foreseen_are_those_that_the_story_measures():
    """Each question about step N of test 8 has as its answer the queue that the test compares after step N."""
    lab = find_lab("5-further", ROOT)
    tree = ast.parse((lab.folder / "test_lab.py").read_text(encoding="utf-8"))
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "step"]
    queues = [ast.literal_eval(call.args[1]) for call in calls]
    asked = [question for question in lab.predictions if question.test == "test_8_the_queue_after_each_step"]
    assert [question.id for question in asked] == [f"step-{number}" for number in (2, 3, 4, 5, 7, 8)]
    for question in asked:
        assert question.answer == " ".join(map(str, queues[int(question.id.removeprefix("step-")) - 1]))

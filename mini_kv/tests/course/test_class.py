"""From thirty hand-ins to a gradebook and a picture; the student's tree; the files for two graders on the web."""

import argparse
import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from mini_kv.course.commands import gradebook_command, release_command
from mini_kv.course.grading.class_report import alike, beliefs, foreseen, lines, picture_page, stops
from mini_kv.course.grading.grade import Mark
from mini_kv.course.grading.gradebook import as_csv, first_message, gradebook_csv, gradebook_page, load, save
from mini_kv.course.grading.gradescope import gradescope_zip, main
from mini_kv.course.grading.release import LINK, README, leaks
from mini_kv.course.grading.solution_leaks import Secrets
from mini_kv.course.labkit.lab import find_lab
from mini_kv.tests.course.thirty import make

ROOT = Path(__file__).resolve().parents[3]
LAB = find_lab("05", ROOT)


def mark(student, *states, belief="", **more):
    tests = {
        f"test_{n}": {"points": 5, "function": f"f{n}", "stage": "biography", "state": state, "message": ""}
        for n, state in enumerate(states, start=1)
    }
    held = {"f1": f"{belief}\nask: why?"} if belief else {}
    return Mark(student, "lab-05", 10, sum(5 for s in states if s == "pass"), tests=tests, beliefs=held, **more)


CLASS = [
    mark("Ada", "pass", "pass", page={"foreseen": 1, "asked": 3, "hints": 2, "runs": 4}),
    mark("Bo", "fail", "pass", belief="a hit needs no room"),
    mark("Cy", "fail", "pass", belief="a hit needs no room"),
    mark("=Dan()", "todo", "todo"),
    Mark("Eve", "lab-05", 10, status="held", why=["line 1: imports os"]),
]


def test_the_picture_counts_students_and_names_none():
    assert beliefs(CLASS) == [(2, "a hit needs no room")]
    assert stops(CLASS) == [(3, "f1"), (1, "(held)"), (1, "(done)")]
    assert foreseen(CLASS) == (1, 3, 1)
    assert alike(CLASS) == []
    assert alike(CLASS[:3]) == ["test_2"]
    assert lines("lab-05", "Share", CLASS)[:4] == ["lab-05  Share", "", "  2 of 5 believe that a hit needs no room", ""]
    page = picture_page({"lab-05": "Share <and> evict"}, CLASS)
    assert [name for name in ("Ada", "Bo", "Cy", "Dan", "Eve", "<and>") if name in page] == []
    assert "2 of 5 believe that a hit needs no room" in page


def test_the_gradebook_has_a_row_a_student_and_no_formula():
    assert gradebook_csv(["lab-05"], CLASS) == (
        "student,lab-05,total,to look at,first message\nAda,10,10,,\nBo,5,5,,\nCy,5,5,,\n"
        "'=Dan(),0,0,,\nEve,0,0,lab-05: held,\n"
    )
    assert "line 1: imports os" in gradebook_page(["lab-05"], CLASS)
    assert as_csv(CLASS).splitlines()[1] == "Ada,lab-05,graded,10,10,1,3,2,4,0.0,"


def told(state, message):
    return {"points": 5, "function": "f", "stage": "biography", "state": state, "message": message}


def test_the_gradebook_has_the_first_message_and_the_command_one_students_feedback(tmp_path, capsys):
    failed = "lab-05  test_8_rate\nhit rate after A\n   expected  0.5\n   got       50\nwhy: a share"
    tests = {"test_1": told("pass", ""), "test_8_rate": told("fail", failed), "test_9": told("wait", "waits")}
    rate = Mark("Bo", "lab-05", 15, 5, tests=tests, beliefs={"rate": "a rate is a percentage\nask: which range?"})
    syntax = {"test_1": told("fail", "lab-05  test_1\nSyntaxError: invalid syntax\n   lab-05.py:3  def f(:")}
    broken = Mark("Cy", "lab-05", 5, 0, tests=syntax)
    todo = Mark("Di", "lab-05", 5, 0, tests={"test_1": told("todo", "lab-05 rate: what is counted?")})
    assert [first_message(each) for each in (rate, broken, todo, CLASS[0])] == [
        "hit rate after A, expected 0.5, got 50",
        "SyntaxError: invalid syntax",
        "lab-05 rate: what is counted?",
        "",
    ]
    assert gradebook_csv(["lab-05"], [rate]).splitlines()[1] == ('Bo,5,5,,"hit rate after A, expected 0.5, got 50"')
    save(tmp_path, [rate, broken], [LAB])
    assert gradebook_command.run(argparse.Namespace(folder=str(tmp_path), student="Bo")) == 0
    assert capsys.readouterr().out.splitlines() == [
        "Bo  lab-05  5 of 15 points, graded",
        "",
        "fail, 5 points",
        *failed.splitlines(),
        "",
        "wait, 5 points",
        "waits",
        "",
        "rate: ask: which range?",
        "",
    ]
    assert [path.name for path in tmp_path.iterdir()] == ["marks.json"]
    assert gradebook_command.run(argparse.Namespace(folder=str(tmp_path), student="bo")) == 2
    assert "no marks for 'bo'; there are: " in capsys.readouterr().err


def test_marks_survive_the_folder(tmp_path):
    save(tmp_path, CLASS, [LAB])
    assert load(tmp_path) == ({"lab-05": LAB.title}, CLASS)
    with pytest.raises(ValueError, match=r"marks\.json cannot be read: No such file or directory\. mini-kv"):
        load(tmp_path / "none")
    (tmp_path / "marks.json").write_text("[]", encoding="utf-8")
    with pytest.raises(ValueError, match="is not a file of mini-kv class grade"):
        load(tmp_path)


@pytest.mark.parametrize(
    "change", [{"score": "50"}, {"tests": {"a": 1}}, {"page": {"asked": "3"}}, {"student": [1]}, {"beliefs": {"f": 1}}]
)
def test_marks_of_another_form_are_told_in_a_line_and_write_nothing(change, tmp_path, capsys):
    save(tmp_path, CLASS, [LAB])
    told = json.loads((tmp_path / "marks.json").read_text())
    told["marks"][1] |= change
    (tmp_path / "marks.json").write_text(json.dumps(told))
    assert gradebook_command.run(argparse.Namespace(folder=str(tmp_path), student=None)) == 2
    assert (
        capsys.readouterr().err
        == f"mini-kv class book: {tmp_path / 'marks.json'} is not what mini-kv class grade writes\n"
    )
    assert [path.name for path in tmp_path.iterdir()] == ["marks.json"]


def test_no_wide_formula_and_no_escape_gets_through(tmp_path, capsys):
    assert (
        gradebook_csv([], [Mark("\uff1dDan()", "lab-05", 10)])
        == "student,total,to look at,first message\n'\uff1dDan(),0,,\n"
    )
    save(tmp_path, [mark("Eve", "fail", belief="\x1b[2J")], [LAB])
    assert gradebook_command.run(argparse.Namespace(folder=str(tmp_path), student=None)) == 0
    assert "  1 of 1 believe that \\x1b[2J\n" in capsys.readouterr().out


@pytest.mark.slow
def test_thirty_hand_ins_some_hostile_become_a_gradebook_and_a_picture(tmp_path):
    make(tmp_path / "in")
    words = [sys.executable, "-m", "mini_kv", "class"]
    out = str(tmp_path / "graded")
    graded = subprocess.run([*words, "grade", str(tmp_path / "in"), "--out", out], cwd=ROOT, check=False, text=True,
                            capture_output=True)  # fmt: skip
    assert (graded.returncode, graded.stderr) == (1, "")
    assert graded.stdout.splitlines()[-1] == "30 hand-ins, 30 labs; 4 for you to review"
    pictured = subprocess.run([*words, "book", out], cwd=ROOT, check=False, text=True, capture_output=True)
    assert (pictured.returncode, pictured.stderr) == (0, "")
    _, marks = load(tmp_path / "graded")
    assert [m.score for m in marks[:8]] == [50] * 8
    assert all(0 < m.score < 50 for m in marks[8:20])
    assert [(m.score, m.status) for m in marks[23:27]] == [(0, "held")] * 4
    assert [m.score for m in marks[27:]] == [0] * 3
    assert beliefs(marks)[0][0] >= 3
    wall = (tmp_path / "graded" / "wall.html").read_text(encoding="utf-8")
    assert "3 of 30 believe that" in wall
    assert len((tmp_path / "graded" / "gradebook.csv").read_text().splitlines()) == 31


# The student's tree --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """Made by the command, in a checkout whose starter a developer has written in."""
    out = tmp_path_factory.mktemp("release") / "student"
    assert release_command.run(arguments(student=str(out))) == 0
    return out


def arguments(**given):
    return argparse.Namespace(**{"student": None, "check": None, "gradescope": None} | given)


@pytest.mark.slow
def test_a_students_tree_has_no_solution_no_note_and_no_kill_matrix(tree):
    assert sorted(path.name for path in tree.iterdir() if not path.name.startswith(".")) == [
        "LICENSE", "LICENSE-docs", "Makefile", "README.md", "book", "conftest.py", "constraints.txt", "labs", "mini_kv",
        "notebooks", "pyproject.toml", "setup.py",
    ]  # fmt: skip
    for name in ("NOTES.md", "mutants.toml", "kill-matrix.md", "solution.py"):
        assert list(tree.rglob(name)) == []
    assert (tree / "labs/lab-05/starter.py").read_text() == LAB.pristine_starter.read_text()


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["labs/lab-05/README.md", "notebooks/README.md", "mini_kv/course/labkit/hidden.py", "x.ipynb"]
)
def test_a_solution_that_is_planted_anywhere_is_found(name, tree, capsys):
    solution = (LAB.solutions / "solution.py").read_text(encoding="utf-8")
    file = tree / name
    before = file.read_text(encoding="utf-8") if file.exists() else None
    file.write_text(json.dumps(solution) if name.endswith("ipynb") else f"{before or ''}\n{solution}", encoding="utf-8")
    capsys.readouterr()
    try:
        assert release_command.run(arguments(check=str(tree))) == 1
        assert capsys.readouterr().out.splitlines() == [
            f"{name}: solutions/lab-05/solution.py: prefill",
            f"1 leaks in {tree}",
        ]
    finally:
        file.unlink() if before is None else file.write_text(before, encoding="utf-8")


def test_a_look_for_leaks_in_no_folder_or_without_solutions_is_no_success(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    assert release_command.run(arguments(check=str(tmp_path / "none"))) == 2
    assert capsys.readouterr().err == f"mini-kv class release: {tmp_path / 'none'} is not a folder\n"
    (tmp_path / "labs" / "lab-05").mkdir(parents=True)
    shutil.copyfile(LAB.folder / "lab.toml", tmp_path / "labs" / "lab-05" / "lab.toml")
    monkeypatch.chdir(tmp_path)
    assert release_command.run(arguments(check=str(tmp_path))) == 2
    assert capsys.readouterr().err == (
        f"mini-kv class release: {tmp_path} has no solutions to look for: run this in the complete course\n"
    )


def test_a_solutions_bytecode_is_a_leak(tmp_path):
    (tmp_path / "__pycache__").mkdir()
    (tmp_path / "__pycache__" / "solution.cpython-311.pyc").write_bytes(b"")
    assert leaks(tmp_path, Secrets({})) == ["__pycache__/solution.cpython-311.pyc: not a file for students"]


@pytest.mark.slow
def test_a_folder_that_is_there_is_not_written_over(tree, capsys):
    assert release_command.run(arguments(student=str(tree))) == 2
    assert capsys.readouterr().err == f"mini-kv class release: {tree} already exists\n"


@pytest.mark.slow
def test_no_link_of_a_students_tree_is_dead_and_its_readme_is_its_own(tree):
    pages = list(tree.rglob("*.md"))
    links = [(page, target) for page in pages for _, target, _ in LINK.findall(page.read_text(encoding="utf-8"))]
    dead = [target for page, target in links if ":" not in target and not (page.parent / target).exists()]
    assert (len(links) > 100, dead) == (True, [])
    assert (tree / "README.md").read_bytes() == (ROOT / README).read_bytes()


def in_tree(tree, *words, **variables):
    """Run a command there as a student does; return its status and the lines that it prints."""
    environment = {name: value for name, value in os.environ.items() if name != "LAB_IMPL" and "MAKE" not in name}
    command = [sys.executable, *words] if words[0] == "-m" else words
    done = subprocess.run(command, cwd=tree, env=environment | {"PYTHONPATH": str(tree)} | variables,
                          capture_output=True, text=True, check=False)  # fmt: skip
    return done.returncode, (done.stdout + done.stderr).splitlines()


@pytest.mark.slow
@pytest.mark.parametrize("choice", [None, "", "solution"])
def test_in_a_students_tree_no_test_runs_unless_lab_impl_names_the_students_code(tree, choice):
    variables = {} if choice is None else {"LAB_IMPL": choice}
    status, said = in_tree(tree, "-m", "pytest", "-q", "-p", "no:cacheprovider", "labs/lab-05", **variables)
    assert (status, said[-3:-1]) == (
        4,
        [
            "ERROR: lab-05: LAB_IMPL does not name your code, and this edition comes without solutions.",
            "Run your own code: LAB_IMPL=starter pytest labs/lab-05",
        ],
    )


@pytest.mark.slow
def test_in_a_students_tree_the_commands_run_the_students_code(tree):
    status, said = in_tree(tree, "-m", "pytest", "-q", "-p", "no:cacheprovider", "labs/lab-05", LAB_IMPL="starter")
    assert (status, "code that ran: labs/lab-05/starter.py (LAB_IMPL=starter)" in said) == (1, True)
    status, said = in_tree(tree, "-m", "mini_kv", "run", "05")
    assert (status, "  [..............................]  0 of 50 points   20 todo" in said) == (1, True)
    status, said = in_tree(tree, "-m", "mini_kv", "status")
    assert (status, said[-1]) == (0, "next: read labs/lab-01/README.md, then type  mini-kv run 01")


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
def test_in_a_students_tree_make_says_what_it_has(tree):
    status, said = in_tree(tree, "make", "test")
    assert status == 2
    assert said[0].endswith("this tree has only the labs: type make, make lab-NN or make notebooks.  Stop.")
    assert in_tree(tree, "make", "-n", "lab-05")[0] == 0


# Elsewhere -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_gradescopes_zip_has_its_two_scripts_at_the_root(tmp_path):
    """Its specification: `setup.sh` and `run_autograder` in the root of the archive, the second executable."""
    gradescope_zip(LAB, tmp_path / "a.zip")
    with zipfile.ZipFile(tmp_path / "a.zip") as archive:
        names = archive.namelist()
        scripts = {name: archive.read(name).decode() for name in ("setup.sh", "run_autograder")}
        assert [archive.getinfo(name).external_attr >> 16 & 0o111 for name in scripts] == [0o111, 0o111]
    assert {"course/labs/lab-05/test_lab.py", "course/conftest.py"} <= set(names)
    assert [name for name in names if "/solutions/" in name or name.endswith("/solution.py")] == []
    assert [text.splitlines()[0] for text in scripts.values()] == ["#!/usr/bin/env bash"] * 2
    assert "/autograder/submission" in scripts["run_autograder"]
    assert "/autograder/results/results.json" in scripts["run_autograder"]
    for text in scripts.values():
        subprocess.run(["bash", "-n"], input=text, text=True, check=True)


@pytest.mark.slow
def test_gradescope_gets_the_results_that_it_reads(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    (tmp_path / "starter").mkdir()
    (tmp_path / "starter" / "lab-05.py").write_bytes((LAB.solutions / "solution.py").read_bytes())
    (tmp_path / "empty").mkdir()
    out = tmp_path / "results.json"
    assert main(["lab-05", str(tmp_path / "starter"), str(out)]) == 0
    told = json.loads(out.read_text())
    assert told["output"] == "lab-05: 50 of 50 points, graded\ncode that ran: starter: lab-05.py"
    assert (told["score"], sum(test["max_score"] for test in told["tests"])) == (50, 50)
    assert set(told["tests"][0]) == {"name", "score", "max_score", "status", "output", "visibility"}
    assert {test["status"] for test in told["tests"]} == {"passed"}
    assert main(["lab-05", str(tmp_path / "empty"), str(out)]) == 1
    assert json.loads(out.read_text()) == {
        "score": 0,
        "output": "lab-05: 0 of 50 points, held\nno code ran\nempty cannot be read: it has no lab's file,"
        " such as lab-05.py or lab-05/starter.py",
        "tests": [],
    }

"""Gradescope: the autograder, made from the course, and the results that it reads.

It runs `python -m mini_kv.course.grading.gradescope`, which grades one hand-in as `mini-kv class grade` does. The
formats are those of Gradescope's "Autograder Specifications".
"""

import json
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

from mini_kv.course.grading.grade import Grader, Mark
from mini_kv.course.grading.handins import read_handin
from mini_kv.course.grading.isolation import find_sandbox
from mini_kv.course.grading.release import release
from mini_kv.course.labkit.lab import Lab, find_lab
from mini_kv.course.labkit.learner_state import write_whole
from mini_kv.course.labkit.scoreboard import State

_SETUP = """#!/usr/bin/env bash
set -e
apt-get update -qq && apt-get install -y -qq python3-venv bubblewrap
python3 -m venv /autograder/venv
/autograder/venv/bin/pip install -q pytest PACKAGES
"""
RUN = """#!/usr/bin/env bash
cd /autograder/source/course
/autograder/venv/bin/python -m mini_kv.course.grading.gradescope LAB /autograder/submission \\
  /autograder/results/results.json
"""
TORCH = "&& /autograder/venv/bin/pip install -q torch --index-url https://download.pytorch.org/whl/cpu"
PACKAGES = {"C": "", "T": TORCH, "K": f"triton numpy {TORCH}"}


def gradescope_zip(lab: Lab, file: Path) -> None:
    """Write the autograder of a lab: `setup.sh`, `run_autograder` and the student's tree."""
    with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        course = Path(folder) / "course"
        release(lab.root, course)
        scripts = {
            "setup.sh": _SETUP.replace("PACKAGES", PACKAGES[lab.needs]),
            "run_autograder": RUN.replace("LAB", lab.lab_id),
        }
        for name, text in scripts.items():
            info = zipfile.ZipInfo(name)
            info.external_attr = 0o100755 << 16
            archive.writestr(info, text)
        for path in sorted(course.rglob("*")):
            if path.is_file():
                archive.write(path, path.relative_to(folder))


def _gradescope_results(mark: Mark) -> dict[str, Any]:
    """Return the content of results.json for Gradescope. A held lab has no points, and its output has the reason."""
    tests = [
        {
            "name": f"{mark.lab} {name}",
            "score": _score(mark, test),
            "max_score": test["points"],
            "status": "passed" if _score(mark, test) else "failed",
            "output": test["message"] or test["state"],
            "visibility": "visible",
        }
        for name, test in mark.tests.items()
    ]
    return {"score": mark.score, "output": _words(mark), "tests": tests}


def _score(mark: Mark, test: dict[str, Any]) -> int:
    return test["points"] if test["state"] == State.PASS and mark.status != "held" else 0


def _words(mark: Mark) -> str:
    ran = [f"code that ran: {mark.ran}"] if mark.ran else ["no code ran"]
    return "\n".join([f"{mark.lab}: {mark.score} of {mark.points} points, {mark.status}", *ran, *mark.why])


def main(words: list[str]) -> int:
    """Grade the hand-in in a folder, and write results in every case. Return 0 for full marks."""
    name, submission, out = words
    lab = find_lab(name, Path.cwd())
    mark = Mark("submission", lab.lab_id, lab.points, status="held", why=["it could not be graded"])
    write_whole(Path(out), json.dumps(_gradescope_results(mark), indent=2) + "\n")  # should this process be ended
    try:
        handin = read_handin(Path(submission), [lab.lab_id], {})
        mark = Grader([lab], find_sandbox("auto", lab.root.resolve(), ()), 120).grade(handin, lab)
    except (OSError, ValueError) as error:
        mark.why = [str(error)]
    write_whole(Path(out), json.dumps(_gradescope_results(mark), indent=2) + "\n")
    print(_words(mark))
    return int(mark.score < mark.points)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""`git pull` where a learner has written in a starter that the course has changed: two real clones.

Their paths have spaces and letters that are not ASCII, as a home directory may.
"""

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
STARTER = "labs/lab-05/starter.py"
PRISTINE = "mini_kv/course/labkit/starters/lab-05.txt"
RENAMED = ("labs/lab-05/lab.toml", "labs/lab-05/test_lab.py", STARTER, PRISTINE)

pytestmark = [pytest.mark.slow, pytest.mark.skipif(shutil.which("git") is None, reason="git pulls")]


def call(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a command there, as a person without any settings of git does, with the package of that clone."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(folder),
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CONFIG_NOSYSTEM": "1",
        "LC_ALL": "C",
        **{f"GIT_{who}_{what}": "a@example.org" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")},
    }
    environment.pop("LAB_IMPL", None)
    return subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def mini_kv(folder: Path, *words: str) -> str:
    """Return what a command of the clone prints."""
    return call(folder, sys.executable, "-m", "mini_kv", *words).stdout


@pytest.fixture
def course(tmp_path: Path) -> Path:
    """The course's repository, with lab-05 alone."""
    folder = tmp_path / "the course, für alle"
    shutil.copytree(ROOT / "mini_kv", folder / "mini_kv", ignore=shutil.ignore_patterns("tests", "__pycache__"))
    shutil.copytree(ROOT / "labs/lab-05", folder / "labs/lab-05", ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "mini_kv/tests").mkdir()
    for name in ("conftest.py", "pyproject.toml", ".gitignore", "mini_kv/tests/skips.py"):
        shutil.copyfile(ROOT / name, folder / name)
    shutil.copyfile(folder / PRISTINE, folder / STARTER)
    call(folder, "git", "init", "-q", "-b", "main")
    commit(folder, "The course")
    return folder


@pytest.fixture
def clone(course: Path) -> Path:
    """A learner's clone, with all of lab-05 written; then the course renames a function of the lab."""
    folder = course.parent / "my clone 一"
    call(course.parent, "git", "clone", "-q", str(course), str(folder))
    shutil.copyfile(ROOT / "solutions/lab-05/solution.py", folder / STARTER)
    for name in RENAMED:
        text = (course / name).read_text(encoding="utf-8")
        (course / name).write_text(text.replace("cache_hit_rate", "cached_hit_rate"), encoding="utf-8")
    commit(course, "A function has another name")
    return folder


def commit(folder: Path, title: str) -> None:
    """Commit all that is there."""
    call(folder, "git", "add", "-A")
    assert call(folder, "git", "commit", "-q", "-m", title).returncode == 0


def test_git_refuses_and_reset_pull_copy_keeps_every_byte(clone: Path) -> None:
    """The third command is the one that `mini-kv reset` prints."""
    mine = (clone / STARTER).read_bytes()
    refused = call(clone, "git", "pull")
    assert refused.returncode == 1
    assert "Your local changes to the following files would be overwritten by merge:\n\t" + STARTER in refused.stderr
    assert (clone / STARTER).read_bytes() == mine
    put_back = next(line for line in mini_kv(clone, "reset", "05").splitlines() if line.startswith("to restore it: "))
    assert call(clone, "git", "pull").returncode == 0
    assert "cached_hit_rate" in (clone / STARTER).read_text(encoding="utf-8")
    assert call(clone, *shlex.split(put_back.removeprefix("to restore it: "))).returncode == 0
    assert (clone / STARTER).read_bytes() == mine


def test_work_that_is_committed_is_merged_and_stays_in_the_history(clone: Path) -> None:
    """`-X ours`: where both have changed the same lines, the learner's stay."""
    mine = (clone / STARTER).read_bytes()
    commit(clone, "My labs")
    pulled = call(clone, "git", "pull", "--no-rebase", "--no-edit", "-X", "ours")
    assert (pulled.returncode, "<<<<" in (clone / STARTER).read_text(encoding="utf-8")) == (0, False)
    assert "cached_hit_rate" in (clone / PRISTINE).read_text(encoding="utf-8")
    assert call(clone, "git", "show", f"HEAD^1:{STARTER}").stdout.encode() == mine


def test_status_and_run_name_the_function_that_an_older_file_lacks(clone: Path) -> None:
    """And where the course's starter is. The tests of the other functions pass."""
    mine = (clone / STARTER).read_bytes()
    mini_kv(clone, "reset", "05")
    call(clone, "git", "pull")
    (clone / STARTER).write_bytes(mine)
    assert (
        f"lab-05: your starter.py has no cached_hit_rate; copy from {PRISTINE}" in mini_kv(clone, "status").splitlines()
    )
    told = mini_kv(clone, "run", "05")
    assert "starter.py has no function cached_hit_rate(kv); did you rename it? There is cache_hit_rate" in told
    assert f"the course's starter now: {PRISTINE}" in told
    assert "44 of 50 points" in told

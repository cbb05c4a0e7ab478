"""The student's tree: the course without solutions, notes, mutants and kill matrix, with a check for leaks."""

import re
import shutil
import subprocess
from collections.abc import Collection
from pathlib import Path

from mini_kv.course.given.contract import draw, in_variant
from mini_kv.course.grading.solution_leaks import Secrets, bare, secrets
from mini_kv.course.labkit.course_settings import load_course
from mini_kv.course.labkit.lab import all_labs

LEFT_OUT = ("solutions", "book", ".ci", ".github", "mini_kv/tests", "mini_kv/dev/recorders")
"""Folders for instructors and developers."""
KEPT = (
    ".ci/alone.py",
    "mini_kv/tests/skips.py",
    "book/mini_kv_book/__init__.py",
    "book/course.toml",
    "book/docs/answers",
    "book/docs/chapters",
    "book/docs/engine.md",
    "book/docs/reference",
)
"""Files and folders below `LEFT_OUT` that a student needs or reads."""
NAMES = ("NOTES.md", "mutants.toml", "solution.py", "kill-matrix.md", "kill_matrix.py")
"""Names of files that must not be in a student's tree."""
README = "book/data/student-readme.md"
"""The README of a student's tree."""
LINK = re.compile(r"(?<!!)\[((?:[^\[\]]|\[[^\[\]]*\])*)\]\(([^()\s#]+)(#[^()\s]*)?\)")


def release(root: Path, out: Path) -> int:
    """Copy what students get to `out` and return the number of files.

    Starters are the course's own, without local changes. Raises `ValueError` if `out` exists, if
    `root` is not a git clone, or if the copy contains a solution.
    """
    if out.exists():
        raise ValueError(f"{out} already exists")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=root, capture_output=True, check=False)
    if listed.returncode:
        raise ValueError(f"{root} is not a git clone: the files of the course are those that git knows")
    closed = load_course(root).closed()
    names = [name for name in listed.stdout.decode().split("\0") if name and _is_for_students(name, closed)]
    for name in names:
        if (root / name).is_file():
            (out / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(root / name, out / name)
    shutil.copyfile(root / README, out / "README.md")
    for lab in all_labs(out):
        shutil.copyfile(lab.pristine_starter, lab.starter)
    contract = out / "labs" / "lab-17" / "README.md"
    if contract.is_file():
        text = in_variant(contract.read_text(encoding="utf-8"), draw(load_course(root).challenge))
        contract.write_text(text, encoding="utf-8")
    for page in out.rglob("*.md"):
        page.write_text(_without_dead_links(page), encoding="utf-8")
    found = leaks(out, secrets(root))
    if found:
        raise ValueError("the student's tree contains a solution:\n  " + "\n  ".join(found))
    return len(names)


def _is_for_students(name: str, closed: Collection[str]) -> bool:
    if any(name.startswith((f"labs/{lab}/", f"mini_kv/course/labkit/starters/{lab}.")) for lab in closed):
        return False
    kept = any(name == path or name.startswith(f"{path}/") for path in KEPT)
    return kept or not any(name.startswith(f"{path}/") for path in LEFT_OUT)


def _without_dead_links(page: Path) -> str:
    """Return a page's text. Links to missing files are reduced to their words."""

    def linked(found: re.Match[str]) -> str:
        words, target = found[1], found[2]
        return found[0] if ":" in target or (page.parent / target).exists() else words

    return LINK.sub(linked, page.read_text(encoding="utf-8"))


def leaks(tree: Path, guarded: Secrets) -> list[str]:
    """Return a sentence per file of the tree whose name or text gives a solution away."""
    found = []
    for path in sorted(path for path in tree.rglob("*") if path.is_file() and not path.is_symlink()):
        where = path.relative_to(tree).as_posix()
        compiled = path.name.startswith("solution.") and path.suffix == ".pyc"
        if path.name in NAMES or compiled or where.startswith("solutions/"):
            found.append(f"{where}: not a file for students")
        text = path.read_bytes().decode(errors="ignore")
        shown = bare(text) + bare(text.replace("\\n", "\n").replace('\\"', '"'))  # a notebook's, or JSON's
        found += [f"{where}: {function}" for function in guarded.found_in(shown)]
    return found

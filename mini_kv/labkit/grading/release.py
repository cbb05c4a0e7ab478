"""The student's tree: the course without solutions, notes, wrong versions and kill matrix; and a look for leaks."""

import shutil
import subprocess
from collections.abc import Collection, Mapping
from pathlib import Path

from mini_kv.labkit.course import load_course
from mini_kv.labkit.grading.solution_leaks import bare_text, found_in, secrets
from mini_kv.labkit.lab import all_labs

LEFT_OUT = ("solutions", "book", ".ci", ".github", "mini_kv/tests")
"""Folders that are an instructor's or a developer's."""
KEPT = (
    "mini_kv/tests/skips.py",
    "book/mini_kv_book/__init__.py",
    "book/course.toml",
    "book/docs/chapters",
    "book/docs/reference",
)
"""What of these a student's tree needs, or reads."""
NAMES = ("NOTES.md", "mutants.toml", "solution.py", "kill-matrix.md", "kill_matrix.py")
"""Files that no student's tree has, wherever they stand."""


def release(root: Path, out: Path) -> int:
    """Copy what students get to `out`; return the number of files.

    Starters are as the course gives them, whatever was written in them here. Raises `ValueError` if there is something
    at `out`, if this is no clone, or if the copy gives anything away.
    """
    if out.exists():
        raise ValueError(f"{out} is there already")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=root, capture_output=True, check=False)
    if listed.returncode:
        raise ValueError(f"{root} is no clone: what belongs to the course is what git knows")
    closed = load_course(root).closed()
    names = [name for name in listed.stdout.decode().split("\0") if name and _is_for_students(name, closed)]
    for name in names:
        if (root / name).is_file():
            (out / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(root / name, out / name)
    for lab in all_labs(out):
        shutil.copyfile(lab.pristine_starter, lab.starter)
    found = leaks(out, secrets(root))
    if found:
        raise ValueError("a student's tree with a leak:\n  " + "\n  ".join(found))
    return len(names)


def _is_for_students(name: str, closed: Collection[str]) -> bool:
    if any(name.startswith((f"labs/{lab}/", f"mini_kv/labkit/starters/{lab}.")) for lab in closed):
        return False
    kept = any(name == path or name.startswith(f"{path}/") for path in KEPT)
    return kept or not any(name.startswith(f"{path}/") for path in LEFT_OUT)


def leaks(tree: Path, guarded: Mapping[str, list[str]]) -> list[str]:
    """Return a sentence for each file of the tree that gives a solution away, in its name or in its text."""
    found = []
    for path in sorted(path for path in tree.rglob("*") if path.is_file() and not path.is_symlink()):
        where = path.relative_to(tree).as_posix()
        compiled = path.name.startswith("solution.") and path.suffix == ".pyc"
        if path.name in NAMES or compiled or where.startswith("solutions/"):
            found.append(f"{where}: no student's file")
        text = path.read_bytes().decode(errors="ignore")
        shown = bare_text(text) + bare_text(text.replace("\\n", "\n").replace('\\"', '"'))  # a notebook's, or JSON's
        found += [f"{where}: {function}" for function in found_in(shown, guarded)]
    return found

"""What a page that runs labs is given: the course and nothing of the solutions, small enough to be loaded."""

import zipfile
from pathlib import Path, PurePosixPath

import pytest

from mini_kv.labkit.lab import all_labs

ROOT = Path(__file__).parents[2]
PACKED = ROOT / "book" / "docs" / "assets" / "kv-lab"


@pytest.fixture(scope="module")
def course() -> zipfile.ZipFile:
    """The archive that a reader's first run loads."""
    if not (PACKED / "packed.json").is_file():
        pytest.skip("labs in the page: nothing is packed for them; `make test` does it where npm is")
    return zipfile.ZipFile(PACKED / "course.zip")


def test_it_has_the_tests_of_every_lab_that_needs_only_python(course: zipfile.ZipFile) -> None:
    """Each with what the scoreboard and the messages read, and no starter: the text comes from the page."""
    files = {name for name in course.namelist() if name.startswith("labs/") and "__pycache__" not in name}
    parts = ("fingerprints.json", "hints.toml", "lab.toml", "test_lab.py")
    labs = [lab.lab_id for lab in all_labs(ROOT) if lab.needs == "C"]
    assert labs[:7] == [f"lab-{number:02}" for number in range(1, 8)]
    assert files == {f"labs/{lab}/{part}" for lab in labs for part in parts}


def test_it_has_nothing_of_the_solutions(course: zipfile.ZipFile) -> None:
    """No file of solutions/, by name or by content."""
    secret = [path for path in (ROOT / "solutions").rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    assert {path.name for path in secret} >= {"solution.py", "mutants.toml", "NOTES.md"}
    names = {PurePosixPath(name).name for name in course.namelist()}
    assert not names & {path.name for path in secret}
    contents = {course.read(name) for name in course.namelist()}
    assert not contents & {path.read_bytes() for path in secret}


def test_each_source_has_its_bytecode(course: zipfile.ZipFile) -> None:
    """Compiling would take the reader's browser longer than the tests."""
    names = set(course.namelist())
    sources = [PurePosixPath(name) for name in names if name.endswith(".py")]
    cached = {str(path.parent / "__pycache__" / f"{path.stem}.cpython-314.pyc") for path in sources}
    assert cached <= names
    assert len(cached) > 40


def test_it_is_small_enough_to_be_loaded() -> None:
    """The whole folder, before compression; Pyodide itself is eleven of it."""
    if not PACKED.is_dir():
        pytest.skip("labs in the page: nothing is packed for them")
    assert sum(path.stat().st_size for path in PACKED.iterdir()) < 20_000_000

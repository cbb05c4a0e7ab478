"""What a page that runs labs is given: the course and nothing of the solutions."""

import hashlib
import io
import json
import lzma
import re
import shlex
import shutil
import subprocess
import sys
import zipfile
from email import message_from_bytes
from pathlib import Path, PurePosixPath

import pytest
from mini_kv_book import recorded

from mini_kv.course.labkit.lab import all_labs
from mini_kv.story.puzzle import puzzle_names

ROOT = Path(__file__).parents[2]
BOOK = ROOT / "book"
PACKED = BOOK / "docs" / "assets" / "kv-lab"
WHEELS = BOOK / "node_modules" / ".wheels"


@pytest.fixture(scope="module")
def course() -> dict[str, bytes]:
    """The files that the pages load, and Python's library."""
    if not (PACKED / "packed.json").is_file():
        pytest.skip("labs in the page: nothing is packed for them; `make test` does it where npm is")
    files: dict[str, bytes] = {}
    for path in sorted(PACKED.glob("*.zip.xz")):
        with zipfile.ZipFile(io.BytesIO(lzma.decompress(path.read_bytes()))) as archive:
            files |= {name: archive.read(name) for name in archive.namelist()}
    return files


def test_it_has_the_tests_of_every_lab_that_needs_only_python(course: dict[str, bytes]) -> None:
    """Each with what the scoreboard and the messages read, and no starter: the text comes from the page.

    A README has only the contract, whose sentences a failure quotes.
    """
    files = {name for name in course if name.startswith("labs/") and "__pycache__" not in name}
    parts = ("README.md", "fingerprints.json", "lab.toml", "test_lab.py")
    labs = [lab.lab_id for lab in all_labs(ROOT) if lab.needs == "C"]
    assert "lab-05-further" in labs
    assert [lab for lab in labs if lab.count("-") == 1][:7] == [f"lab-{number:02}" for number in range(1, 8)]
    titles = {f"labs/{lab.lab_id}/lab.toml" for lab in all_labs(ROOT)}  # a lab that is passed names the next one
    assert files == {f"labs/{lab}/{part}" for lab in labs for part in parts} | imported_by_tests(labs) | titles


def test_it_has_every_puzzle(course: dict[str, bytes]) -> None:
    files = {name.removeprefix("mini_kv/story/") for name in course if name.endswith(".toml")}
    assert {f"puzzles/{name}.toml" for name in puzzle_names()} <= files


def imported_by_tests(labs: list[str]) -> set[str]:
    """Return the files of these labs that their tests import."""
    found = [file for name in ("helpers.py", "chance.py") for file in ROOT.glob(f"labs/*/{name}")]
    return {str(file.relative_to(ROOT)) for file in found if file.parent.name in labs}


def test_it_has_nothing_of_the_solutions(course: dict[str, bytes]) -> None:
    """No file of solutions/, by name or by content."""
    secret = [path for path in (ROOT / "solutions").rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    assert {path.name for path in secret} >= {"solution.py", "mutants.toml", "NOTES.md"}
    names = {PurePosixPath(name).name for name in course}
    assert not names & {path.name for path in secret}
    assert not set(course.values()) & {path.read_bytes() for path in secret}


def test_each_source_has_its_bytecode(course: dict[str, bytes]) -> None:
    """Compiling would take the reader's browser longer than the tests."""
    names = {name for name in course if not name.startswith("library/")}
    sources = [PurePosixPath(name) for name in names if name.endswith(".py")]
    cached = {str(path.parent / "__pycache__" / f"{path.stem}.cpython-314.pyc") for path in sources}
    assert cached <= names
    assert len(cached) > 40


# What others have made ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def wheels() -> list[Path]:
    """The Python packages that pip has downloaded for the pages, and one more that only tests load there."""
    if not WHEELS.is_dir():
        pytest.skip("labs in the page: their Python packages are not downloaded; `make test` does it where npm is")
    return sorted(WHEELS.glob("*.whl"))


def package_of(wheel: Path) -> str:
    """Return the package's name, in small letters."""
    return wheel.name.partition("-")[0].lower()


def test_each_wheel_is_a_file_that_constraints_txt_names_by_its_hash(wheels: list[Path]) -> None:
    """A wheel with another content has another hash, and is not named."""
    pins = re.split(r"^(?=\w)", (ROOT / "constraints.txt").read_text(encoding="utf-8"), flags=re.MULTILINE)
    hashes = {pin.partition("==")[0]: set(re.findall(r"sha256:(\w{64})", pin)) for pin in pins}
    found = {package_of(wheel): hashlib.sha256(wheel.read_bytes()).hexdigest() for wheel in wheels}
    assert [package for package, digest in found.items() if digest not in hashes[package]] == []
    assert sorted(found) == sorted([*recorded.WHEELS, "xxhash"])


@pytest.mark.slow
def test_pip_takes_no_wheel_with_another_hash(wheels: list[Path], tmp_path: Path) -> None:
    """The command is `npm run wheels` itself, but that it looks for its files in a folder where one has changed."""
    for wheel in wheels:
        shutil.copy(wheel, tmp_path)
    changed = next(path for path in tmp_path.iterdir() if path.name.startswith("pluggy"))
    with zipfile.ZipFile(changed, "a") as archive:
        archive.writestr("pluggy/more.py", "print('not what was pinned')")
    _, *command = shlex.split(json.loads((BOOK / "package.json").read_text(encoding="utf-8"))["scripts"]["wheels"])
    command[command.index("-d") + 1] = str(tmp_path / "out")
    offline = [sys.executable, *command, "--no-index", "--find-links", str(tmp_path)]
    done = subprocess.run(offline, cwd=BOOK, capture_output=True, encoding="utf-8", check=False)
    assert done.returncode == 1
    assert "DO NOT MATCH THE HASHES" in done.stderr
    assert "pluggy" in done.stderr
    assert not (tmp_path / "out" / changed.name).exists()


def test_the_book_names_the_licence_of_each_package_in_it(wheels: list[Path], course: dict[str, bytes]) -> None:
    """As the package itself names it; and the texts are in a file beside it."""
    carried = {match[1] for name in course if (match := re.match(r"packages/(\w+)-.*\.dist-info/", name))}
    assert carried == set(recorded.WHEELS)
    texts = (PACKED / "LICENCES.txt").read_text(encoding="utf-8")
    for wheel in wheels:
        if package_of(wheel) not in carried:
            continue
        with zipfile.ZipFile(wheel) as archive:
            (metadata,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
            said = message_from_bytes(archive.read(metadata))
            licence, _ = recorded.WHEELS[package_of(wheel)]
            assert licence == (said["License-Expression"] or said["License"])
            files = [f"{Path(metadata).parent}/licenses/{name}" for name in said.get_all("License-File", [])]
            assert files != []
            assert [name for name in files if archive.read(name).decode() not in texts] == []

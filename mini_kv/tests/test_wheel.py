"""A wheel carries the package and the labs, without solutions, tests, benchmarks and the book.

An editable install also finds the book.
"""

import ast
import importlib.util
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from inline_snapshot import snapshot

from mini_kv.cli import main

ROOT = Path(__file__).parents[2]
NOT_CARRIED = {"tests", "dev", "kv_story"}
"""Folders of mini_kv that stay in the repository; `kv_story` holds the sources of the joined script beside it."""

pytestmark = pytest.mark.skipif(importlib.util.find_spec("setuptools") is None, reason="needs setuptools: make test")


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what a build reads, so that no build leaves its folders in the repository."""
    copy = tmp_path_factory.mktemp("checkout")
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE", "LICENSE-docs"):
        shutil.copy(ROOT / name, copy)
    for name in ("mini_kv", "book/mini_kv_book"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__", "node_modules"))
    return copy


def build(checkout: Path, kind: str) -> zipfile.ZipFile:
    """Return the wheel of this kind ("wheel" or "editable")."""
    return zipfile.ZipFile(built(checkout, kind))


def built(checkout: Path, kind: str) -> Path:
    """Return the file of this kind, built by the backend itself: without pip and network."""
    script = f"from setuptools import build_meta; print(build_meta.build_{kind}('dist'))"
    done = subprocess.run([sys.executable, "-c", script], cwd=checkout, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return checkout / "dist" / done.stdout.splitlines()[-1]


READMES = {"mini_kv/README.md", "mini_kv/tools/planning/README.md"}


@pytest.mark.slow
def test_the_wheel_is_the_package_and_its_data(checkout: Path) -> None:
    """Every file of mini_kv but the READMEs of packages is there, and beside them only the metadata."""
    files = [path.relative_to(ROOT) for path in (ROOT / "mini_kv").rglob("*") if path.is_file()]
    wanted = [
        path.as_posix()
        for path in files
        if not {*path.parts} & {*NOT_CARRIED, "__pycache__"} and path.as_posix() not in READMES
    ]
    with build(checkout, "wheel") as wheel:
        carried = wheel.namelist()
        [top_level] = [name for name in carried if name.endswith("top_level.txt")]
        assert wheel.read(top_level).split() == [b"mini_kv"]
    assert sorted(name for name in carried if not name.startswith("mini_kv-")) == sorted(wanted)


def test_an_editable_install_also_finds_the_book(checkout: Path) -> None:
    with build(checkout, "editable") as wheel:
        [finder] = [name for name in wheel.namelist() if name.endswith("_finder.py")]
        [mapping] = [line for line in wheel.read(finder).decode().splitlines() if line.startswith("MAPPING")]
    assert ast.literal_eval(mapping.partition(" = ")[2]) == {
        "mini_kv": str(checkout / "mini_kv"),
        "mini_kv_book": str(checkout / "book/mini_kv_book"),
    }


# Installed, not cloned --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of a git clone, which has the labs."""
    clone = tmp_path_factory.mktemp("clone")
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, encoding="utf-8", check=False,
    )  # fmt: skip
    if listed.returncode:
        pytest.skip("the labs in a wheel: this is not a git clone")
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():
            (clone / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, clone / name)
    for command in (["init", "-q"], ["add", "-A"]):
        subprocess.run(["git", *command], cwd=clone, check=True)
    return built(clone, "wheel")


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of packages with the wheel's content."""
    folder = tmp_path_factory.mktemp("installed")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


def mini_kv(packages: Path, cwd: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the command of the mini_kv in `packages`, in the folder `cwd`, whose own package is not used."""
    environment = {**os.environ, "PYTHONPATH": str(packages)}
    command = [sys.executable, "-P", "-m", "mini_kv", *words]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, encoding="utf-8", check=False)


@pytest.mark.slow
def test_an_installed_wheel_writes_the_labs_into_an_empty_folder_and_tests_them_there(
    installed: Path, tmp_path: Path
) -> None:
    assert mini_kv(installed, tmp_path, "story", "share-and-evict").returncode == 0
    lost = mini_kv(installed, tmp_path, "run", "05")
    assert (lost.returncode, lost.stderr.replace(str(tmp_path), "HERE")) == snapshot(
        (2, "mini-kv run: there are no labs in HERE or above it: `mini-kv labs FOLDER` writes them\n")
    )
    written = mini_kv(installed, tmp_path, "labs", ".")
    assert (written.returncode, written.stderr, written.stdout) == snapshot(
        (
            0,
            "",
            """\
the labs are in .; lab 05, for example, is labs/lab-05/starter.py
to test it: mini-kv run 05
""",
        )
    )
    tested = mini_kv(installed, tmp_path, "run", "05")
    assert (tested.returncode, "0 of 50 points" in tested.stdout) == (1, True)
    again = mini_kv(installed, tmp_path, "labs", ".")
    assert (again.returncode, again.stderr) == (2, "mini-kv labs: . is not empty: name a new folder\n")


@pytest.mark.slow
def test_the_written_tree_is_the_students_tree(installed: Path, wheel: Path, tmp_path: Path) -> None:
    clone = wheel.parents[1]
    assert mini_kv(installed, tmp_path, "labs", "labs").returncode == 0
    assert mini_kv(clone, clone, "class", "release", "--student", str(tmp_path / "tree")).returncode == 0
    trees = [tmp_path / "labs", tmp_path / "tree"]
    written, released = (
        {path.relative_to(tree).as_posix(): path.read_bytes() for path in tree.rglob("*") if path.is_file()}
        for tree in trees
    )
    assert written == released


@pytest.mark.slow
def test_a_wheel_from_an_sdist_has_the_same_files(wheel: Path, tmp_path: Path) -> None:
    with tarfile.open(built(wheel.parents[1], "sdist")) as sdist:
        sdist.extractall(tmp_path, filter="data")
    [unpacked] = tmp_path.iterdir()
    with zipfile.ZipFile(wheel) as first, build(unpacked, "wheel") as second:
        assert sorted(first.namelist()) == sorted(second.namelist())
        assert [name for name in first.namelist() if name.endswith("labs.zip")] == ["mini_kv/course/labkit/labs.zip"]


def test_a_clone_has_its_labs_beside_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["labs", str(tmp_path / "new")]) == 2
    assert capsys.readouterr().err.replace(str(ROOT), "CLONE") == snapshot(
        "mini-kv labs: CLONE/mini_kv is not from a wheel: its labs are beside it, in CLONE/labs\n"
    )
    assert not (tmp_path / "new").exists()

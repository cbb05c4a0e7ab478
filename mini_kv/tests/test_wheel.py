"""A wheel carries the package without tests, benchmarks and the book; an editable install also finds the book."""

import ast
import importlib.util
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NOT_CARRIED = {"tests", "bench", "kv_story"}
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
    """Return the wheel of this kind ("wheel" or "editable"), built by the backend itself: without pip and network."""
    script = f"from setuptools import build_meta; print(build_meta.build_{kind}('dist'))"
    done = subprocess.run([sys.executable, "-c", script], cwd=checkout, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return zipfile.ZipFile(checkout / "dist" / done.stdout.splitlines()[-1])


READMES = {"mini_kv/README.md", "mini_kv/planning/README.md"}


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

"""`make` sets up one environment, however many of them run; here pip is a script that notes when it begins and ends."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PYTHON = """#!/bin/sh
[ "$1" = -c ] && exit 0
echo begin >> pip.log
sleep 0.3
echo end >> pip.log
"""

pytestmark = pytest.mark.skipif(
    sys.platform == "win32" or shutil.which("make") is None, reason="needs make: install it, or use uv"
)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """What make reads, and an environment whose Python does nothing."""
    for name in ("Makefile", ".ci/alone.py", "pyproject.toml", "constraints.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / "solutions").mkdir()
    python = tmp_path / ".venv/bin/python"
    python.parent.mkdir(parents=True)
    python.write_text(PYTHON, encoding="ascii")
    python.chmod(0o755)
    return tmp_path


def start(checkout: Path, *command: str) -> subprocess.Popen[str]:
    """Start the command in the checkout, as from a shell that no make has called."""
    environment = {name: value for name, value in os.environ.items() if "MAKE" not in name}
    return subprocess.Popen(command, cwd=checkout, env=environment, stdout=subprocess.PIPE, text=True)


@pytest.mark.slow
def test_two_makes_at_once_take_turns(checkout: Path) -> None:
    """Pip never runs twice at a time, and what one has installed the other one finds: five calls, not ten."""
    makes = [start(checkout, "make", ".venv/.torch", f"PY={sys.executable}") for _ in range(2)]
    told = [line for make in makes for line in make.communicate(timeout=50)[0].splitlines()]
    assert [make.returncode for make in makes] == [0, 0]
    assert (checkout / "pip.log").read_text(encoding="ascii").split() == ["begin", "end"] * 5
    assert told.count("another make is setting up, waiting") in (1, 2)
    assert (
        sum(
            line.startswith("adding PyTorch, Triton, transformers, a web server and clients to .venv (once, ")
            for line in told
        )
        == 1
    )


def test_the_book_asks_for_neither_pytorch_nor_npm(checkout: Path) -> None:
    for name in (".ready", ".book"):
        (checkout / ".venv" / name).touch()
    told = start(checkout, "make", "-n", "book").communicate(timeout=50)[0]
    assert told.strip() == "NO_MKDOCS_2_WARNING=1 .venv/bin/mkdocs serve -f book/mkdocs.yml"


def test_the_lock_of_a_killed_make_is_free(checkout: Path) -> None:
    """Nothing is left behind that has to be removed by hand."""
    alone = (sys.executable, ".ci/alone.py")
    killed = start(checkout, *alone, "sh", "-c", "echo held; exec sleep 50")
    assert killed.stdout is not None
    assert killed.stdout.readline() == "held\n"
    waiting = start(checkout, *alone, "echo", "mine")
    assert waiting.stdout is not None
    assert waiting.stdout.readline() == "another make is setting up, waiting\n"
    killed.kill()
    killed.communicate(timeout=20)
    assert waiting.communicate(timeout=20)[0] == "mine\n"


def test_without_a_python_make_says_so(checkout: Path) -> None:
    """The lock needs Python; where there is none, the message is still the one about Python."""
    (checkout / ".venv/bin/python").unlink()
    environment = {**os.environ, "MAKEFLAGS": ""}
    command = ["make", ".venv/.ready", "PY=/no/such/python3"]
    done = subprocess.run(command, cwd=checkout, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "mini_kv needs Python 3.11 or newer, and /no/such/python3 is older or missing" in done.stderr


@pytest.mark.parametrize("stamp", [".book", ".notebooks", ".e2e", ".lint", ".torch"])
@pytest.mark.slow
def test_make_says_what_takes_so_long(checkout: Path, stamp: str) -> None:
    """Before each installation: what comes, and how long it takes."""
    for name in (".ready", ".torch"):
        (checkout / ".venv" / name).touch()
    (checkout / ".venv" / stamp).unlink(missing_ok=True)
    told = start(checkout, "make", f".venv/{stamp}", f"PY={sys.executable}").communicate(timeout=50)[0]
    assert told.startswith("adding ")
    assert " to .venv (once, " in told
    assert "minute" in told

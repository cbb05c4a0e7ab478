"""A small lab in a temporary folder, and a way to run its tests and to read what a student reads.

A test module that uses it sets `pytest_plugins = ["pytester"]` and hands `pytester` in.
"""

import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

ROOT = Path(__file__).resolve().parents[2]

LAB_TOML = """
title = "A lab to throw away"
minutes = 20
difficulty = 1
needs = "C"
prerequisites = []
points = 10

[[function]]
name = "prefill"
signature = "prefill(kv, token_ids, request_id)"
minutes = 15
vllm = "Scheduler.schedule"

[[function]]
name = "double"
signature = "double(numbers)"
minutes = 5
vllm = "none"
"""

TEST_LAB = '''
from mini_kv.course import points

TOKENS = [1, 2, 3, 4, 5, 6]


@points(3, "prefill", why="six tokens fill three blocks of two")
def test_1_cold(lab):
    """A comes first."""
    kv = lab.make_kv(num_blocks=9, block_size=2)
    request = lab.prefill(kv, TOKENS, "A")
    lab.expect("A's block table", [1, 2, 3], kv.get_block_ids("A")[0])


@points(2, "prefill", after="test_1_cold")
def test_2_warm(lab):
    """B asks the same."""
    kv = lab.make_kv(num_blocks=9, block_size=2)
    lab.prefill(kv, TOKENS, "A")
    lab.prefill(kv, TOKENS, "B")
    lab.expect("B's block table", [1, 2, 4], kv.get_block_ids("B")[0], why="the last block is never shared")


@points(1, "prefill", stage="adversary", after="test_2_warm")
def test_3_three(lab):
    """C asks the same."""
    kv = lab.make_kv(num_blocks=9, block_size=2)
    for name in "ABC":
        lab.prefill(kv, TOKENS, name)
    lab.expect("C's block table", [1, 2, 5], kv.get_block_ids("C")[0])


@points(4, "double", stage="adversary", why="twice as much")
def test_4_double(lab):
    """Each number twice."""
    lab.expect("the doubles", [2, 4, 6], lab.double([1, 2, 3]))
'''

STARTER = '''
from mini_kv.course import todo


def prefill(kv, token_ids, request_id):
    """Admit a request."""
    todo("lab-77", "prefill", "step 1, make the request")


def double(numbers):
    """Double."""
    todo("lab-77", "double", "multiply by 2")
'''

SOLUTION = """\
def prefill(kv, token_ids, request_id):
    request = kv.new_request(request_id, token_ids)
    blocks, num_cached = kv.get_computed_blocks(request)
    kv.allocate_slots(request, len(token_ids) - num_cached, num_cached, blocks)
    request.num_computed_tokens = len(token_ids)
    return request


def double(numbers):
    return [2 * number for number in numbers]
"""

TESTS = {"test_1_cold": 3, "test_2_warm": 2, "test_3_three": 1, "test_4_double": 4}


@dataclass(frozen=True)
class LabRun:
    """What came of running a lab's tests."""

    status: int
    out: str
    err: str

    @property
    def states(self) -> dict[str, str]:
        """State of each test on the scoreboard, with its points: `{"test_1_cold": "PASS 3/3"}`."""
        lines = re.findall(r"^    (PASS|FAIL|TODO|WAIT|NOT RUN) +(\d+/\d+) +(\w+)", self.out, re.MULTILINE)
        return {test: f"{state} {points}" for state, points, test in lines}

    @property
    def letters(self) -> str:
        """The states' first letters, in order."""
        return "".join(state[0] for state in self.states.values())

    @property
    def messages(self) -> dict[str, str]:
        """The failures by test, as printed."""
        failures = "".join(re.findall(r"^=+ (?:ERRORS|FAILURES) =+\n(.*?\n)(?==)", self.out, re.DOTALL | re.MULTILINE))
        parts = re.split(r"^_{3,} ([\w ]+) _{3,}\n", failures, flags=re.MULTILINE)[1:]
        return dict(zip(parts[::2], (text.rstrip("\n") for text in parts[1::2]), strict=True))

    @property
    def message(self) -> str:
        """The one failure."""
        (message,) = self.messages.values()
        return message

    @property
    def scoreboard(self) -> str:
        """From the lab's title on."""
        return self.out[self.out.rindex("\nlab-77  ") + 1 :]


class ThrowawayLab:
    """A repository with one lab, lab-77, whose tests can be run on anything."""

    def __init__(self, pytester: "pytest.Pytester", monkeypatch: "pytest.MonkeyPatch") -> None:
        for name in ("LAB_IMPL", "LAB_SEED", "CI", "MINI_KV_NO_SKIP"):
            monkeypatch.delenv(name, raising=False)
        self.pytester = pytester
        self.monkeypatch = monkeypatch
        self.root = pytester.path
        self.write("conftest.py", 'pytest_plugins = ["mini_kv.course.labkit.plugin", "mini_kv.tests.skips"]\n')
        # Half of such a run would go into looking for plugins and loading those that no lab uses.
        monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
        self.write("pytest.ini", "[pytest]\naddopts = --import-mode=importlib -p no:cacheprovider -p timeout\n")
        self.add_lab("lab-77", TEST_LAB)

    def write(self, path: str, text: str) -> Path:
        """Write a file of the repository."""
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
        return file

    def add_lab(self, lab_id: str, test_lab: str) -> None:
        """Add a lab."""
        self.write(f"labs/{lab_id}/lab.toml", LAB_TOML)
        self.write(f"labs/{lab_id}/test_lab.py", test_lab)
        self.write(f"labs/{lab_id}/starter.py", STARTER)
        self.write(f"solutions/{lab_id}/solution.py", SOLUTION)

    def run(self, choice: str | None, *args: str, target: str = "labs/lab-77") -> LabRun:
        """Run the lab's tests with this LAB_IMPL, in this process."""
        if choice is None:
            self.monkeypatch.delenv("LAB_IMPL", raising=False)
        else:
            self.monkeypatch.setenv("LAB_IMPL", choice)
        done = self.pytester.runpytest_inprocess(*args, target, no_reraise_ctrlc=True)
        return LabRun(int(done.ret), "\n".join(done.outlines) + "\n", "\n".join(done.errlines))

    def run_code(self, code: str, *args: str) -> LabRun:
        """Run the lab's tests on this code, as `mine.py`, in this process."""
        self.write("mine.py", code)
        return self.run("mine.py", *args)

    def run_apart(self, code: str, *args: str, environment: Mapping[str, str]) -> LabRun:
        """Run the lab's tests on this code in a process of their own."""
        self.write("mine.py", code)
        command = [sys.executable, "-m", "pytest", *args, "labs/lab-77"]
        done = subprocess.run(
            command,
            cwd=self.root,
            env={**environment, "LAB_IMPL": "mine.py", "PYTHONPATH": str(ROOT)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        return LabRun(done.returncode, done.stdout, done.stderr)

"""mini_kv in a browser's Python: Pyodide, run by Node, computes what this Python computes, and lab-05 runs there too.

`pyodide/driver.py` holds the questions; here its answers from the two Pythons are laid side by side.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from mini_kv.story.puzzle import puzzle_names

ROOT = Path(__file__).parents[2]
PYODIDE = Path(__file__).with_name("pyodide")
BOOK = ROOT / "book"
"""Its npm package brings Pyodide, for the labs in its pages."""
WHEELS = BOOK / "node_modules" / ".wheels"

PAGE = (
    "conftest.py",
    "pyproject.toml",
    "mini_kv/__init__.py",
    "mini_kv/installer.py",
    "mini_kv/interrupts.py",
    "mini_kv/messages.py",
    "mini_kv/progress_line.py",
    "mini_kv/typed_numbers.py",
    "mini_kv/core",
    "mini_kv/story",
    "mini_kv/course/__init__.py",
    "mini_kv/course/commands",
    "mini_kv/course/labkit",
    "mini_kv/policy",
    "mini_kv/tools/__init__.py",
    "mini_kv/tools/traces",
    "mini_kv/tests/skips.py",
    "labs/lab-05",
    "solutions/lab-05",
)
"""What a page with a lab loads of this repository, here lab-05. It has nothing else, so nothing else can be needed."""
QUESTIONS = ("mini_kv/tests/pyodide/driver.py", "mini_kv/tests/golden_block_hashes.json")

# The first test waits for Node, the others only compare.
pytestmark = pytest.mark.slow

Answers = dict[str, Any]


# The two Pythons ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what a page would load, and the driver."""
    folder = tmp_path_factory.mktemp("page") / "tree"
    for name in (*PAGE, *QUESTIONS):
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, target)
    # Whatever the learner has made of the starter here, a page begins with the course's.
    shutil.copy(folder / "mini_kv/course/labkit/starters/lab-05.txt", folder / "labs/lab-05/starter.py")
    return folder


@pytest.fixture(scope="module")
def browser(tree: Path) -> Answers:
    """What Pyodide answers."""
    if missing():
        pytest.skip(
            f"mini_kv in a browser's Python: {missing()}. With Node 18 or newer and npm, `make test` gets what it "
            "needs; without make: run `npm ci` and `npm run wheels` in book"
        )
    page = shutil.make_archive(str(tree.parent / "page"), "zip", tree)
    wheels = [str(wheel) for wheel in sorted(WHEELS.glob("*.whl"))]
    return ask(["node", str(PYODIDE / "run.mjs"), page, *wheels], cwd=tree.parent, env=dict(os.environ))


@pytest.fixture(scope="module")
def here(tree: Path, browser: Answers) -> Answers:
    """What this Python answers, with nothing of pytest's that a page would not have: no CI, no colours, no plugins."""
    env = {name: os.environ[name] for name in ("PATH", "SYSTEMROOT", "TEMP") if name in os.environ}
    env |= {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONUTF8": "1"}
    return ask([sys.executable, "-m", "mini_kv.tests.pyodide.driver"], cwd=tree, env=env)


@cache
def missing() -> str:
    """Return what Pyodide lacks on this machine; "" if nothing."""
    node = shutil.which("node")
    if node is None:
        return "Node is missing"
    version = subprocess.run([node, "--version"], capture_output=True, text=True, check=False).stdout.strip()
    if not re.match(r"v(1[89]|[2-9]\d)\.", version):
        return f"Node {version or '(of no version)'} is too old"
    if not (BOOK / "node_modules" / "pyodide").is_dir():
        return "the npm package pyodide is not installed"
    if not any(WHEELS.glob("pytest-*.whl")):
        return "the wheels of pytest are not there"
    return ""


def ask(command: list[str], cwd: Path, env: dict[str, str]) -> Answers:
    """Run the driver and return its answers."""
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, encoding="utf-8", timeout=240, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    answers: Answers = json.loads(done.stdout)
    return answers


def told(report: list[str]) -> list[str]:
    """Return pytest's report without what is about the Python, its folder and its speed."""
    lines = [line for line in report if not line.startswith(("platform ", "rootdir: "))]
    return [re.sub(r"^=+ (.*) in [\d.]+s =+$", r"\1", line) for line in lines]


# Side by side -------------------------------------------------------------------------------------------------------


def test_the_browsers_python_is_another_one(browser: Answers) -> None:
    """WebAssembly, 32 bits: whatever depends on the size of a word, or on the platform, would show below."""
    name, version, platform, maxsize = browser["python"]
    assert (name, platform, maxsize) == ("cpython", "emscripten", 2**31 - 1)
    assert version.startswith("3.14.")


@pytest.mark.parametrize("part", ["stories", "frames", "drawings", "terminal"])
def test_every_scenario_is_the_same(browser: Answers, here: Answers, part: str) -> None:
    """The same calls and edges, the same state after each step, drawn in the same characters."""
    names = sorted(path.stem for path in (ROOT / "mini_kv/story/scenarios").glob("*.toml"))
    assert sorted(browser["scenarios"]) == sorted(here["scenarios"]) == names
    for name in names:
        assert browser["scenarios"][name][part] == here["scenarios"][name][part]


def test_the_stories_are_the_expected_ones(browser: Answers) -> None:
    """Both could be wrong together: the scenario itself says what is right."""
    for scenario in browser["scenarios"].values():
        assert scenario["stories"] == scenario["expected stories"]


def test_every_puzzle_is_the_same(browser: Answers, here: Answers) -> None:
    """The same calls are possible, the picture is the same, and so is what the goal is measured by."""
    assert list(browser["puzzles"]) == puzzle_names()
    assert browser["puzzles"] == here["puzzles"]
    assert all(played["calls"] for played in browser["puzzles"].values())


@pytest.mark.parametrize("hash_name", ["sha256", "xxh3_128"])
def test_every_golden_prefix_has_the_same_hash(browser: Answers, here: Answers, hash_name: str) -> None:
    """A trace recorded on a server can be replayed in a page: the keys agree, those of the golden file."""
    golden = json.loads((ROOT / QUESTIONS[1]).read_text(encoding="ascii"))
    expected = {case["name"]: case["block_hashes"] for case in golden if case["hash"] == hash_name}
    assert browser[hash_name] == here[hash_name] == expected
    assert expected


def test_every_module_imports(browser: Answers, here: Answers) -> None:
    """All of core, story and labkit, from the files of a page alone."""
    assert browser["modules"] == here["modules"]
    assert {
        "mini_kv.core.request",
        "mini_kv.story.scenario",
        "mini_kv.story.text",
        "mini_kv.course.labkit.plugin",
    } <= set(browser["modules"])


def test_nothing_heavy_is_asked_for(browser: Answers, here: Answers) -> None:
    """Stories, drawings, digests and lab ask for no torch, numpy or triton; for xxhash only who wants that hash."""
    assert browser["wanted"] == here["wanted"] == []
    assert browser["wanted for xxh3_128"] == here["wanted for xxh3_128"] == ["xxhash"]


# lab-05 in a page ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("choice", "status", "line"),
    [
        ("solution", 0, "lab-05  50 of 50 points for the reference solution, solutions/lab-05/solution.py"),
        ("starter", 1, "20 todo"),
        ("never-looks", 1, "     B     [9x1#] [10x1#] [11x1#] [12x1#] [13x1#] [14x1#] [15x1#] [16x1#]"),
        ("hit-counted-twice", 1, "lab-05  test_2_identical_prompt_shares_all_but_the_tail_block"),
    ],
)
def test_the_lab_reads_as_in_the_terminal(browser: Answers, here: Answers, choice: str, status: int, line: str) -> None:
    """The real pytest, the same verdict, scoreboard and failures, word by word."""
    report = told(browser["labs"][choice]["report"])
    assert report == told(here["labs"][choice]["report"])
    assert browser["labs"][choice]["status"] == here["labs"][choice]["status"] == status
    assert line in report


def test_the_starter_is_all_to_do(browser: Answers) -> None:
    """Who opens the page has written nothing: no points, and no reproach."""
    board = [line.split() for line in browser["labs"]["starter"]["report"] if " test_" in line and "/" in line]
    states = [words[:2] for words in board if words[0] != "next:"]
    assert len(states) == 20
    assert all(state == "TODO" and score.startswith("0/") for state, score in states)


def test_a_wrong_line_is_named(browser: Answers) -> None:
    """The learner's file is found in the page's file system too."""
    where = [line for line in browser["labs"]["hit-counted-twice"]["report"] if line.startswith("at:  ")]
    assert where
    assert where[0].startswith("at:  hit-counted-twice.py:13  if kv.allocate_slots(")


def test_the_wrong_idea_is_named(browser: Answers) -> None:
    """A fingerprint that was taken in the terminal is met to the letter in a page, which asks its question."""
    mutants = tomllib.loads((ROOT / "solutions/lab-05/mutants.toml").read_text(encoding="utf-8"))["mutant"]
    (question,) = (mutant["ask"] for mutant in mutants if mutant["id"] == "never-looks")
    assert any(question in line for line in browser["labs"]["never-looks"]["report"])


@pytest.mark.parametrize("command", ["status", "hint", "predict", "story"])
def test_the_learners_commands_say_the_same(browser: Answers, here: Answers, command: str) -> None:
    """Progress, hints, questions and the story of a failing test are text, and need no terminal."""
    assert browser["helps"][command] == here["helps"][command]
    assert len(browser["helps"][command]) > 1


# Where it comes from ------------------------------------------------------------------------------------------------


def test_the_lock_pins_versions_and_names_no_registry() -> None:
    """An installation asks the registry of the user's settings; checksums say that the files are the same."""
    text = (BOOK / "package-lock.json").read_text(encoding="utf-8")
    lock = json.loads(text)
    package = json.loads((BOOK / "package.json").read_text(encoding="utf-8"))
    wanted = package["devDependencies"]["pyodide"]
    assert lock["packages"]["node_modules/pyodide"]["version"] == wanted
    assert all("integrity" in entry for name, entry in lock["packages"].items() if name)
    assert "://" not in text

"""The learner's files in `.mini_kv`: shared by runs at the same time, damaged in every way, out of reach."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from mini_kv.course.labkit.learner_state import LARGEST, SHAPES, State, locked, read_state, update_state

ROOT = Path(__file__).parents[2]
RUN = {"score": 12, "best": 20, "points": 50, "source": "labs/lab-05/starter.py", "tests": {"test_1": "pass"}}
RUN_OF_LAB_05 = {**RUN, "when": "2027-01-01 10:00"}
NO_LOCKS = "import sys; sys.modules['fcntl'] = sys.modules['msvcrt'] = None\n"
"""As in a browser's Python."""


def count_up(key: str, times: int) -> str:
    """Return a program that adds to two counts: one of its own, and one that all share."""
    return f"""
from pathlib import Path
from mini_kv.course.labkit.learner_state import update_state

def add(state):
    for name in ({key!r}, "all"):
        state[name] = state.get(name, 0) + 1

for _ in range({times}):
    update_state(Path(".mini_kv"), "hints", add)
"""


def start(program: str, folder: Path) -> subprocess.Popen[str]:
    """Run the program in the folder, in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(ROOT)!r})\n{program}"],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def write(file: Path, content: object) -> None:
    """Write the file as JSON, or these very bytes."""
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())


def kept(folder: Path) -> list[bytes]:
    """Return what lies in the backup."""
    return [path.read_bytes() for path in sorted((folder / "backup").glob("*"))]


# Runs at the same time ----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_processes_that_write_at_once_lose_nothing(tmp_path: Path) -> None:
    """Six processes, 100 updates each: 600 are there, and each has its own 100."""
    processes = [start(count_up(f"process {number}", 100), tmp_path) for number in range(6)]
    assert [process.communicate(timeout=50) for process in processes] == [("", "")] * 6
    assert read_state(tmp_path / ".mini_kv", "hints") == {"all": 600, **{f"process {n}": 100 for n in range(6)}}
    assert sorted(path.name for path in (tmp_path / ".mini_kv").iterdir()) == ["hints.json", "lock"]


def test_the_lock_of_a_killed_process_is_free(tmp_path: Path) -> None:
    """It is the system's lock on an open file: no file that stays behind can hold it."""
    holder = start(
        "import time; from pathlib import Path; from mini_kv.course.labkit.learner_state import locked\n"
        "with locked(Path('.')): print('held', flush=True); time.sleep(50)",
        tmp_path,
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    holder.send_signal(signal.SIGTERM if sys.platform == "win32" else signal.SIGKILL)
    holder.communicate(timeout=20)
    with locked(tmp_path):
        pass


def test_where_there_are_no_locks_files_are_still_whole(tmp_path: Path) -> None:
    """A browser's Python has no fcntl: everything works, and nothing but the file and the lock is left behind."""
    process = start(NO_LOCKS + count_up("page", 20), tmp_path)
    assert process.communicate(timeout=50) == ("", "")
    assert read_state(tmp_path / ".mini_kv", "hints") == {"all": 20, "page": 20}
    assert sorted(path.name for path in (tmp_path / ".mini_kv").iterdir()) == ["hints.json", "lock"]


# Every shape of a file ----------------------------------------------------------------------------------------------

DAMAGED = {
    "empty": b"",
    "half-written": b'{"version": 1, "entries": {"lab-05": {"sco',
    "not UTF-8": b'{"version": 1, "entries": {"\xff": 1}}',
    "NUL": b"\0" * 4096,
    "a list": [1, 2],
    "a number": 7,
    "a text": "progress",
    "null": None,
    "deep": b"[" * 200_000,
    "deep inside": b'{"version": 1, "entries": {"lab-05": ' + b"[" * 200_000,
    "a long number": b'{"version": 1' + b"0" * 10_000 + b"}",
    "no entries": {"version": 1},
    "entries in a list": {"version": 1, "entries": [RUN_OF_LAB_05]},
    "an entry that is a number": {"version": 1, "entries": {"lab-05": 5}},
    "an entry that lacks a key": {"version": 1, "entries": {"lab-05": RUN}},
    "a score in words": {"version": 1, "entries": {"lab-05": {**RUN_OF_LAB_05, "score": "12"}}},
    "a score of true": {"version": 1, "entries": {"lab-05": {**RUN_OF_LAB_05, "best": True}}},
    "a score below 0": {"version": 1, "entries": {"lab-05": {**RUN_OF_LAB_05, "best": -1}}},
    "a score beyond all": {"version": 1, "entries": {"lab-05": {**RUN_OF_LAB_05, "best": LARGEST}}},
    "a score that is infinite": b'{"lab-05": {"score": Infinity}}',
    "tests in a list": {"version": 1, "entries": {"lab-05": {**RUN_OF_LAB_05, "tests": ["test_1"]}}},
    "tests of numbers": {"version": 1, "entries": {"lab-05": {**RUN_OF_LAB_05, "tests": {"test_1": 1}}}},
    "an old file that is damaged": {"lab-05": 1},
}


@pytest.mark.parametrize("shape", DAMAGED)
def test_a_damaged_file_is_told_of_and_kept(tmp_path: Path, shape: str) -> None:
    """Reading leaves it where it is. Writing moves it aside first, byte for byte, and begins a new one."""
    file = tmp_path / "progress.json"
    write(file, DAMAGED[shape])
    before = file.read_bytes()
    told: list[str] = []
    assert read_state(tmp_path, "progress", told.append) == {}
    assert file.read_bytes() == before
    assert update_state(tmp_path, "progress", lambda state: state.update(new=RUN_OF_LAB_05), told.append) == {
        "new": RUN_OF_LAB_05
    }
    assert kept(tmp_path) == [before]
    assert [sentence.startswith(f"{file} ") and "\n" not in sentence for sentence in told] == [True, True]
    assert [len(sentence) - len(str(tmp_path)) < 300 for sentence in told] == [True, True]
    assert read_state(tmp_path, "progress", told.append) == {"new": RUN_OF_LAB_05}
    assert len(told) == 2


def test_a_file_of_the_time_before_versions_is_read(tmp_path: Path) -> None:
    """It had the entries alone; the next update writes them under a version."""
    write(tmp_path / "progress.json", {"lab-05": RUN_OF_LAB_05})
    told: list[str] = []
    assert read_state(tmp_path, "progress", told.append) == {"lab-05": RUN_OF_LAB_05}
    update_state(tmp_path, "progress", lambda state: None, told.append)
    written = json.loads((tmp_path / "progress.json").read_text(encoding="utf-8"))
    assert written == {"version": 1, "entries": {"lab-05": RUN_OF_LAB_05}}
    assert told == []


@pytest.mark.parametrize("name", SHAPES)
def test_a_folder_in_the_place_of_a_file(tmp_path: Path, name: str) -> None:
    """It is moved aside with all that is in it."""
    (tmp_path / f"{name}.json").mkdir()
    (tmp_path / f"{name}.json" / "mine").write_text("kept", encoding="utf-8")
    told: list[str] = []
    assert read_state(tmp_path, name, told.append) == {}
    assert update_state(tmp_path, name, lambda state: None, told.append) == {}
    assert [path.read_text(encoding="utf-8") for path in (tmp_path / "backup").glob("*/mine")] == ["kept"]
    assert told[0] == f"{tmp_path / name}.json is not a file; it is not changed"
    assert read_state(tmp_path, name) == {}


# Where nothing can be written ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("blocked", ["", "lock", "backup"])
def test_where_nothing_can_be_written_the_change_is_made_all_the_same(tmp_path: Path, blocked: str) -> None:
    """A file in the place of the folder, a folder in that of the lock, a file in that of the backup: one sentence."""
    folder = tmp_path / ".mini_kv"
    if blocked:
        folder.mkdir()
        write(folder / "hints.json", b"{half")
    if blocked == "lock":
        (folder / "lock").mkdir()
    else:
        write(folder / blocked, b"a file")
    told: list[str] = []

    def add(state: State) -> None:
        state["lab-05 prefill"] = state.get("lab-05 prefill", 0) + 1

    assert update_state(folder, "hints", add, told.append) == {"lab-05 prefill": 1}
    assert len(told) == 1
    assert told[0].startswith(f"no progress can be saved: {folder / blocked}: ")
    if blocked:
        assert (folder / "hints.json").read_bytes() == b"{half"

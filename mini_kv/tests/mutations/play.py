"""Plays mutations on a clone of the repository and names the test that catches each."""

import os
import re
import resource
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from signal import SIGKILL
from tempfile import TemporaryFile

from mini_kv.tests.mutations.draw import Mutation, apply, find, room_of, tracked

FAST = "not (slow or audit or browser or book or notebooks)"
SLOW = "not (audit or browser or book or notebooks)"
BROWSER = "not (audit or notebooks)"
CPU_S, WALL_S = 200, 900  # for one process of pytest, which may loop or wait forever on a mutation
TEST_S = 100  # for one test
FETCHED = ("book/node_modules", "mini_kv/tests/browser/node_modules", "book/docs/assets/kv-lab")
"""What scripts and browsers need and git ignores."""


def nearness(mutation: Mutation, path: str, text: str) -> int:
    """Return how closely a test file concerns a mutation, by the names in it. 0 if it does not name the room."""
    file = Path(mutation.file)
    room = (room_of(mutation.file) or "").removesuffix("-js")
    package = ".".join(file.parent.parts).removeprefix("book.")
    is_own = any(f"_{name}_" in f"{Path(path).stem}_" for name in {file.stem, file.parent.name} - {room})
    num_names = sum(re.search(rf"\b{name}\b", text) is not None for name in mutation.where.split(".") if name)
    is_imported = package in text and re.search(rf"\b{file.stem}\b", text) is not None
    is_in_room = f"/{room}/" in path or f"mini_kv.{room}" in text or f"mini_kv_{room}" in text
    if file.suffix != ".py":
        return 8 * is_own + (f'"{file.name}"' in text) + ("/browser/" in path)
    return 8 * is_own + 4 * is_imported + (1 + num_names if is_in_room else 0)


def nearest(mutation: Mutation, tests: Mapping[str, str]) -> list[str]:
    """Return the test files that concern a mutation, the closest first; of equals the smallest."""
    near = {path: nearness(mutation, path, text) for path, text in tests.items()}
    return sorted((path for path in tests if near[path]), key=lambda path: (-near[path], len(tests[path])))


def doubling(paths: Sequence[str], size: int = 3) -> Iterator[Sequence[str]]:
    """Yield all paths in parts, each twice as long as the one before: pytest starts seldom, and stops early."""
    if paths:
        yield paths[:size]
        yield from doubling(paths[size:], 2 * size)


def cpu_seconds() -> float:
    """Return the CPU time of all child processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


class Clone:
    """What is committed, in a folder of its own, where one line at a time is changed and tests run."""

    def __init__(self, repository: Path, folder: Path) -> None:
        self.root = folder / "tree"
        subprocess.run(["git", "clone", "-q", str(repository), str(self.root)], check=True)
        for path in FETCHED:
            if (repository / path).exists() and not (self.root / path).exists():
                (self.root / path).symlink_to(repository / path)
        paths = os.pathsep.join(str(self.root / name) for name in ("", "book"))
        changed = {"PYTHONPATH": paths, "HOME": str(folder), "OMP_NUM_THREADS": "1", "MINI_KV_OPERATIONS": "300"}
        self.environment = os.environ | changed | {"TMPDIR": str(folder)}
        for name in ("LAB_IMPL", "PYTHONDONTWRITEBYTECODE"):
            self.environment.pop(name, None)
        self.files = tracked(self.root, "*.py", "*.js", "*.mjs")
        self.tests = {path: text for path, text in self.files.items() if re.search(r"/test_\w+\.py$", path)}
        self.right: set[str] = set()  # tests that pass where nothing is changed
        self.broken: set[str] = set()  # and those that do not

    def change(self, mutation: Mutation) -> bool:
        """Take back all changes and apply this one; return whether its line was found."""
        self.restore()
        place = find(mutation, self.files)
        if place is None:
            return False
        path = self.root / place[0]
        path.write_text(apply(mutation, self.files[place[0]], place[1]), encoding="utf-8")
        for cached in path.parent.glob(f"__pycache__/{path.stem}.*"):
            cached.unlink()  # Python compares size and second, and both may be equal
        if path.parent.name == "kv_story":
            subprocess.run(["node", "join_figure.mjs"], cwd=self.root / "book", check=True)
        return True

    def restore(self) -> None:
        """Bring back what is committed, and remove what tests have left behind."""
        for command in (
            ["checkout", "-q", "."],
            ["clean", "-fdxq", "-e", "node_modules", "-e", "kv-lab", "-e", "*.pyc"],
        ):
            subprocess.run(["git", *command], cwd=self.root, check=True)

    def failing(self, tests: Sequence[str], mark: str, *options: str) -> str | None:
        """Run tests up to the first failure; return its name, or the file's that cannot be loaded."""
        left_out = [f"--deselect={name}" for name in sorted(self.broken)]
        pytest = ["-m", "pytest", "-xv", "--tb=no", "-p", "no:cacheprovider", f"--timeout={TEST_S}", "-m", mark]
        limited = ["sh", "-c", 'ulimit -t "$0"; exec "$@"', str(CPU_S), sys.executable, *pytest, *options, *left_out]
        with TemporaryFile("w+", encoding="utf-8", errors="replace") as output:
            process = subprocess.Popen(
                [*limited, *tests],
                cwd=self.root,
                env=self.environment,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
            with suppress(subprocess.TimeoutExpired):
                process.wait(WALL_S)
            with suppress(ProcessLookupError):
                os.killpg(process.pid, SIGKILL)  # also what the tests have started
            if process.wait() in (0, 5):  # 5: no test has this mark
                return None
            output.seek(0)
            printed = output.read()
        started = re.findall(r"^(\S+\.py(?:::[^\s\[]+)+)|^ERROR (\S+\.py)", printed, re.MULTILINE)
        return "".join(started[-1]) if started else tests[0]

    def caught_by(self, mutation: Mutation, tests: Sequence[str], mark: str) -> str | None:
        """Return the first test that fails on the change and passes without it."""
        while tests := [path for path in tests if path not in self.broken]:
            name = self.failing(tests, mark)
            if name is None or name in self.right:
                return name
            self.restore()
            is_right = self.failing([name], mark, *([] if "::" in name else ["--collect-only"])) is None
            (self.right if is_right else self.broken).add(name)
            if is_right:
                return name
            self.change(mutation)
        return None

    def play(self, mutation: Mutation, before: str | None, mark: str, seconds: float) -> str | None:
        """Return the test that catches a mutation: the one that did `before`, or the first in this CPU time."""
        if before is not None and (caught := self.caught_by(mutation, [before], mark)):
            return caught
        end = cpu_seconds() + seconds
        for paths in doubling(nearest(mutation, self.tests)):
            if cpu_seconds() < end and (caught := self.caught_by(mutation, paths, mark)):
                return caught
        return None

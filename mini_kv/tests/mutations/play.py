"""Plays mutations on a clone of the repository and names the test that catches each."""

import os
import re
import resource
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from signal import SIGKILL
from tempfile import TemporaryFile

from mini_kv.tests.mutations.draw import Mutation, apply, find, room_of, tracked

WALL_S, TEST_S = 600, 100  # for a process of pytest, which may wait forever; for one test
CLEAN = ("clean", "-fdxq", "-e", "node_modules", "-e", "kv-lab", "-e", "*.pyc")
IGNORED = ("book/node_modules", "mini_kv/tests/browser/node_modules", "book/docs/assets/kv-lab")
"""What scripts and browsers need and git ignores."""


def nearest(mutation: Mutation, tests: Mapping[str, str]) -> list[str]:
    """Return the test files that name a mutation's room, those that name its file and function first."""
    file, room = Path(mutation.file), (room_of(mutation.file) or "").removesuffix("-js")
    package = ".".join(file.parent.parts).removeprefix("book.")
    near: dict[str, int] = {}
    for path, text in tests.items():
        own = any(f"_{name}_" in f"{Path(path).stem}_" for name in {file.stem, file.parent.name} - {room})
        if file.suffix == ".py":
            words = [file.stem, *filter(None, mutation.where.split("."))] if package in text else []
            near[path] = sum(re.search(rf"\b{word}\b", text) is not None for word in words)
            near[path] += f"/{room}/" in path or f"mini_kv.{room}" in text or package in text
        else:
            near[path] = ("/browser/" in path) + (file.name in text)
        near[path] += 8 * own + 8 * (Path(path).stem == f"test_{file.stem}")
    return sorted((path for path in tests if near[path]), key=lambda path: (-near[path], len(tests[path])))


class Clone:
    """What is committed, in a folder of its own, where one line at a time is changed and tests run."""

    def __init__(self, repository: Path, folder: Path, mark: str, seconds: int) -> None:
        self.mark, self.seconds = mark, seconds
        self.root = folder / "tree"
        subprocess.run(["git", "clone", "-q", str(repository), str(self.root)], check=True)
        for path in IGNORED:
            if (repository / path).exists():
                (self.root / path).symlink_to(repository / path)
        path = f"{self.root}{os.pathsep}{self.root / 'book'}"
        changed = {"PYTHONPATH": path, "HOME": str(folder), "TMPDIR": str(folder), "MINI_KV_OPERATIONS": "300"}
        self.environment = os.environ | changed | {"OMP_NUM_THREADS": "1"}
        for name in ("LAB_IMPL", "PYTHONDONTWRITEBYTECODE"):
            self.environment.pop(name, None)
        self.files = tracked(self.root)
        self.tests = {path: text for path, text in self.files.items() if re.search(r"/test_\w+\.py$", path)}
        self.changed = self.root
        self.right = set[str]()  # tests that pass where nothing is changed
        self.broken = set[str]()  # that fail there, or now and then

    def change(self, mutation: Mutation) -> bool:
        """Take back all changes and apply this one; return whether its line was found."""
        self.restore()
        place = find(mutation, self.files)
        if place is None:
            return False
        path = self.root / place[0]
        path.write_text(apply(mutation, self.files[place[0]], place[1]), encoding="utf-8")
        self.changed = path
        self.remove_compiled()
        if path.parent.name == "kv_story":
            subprocess.run(["node", "join_figure.mjs"], cwd=self.root / "book", check=True)
        return True

    def restore(self) -> None:
        """Bring back what is committed, and remove what tests have left behind."""
        for command in (("checkout", "-q", "."), CLEAN):
            subprocess.run(["git", *command], cwd=self.root, check=True)
        self.remove_compiled()

    def remove_compiled(self) -> None:
        """Remove what Python keeps of the file changed last: it compares size and second, and both may be equal."""
        for path in self.changed.parent.glob(f"__pycache__/{self.changed.stem}.*"):
            path.unlink()

    def failing(self, tests: Sequence[str], *options: str) -> str | None:
        """Run tests up to the first failure; return its name, or the file's that cannot be loaded."""
        is_named = "::" in tests[0]  # it has caught something, whatever its marks
        pytest = ["-m", "pytest", "-xv", "--tb=no", "-p", "no:cacheprovider", f"--timeout={TEST_S}"]
        pytest += ["-m", "" if is_named else self.mark]
        cpu_s = str(30 if is_named else max(30, self.seconds))  # it may also loop
        limited = ["sh", "-c", 'ulimit -t "$0"; exec "$@"', cpu_s, sys.executable, *pytest, *options]
        command = [*limited, *(f"--deselect={name}" for name in self.broken), *tests]
        with TemporaryFile("w+", encoding="utf-8", errors="replace") as out:
            process = subprocess.Popen(
                command, cwd=self.root, env=self.environment, stdout=out, stderr=out, start_new_session=True
            )
            with suppress(subprocess.TimeoutExpired):
                process.wait(WALL_S)
            with suppress(ProcessLookupError):
                os.killpg(process.pid, SIGKILL)  # also what the tests have started
            if process.wait() in (0, 5):  # 5: no test has this mark
                return None
            out.seek(0)
            started = re.findall(r"^(\S+\.py(?:::[^\s\[]+)+)|^ERROR (\S+\.py)(?=\s)", out.read(), re.MULTILINE)
        name = "".join(started[-1]) if started else tests[0]
        # Many tests may take this long together. One may not.
        return name if process.returncode > 0 or [name] == list(tests) else self.failing([name])

    def caught_by(self, mutation: Mutation, tests: Sequence[str]) -> str | None:
        """Return the first test that fails twice on the change and passes without it."""
        while tests := [path for path in tests if path not in self.broken]:
            name = self.failing(tests)
            if name is None:
                return None
            if name not in self.right:
                self.restore()
                if self.failing([name], *([] if "::" in name else ["--collect-only"])) is None:
                    self.right.add(name)
                self.change(mutation)
            if name in self.right and self.failing([name]):
                return name
            self.broken.add(name)  # it fails without a change, or now and then
        return None

    def play(self, mutation: Mutation, before: str | None) -> str | None:
        """Return the test that catches a mutation: the one that did `before`, or the first in this CPU time."""
        if before is not None and (caught := self.caught_by(mutation, [before])):
            return caught
        tests, size = nearest(mutation, self.tests), 1
        end = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime + self.seconds
        while tests and resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime < end:
            if caught := self.caught_by(mutation, tests[:size]):
                return caught
            tests, size = tests[size:], 2 * size  # pytest starts seldom, and stops early
        return None

"""The learner's files in `.mini_kv/`, which git ignores: their schema, their lock, and the repair of a damaged one.

    update_state(folder, "hints", change)      read, change and write, with other runs locked out
    read_state(folder, "hints")                only look

Neither function raises an error for a damaged file. Both print one sentence about it and use the readable entries.
"""

import errno
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

VERSION = 1
"""Version of the files. A file without one was written before versions existed, and contains only the entries."""

SHAPES: dict[str, Any] = {
    "progress": {"score": int, "best": int, "points": int, "source": str, "tests": {...: str}, "when": str},
    "hints": int,
    "puzzles": int,
    "predictions": {"answer": str, "right": bool},
}
"""The shape of an entry of each file. `...` matches any key. Unlisted keys are accepted."""
LARGEST = 1_000_000
"""Upper limit of every count in these files."""
PATIENCE_S = 10
"""Seconds to wait for the lock. Other runs hold it for milliseconds."""

State = dict[str, Any]
Tell = Callable[[str], object]


def on_stderr(sentence: str) -> None:
    """Print a sentence on stderr, apart from the lines of a result."""
    print(sentence, file=sys.stderr)


def read_state(folder: Path, name: str, tell: Tell = on_stderr) -> State:
    """Return the valid entries under that name. The disk is unchanged."""
    entries, problem = _read(_file(folder, name))
    if problem:
        tell(f"{problem}; it is not changed")
    return entries


def update_state(folder: Path, name: str, change: Callable[[State], object], tell: Tell = on_stderr) -> State:
    """Apply `change` to the entries under that name, write them and return them.

    Runs that do this at the same time take turns. A damaged file is first moved to the folder `backup`, and the
    readable entries are kept. If the folder is not writable, the changed entries are still returned.
    """
    file = _file(folder, name)
    try:
        folder.mkdir(exist_ok=True)
        with locked(folder):
            entries, problem = _read(file)
            change(entries)
            if problem:
                tell(f"{problem}; it is kept as {_put_aside(folder, file)}")
            _write(file, entries)
    except OSError as error:
        tell(f"no progress can be saved: {error.filename or folder}: {error.strerror}")
        entries, _ = _read(file)
        change(entries)
    return entries


@contextmanager
def locked(folder: Path, patience_s: float = PATIENCE_S) -> Iterator[None]:
    """Hold the folder's lock. Raises `OSError` if that is not possible. Without locks in the system do nothing."""
    path = folder / "lock"
    with path.open("ab") as file:
        deadline = time.monotonic() + patience_s
        while not _take_lock(file):
            if time.monotonic() > deadline:
                raise OSError(errno.EBUSY, f"another run has held it for {patience_s} s", str(path))
            time.sleep(0.005)
        yield  # closing the file gives the lock back, and so does the end of the process


def _take_lock(file: IO[bytes]) -> bool:
    """Lock the file, or return False because another process holds it."""
    if sys.platform == "win32":
        import msvcrt

        try:
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True
    try:
        import fcntl
    except ImportError:  # a browser's Python: one process, so nothing to wait for
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # some network drives have no locks
        return True
    return True


def backup_path(folder: Path, name: str) -> Path:
    """Return a new path in the folder `backup`. Make the folder if it is missing."""
    kept = folder / "backup"
    kept.mkdir(parents=True, exist_ok=True)
    first = kept / f"{Path(name).stem}-{time.strftime('%Y%m%d-%H%M%S')}{Path(name).suffix}"
    path = first
    number = 1
    while path.exists():  # twice in one second
        number += 1
        path = first.with_stem(f"{first.stem}-{number}")
    return path


def _put_aside(folder: Path, file: Path) -> Path:
    aside = backup_path(folder, file.name)
    file.replace(aside)
    return aside


def _file(folder: Path, name: str) -> Path:
    return folder / f"{name}.json"


def _read(file: Path) -> tuple[State, str]:
    """Return the valid entries, and the error in the file, if there is one."""
    try:
        if file.exists() and not file.is_file():
            return {}, f"{file} is not a file"
        content = json.loads(file.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return {}, ""
    except OSError as error:
        return {}, f"{file} cannot be read: {error.strerror or error}"
    except (ValueError, RecursionError):
        return {}, f"{file} is damaged: it is not JSON"
    return _entries(file, content)


def _entries(file: Path, content: Any) -> tuple[State, str]:
    """Return the valid entries of a file's content, and the errors of the others."""
    if not isinstance(content, dict):
        return {}, f"{file} is damaged: it is not a JSON object"
    version = content.get("version", 0)
    if type(version) is not int or not 0 <= version <= VERSION:
        return {}, f"{file} is of version {str(version)[:20]}, and this mini_kv reads up to {VERSION}"
    entries = content.get("entries") if version else content
    if not isinstance(entries, dict):
        return {}, f"{file} is damaged: it has no entries"
    good = {key: entry for key, entry in entries.items() if _fits(entry, SHAPES[file.stem])}
    wrong = [key for key in entries if key not in good]
    return good, f"{file} is damaged: the entry {wrong[0][:40]!r} is invalid" if wrong else ""


def _fits(value: Any, shape: Any) -> bool:
    """Return whether a value from a file has the shape in `SHAPES`."""
    if shape is int:
        return type(value) is int and 0 <= value < LARGEST
    if isinstance(shape, type):
        return type(value) is shape
    if type(value) is not dict:
        return False
    if ... in shape:
        return all(_fits(each, shape[...]) for each in value.values())
    return all(key in value and _fits(value[key], its_shape) for key, its_shape in shape.items())


def _write(file: Path, entries: State) -> None:
    write_whole(file, json.dumps({"version": VERSION, "entries": entries}, indent=2, sort_keys=True) + "\n")


def write_whole(file: Path, text: str) -> None:
    """Write the text atomically. A reader sees the old or the new text, never a part."""
    new = file.with_name(f"{file.name}.{os.getpid()}.new")  # without locks, two processes must not share it
    try:
        new.write_text(text, encoding="utf-8")
        os.replace(new, file)
    finally:
        new.unlink(missing_ok=True)

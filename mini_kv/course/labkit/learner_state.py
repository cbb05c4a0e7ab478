"""The learner's files in `.mini_kv/`, which git ignores: JSON, each a dict of entries.

    update_state(folder, "hints", change)      read, change and write, with other runs locked out
    read_state(folder, "hints")                only look

Neither function raises an error for a damaged file. Both print one sentence about it.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

SHAPES: dict[str, Any] = {
    "progress": {"score": int, "best": int, "points": int, "source": str, "tests": {...: str}, "when": str},
    "hints": int,
    "puzzles": int,
    "predictions": {"answer": str, "right": bool},
}
"""The shape of an entry of each file. `...` matches any key. Unlisted keys are accepted."""
LARGEST = 1_000_000
"""Upper limit of every count in these files."""

State = dict[str, Any]
Tell = Callable[[str], object]


def on_stderr(sentence: str) -> None:
    """Print a sentence on stderr, apart from the lines of a result."""
    print(sentence, file=sys.stderr)


def read_state(folder: Path, name: str, tell: Tell = on_stderr) -> State:
    """Return the entries under that name, or none if the file is damaged. The disk is unchanged."""
    try:
        return _read(folder / f"{name}.json")
    except ValueError as error:
        tell(f"{error}; it is not changed")
        return {}


def update_state(folder: Path, name: str, change: Callable[[State], object], tell: Tell = on_stderr) -> State:
    """Apply `change` to the entries under that name, write them and return them.

    Runs that do this at the same time take turns. A damaged file is first moved to the folder `backup`. If the folder
    is not writable, the changed entries are still returned.
    """
    file = folder / f"{name}.json"
    entries: State = {}
    try:
        folder.mkdir(exist_ok=True)
        with locked(folder):
            try:
                entries = _read(file)
            except ValueError as error:
                aside = backup_path(folder, file.name)
                file.replace(aside)
                tell(f"{error}; it is kept as {aside}")
            change(entries)
            write_whole(file, json.dumps({"version": 1, "entries": entries}, indent=2, sort_keys=True) + "\n")
    except OSError as error:
        tell(f"no progress can be saved: {error.filename or folder}: {error.strerror}")
        with suppress(ValueError):
            entries = _read(file)
        change(entries)
    return entries


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the folder's lock. A system without such locks has none: the last of two runs wins."""
    with (folder / "lock").open("ab") as file:
        with suppress(ImportError, OSError):  # Windows, a browser's Python, some network drives
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX)
        yield  # closing the file gives the lock back, and so does the end of the process


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


def _read(file: Path) -> State:
    """Return the entries of a file, or none if it is missing. Raises `ValueError` if it is damaged."""
    try:
        if file.exists() and not file.is_file():
            raise ValueError(f"{file} is not a file")
        text = file.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:
        raise ValueError(f"{file} cannot be read: {error.strerror or error}") from None
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError(f"{file} is damaged: it is not JSON") from None
    entries = content.get("entries", content) if isinstance(content, dict) else None
    if not isinstance(entries, dict):
        raise ValueError(f"{file} is damaged: it has no entries")
    wrong = [key for key, entry in entries.items() if not _fits(entry, SHAPES[file.stem])]
    if wrong:
        raise ValueError(f"{file} is damaged: the entry {wrong[0][:40]!r} is invalid")
    return entries


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


def write_whole(file: Path, text: str) -> None:
    """Write the text atomically. A reader sees the old or the new text, never a part."""
    new = file.with_name(f"{file.name}.{os.getpid()}.new")  # without locks, two processes must not share it
    try:
        new.write_text(text, encoding="utf-8")
        os.replace(new, file)
    finally:
        new.unlink(missing_ok=True)

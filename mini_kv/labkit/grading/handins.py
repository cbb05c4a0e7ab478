"""What was handed in: folders, zips, git repositories, single files, and what a page has saved.

Nothing is unpacked and nothing is followed: of each hand-in one file a lab is read into memory, up to a size, and the
rest is not looked at. So no name in an archive, no link and no `conftest.py` leads anywhere.
"""

import json
import os
import re
import stat
import subprocess
import zipfile
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MAX_BYTES = 256_000
"""Of one file that is read."""
MAX_NAMES = 20_000
"""Of one hand-in that are looked at."""
PAGE_FORMAT = "mini_kv hand-in"

_FILE = re.compile(r"(?:^|/)(lab-\d\d(?:-[a-z]+)?)(?:\.py|/starter\.py)$")


class HandInError(ValueError):
    """A hand-in cannot be read; the message says why."""


@dataclass(slots=True)
class HandIn:
    """What one student handed in."""

    student: str
    code: dict[str, bytes] = field(default_factory=dict)
    """The file of each lab."""
    names: dict[str, str] = field(default_factory=dict)
    """Entry and file name of each lab, for the line that says whose code ran."""
    page: dict[str, dict[str, Any]] = field(default_factory=dict)
    """What the page has saved with it, by lab: `forecasts`, `hints`, `runs`."""
    fault: str = ""
    """Why it could not be read."""


def find_handins(place: Path, labs: Sequence[str]) -> list[HandIn]:
    """Return the hand-in of each entry of a folder, in order; a hand-in records its own fault."""
    found: dict[str, HandIn] = {}
    for entry in sorted(place.iterdir()):
        if entry.name.startswith("."):
            continue
        handin = read_handin(entry, labs)
        if handin.student in found:
            found[handin.student].fault = f"there are two entries for {handin.student}"
        found.setdefault(handin.student, handin)
    return list(found.values())


def read_handin(entry: Path, labs: Sequence[str]) -> HandIn:
    """Return what was handed in as this file or folder; a single `.py` is the one lab in `labs`."""
    handin = HandIn(entry.name if entry.is_dir() and entry.suffix != ".git" else entry.stem)
    try:
        _read(entry, handin, labs)
        handin.names = {lab: f"{entry.name}: {name}" for lab, name in handin.names.items()}
    except (OSError, ValueError, zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, zlib.error) as error:
        handin.fault = f"{entry.name} cannot be read: {error}"
    return handin


def _read(entry: Path, handin: HandIn, labs: Sequence[str]) -> None:
    if entry.is_symlink():
        raise HandInError("it is a link")
    if entry.is_dir():
        _read_git(entry, handin) if (entry / "HEAD").is_file() else _read_folder(entry, handin)
    elif entry.suffix == ".url":
        where = _read_file(entry).decode().strip().removeprefix("file://")
        _read_git(entry.parent / where, handin)
    elif entry.suffix == ".zip":
        _read_zip(entry, handin)
    elif entry.suffix == ".json":
        _take("page.json", lambda: _read_file(entry), handin)
    elif entry.suffix == ".py" and len(labs) == 1:
        handin.code[labs[0]], handin.names[labs[0]] = _read_file(entry), "the file itself"
    else:
        raise HandInError(
            "it is not a folder, a zip, a git repository or a saved page (or a .py, with one lab in --labs)"
        )


def _take(name: str, read: Callable[[], bytes], handin: HandIn) -> None:
    """Keep the file if its name says that it is a lab's, or a page's."""
    found = _FILE.search(name)
    if found:
        if found[1] in handin.code:
            raise HandInError(f"it contains {found[1]} twice")
        handin.code[found[1]], handin.names[found[1]] = read(), found[0].removeprefix("/")
    elif name.endswith(".json"):
        _take_page(read(), handin)


def _take_page(content: bytes, handin: HandIn) -> None:
    try:
        saved = json.loads(content)
        if not isinstance(saved, dict) or saved.get("format") != PAGE_FORMAT:
            return  # some other file
        labs = {lab: page for lab, page in saved["labs"].items() if re.fullmatch(r"lab-\d\d(-[a-z]+)?", lab)}
        for lab, page in labs.items():
            code = page["code"].encode()
            if len(code) > MAX_BYTES:
                raise HandInError(f"{lab} is larger than {MAX_BYTES:,} bytes")
            handin.code[lab], handin.names[lab] = code, "a saved page"
            handin.page[lab] = {name: page.get(name) for name in ("forecasts", "hints", "runs")}
    except (KeyError, AttributeError, TypeError, ValueError, RecursionError) as error:
        raise HandInError(f"not a saved page: {error}") from None


def _read_file(path: Path) -> bytes:
    """Return the content of a plain file: no link, no pipe that never ends, not too much."""
    opened = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
    with os.fdopen(opened, "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise HandInError(f"{path.name} is not a plain file")
        return _bounded(file.read(MAX_BYTES + 1), path.name)


def _bounded(content: bytes, name: str) -> bytes:
    if len(content) > MAX_BYTES:
        raise HandInError(f"{name} is larger than {MAX_BYTES:,} bytes")
    return content


def _read_folder(folder: Path, handin: HandIn) -> None:
    count = 0
    for place, folders, files in os.walk(folder, followlinks=False):
        folders[:] = sorted(name for name in folders if not name.startswith((".", "__")) and name != "node_modules")
        for name in sorted(files):
            count += 1
            if count > MAX_NAMES:
                raise HandInError(f"more than {MAX_NAMES:,} files")
            path = Path(place) / name
            if not path.is_symlink():
                _take(path.relative_to(folder).as_posix(), lambda path=path: _read_file(path), handin)  # type: ignore[misc]


def _read_zip(path: Path, handin: HandIn) -> None:
    with zipfile.ZipFile(path) as archive:
        if len(archive.infolist()) > MAX_NAMES:
            raise HandInError(f"more than {MAX_NAMES:,} names")
        for info in archive.infolist():
            if info.is_dir() or stat.S_ISLNK(info.external_attr >> 16):
                continue

            def read(info: zipfile.ZipInfo = info) -> bytes:
                with archive.open(info) as member:  # whatever size it claims, no more is unpacked
                    return _bounded(member.read(MAX_BYTES + 1), info.filename)

            _take(info.filename, read, handin)


def _read_git(repository: Path, handin: HandIn) -> None:
    """Read the files of HEAD. The commands run no hook and no program that the repository names."""
    names = _git(repository, "ls-tree", "-r", "-z", "--full-tree", "HEAD").split(b"\0")
    for entry in names[:MAX_NAMES]:
        mode, _, rest = entry.decode(errors="replace").partition(" ")
        if mode in ("100644", "100755"):
            blob, _, name = rest.partition(" ")[2].partition("\t")
            _take(name, lambda blob=blob, name=name: _blob(repository, blob, name), handin)  # type: ignore[misc]


def _blob(repository: Path, blob: str, name: str) -> bytes:
    if int(_git(repository, "cat-file", "-s", blob)) > MAX_BYTES:
        raise HandInError(f"{name} is larger than {MAX_BYTES:,} bytes")
    return _git(repository, "cat-file", "blob", blob)


def _git(repository: Path, *words: str) -> bytes:
    where = repository / ".git" if (repository / ".git").is_dir() else repository
    quiet = {"PATH": os.environ.get("PATH", ""), "GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": os.devnull}
    command = ["git", f"--git-dir={where}", "-c", "core.fsmonitor=", "-c", "protocol.allow=never", *words]
    done = subprocess.run(command, capture_output=True, env=quiet, check=False, timeout=60)
    if done.returncode:
        raise HandInError(f"git says: {done.stderr.decode(errors='replace').strip()[:200]}")
    return done.stdout

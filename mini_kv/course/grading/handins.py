"""Hand-ins: folders, zips, git repositories, single files, and a page's saved answers.

No archive is unpacked and no link is followed. One file per lab is read into memory, up to a maximum size. All other
files of a hand-in are ignored. So names in an archive, links and a `conftest.py` have no effect.
"""

import csv
import json
import os
import re
import stat
import subprocess
import tempfile
import threading
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MAX_BYTES = 256_000
"""The most bytes of one file."""
MAX_NAMES = 20_000
"""The most files of one hand-in."""
MAX_PAGES = 200
"""The most files of one hand-in that could be a saved page."""
MAX_LISTED = 16_000_000
"""Bytes that git may write: a small repository can list files without end."""
GIT_SECONDS = 60
"""Seconds for one answer of git."""
_PAGE_FORMAT = "mini_kv hand-in"

_LAB = r"lab-[0-9]{2}(?:-[a-z]+)?"
_FILE = re.compile(rf"(?:^|/)({_LAB})(?:\.py|/starter\.py)$")


class HandInError(ValueError):
    """A hand-in cannot be read. The message is the reason."""


@dataclass(slots=True)
class HandIn:
    """The hand-in of one student."""

    student: str
    code: dict[str, bytes] = field(default_factory=dict)
    """The file of each lab."""
    names: dict[str, str] = field(default_factory=dict)
    """Entry and file name of each lab, for the line about the code that ran."""
    page: dict[str, dict[str, Any]] = field(default_factory=dict)
    """The page's saved data, by lab: `forecasts`, `hints`, `runs`."""
    fault: str = ""
    """The reason why it could not be read."""
    pages: int = 0
    """Files read so far that could be a saved page."""


def read_roster(file: Path) -> dict[str, str]:
    """Return the path of each student's repository, from a CSV with a student and a path per line.

    Raises `ValueError` at a line that is not of this kind.
    """
    roster: dict[str, str] = {}
    for number, row in enumerate(csv.reader(file.read_text(encoding="utf-8-sig").splitlines()), start=1):
        cells = [cell.strip() for cell in row]
        if len(cells) != 2 or not all(cells) or cells[0] in roster:
            raise ValueError(f"{file}, line {number}: write a student and the path of a repository, each student once")
        roster[cells[0]] = cells[1]
    return roster


def find_handins(place: Path, labs: Sequence[str], roster: Mapping[str, str] | None = None) -> list[HandIn]:
    """Return the hand-in of each entry of a folder, in order. A hand-in records its own error.

    Args:
        place: the folder.
        labs: the labs to be graded.
        roster: the path of each student's repository. A `.url` file counts only if it has this path.
    """
    found: dict[str, HandIn] = {}
    for entry in sorted(place.iterdir()):
        if entry.name.startswith("."):
            continue
        handin = read_handin(entry, labs, roster or {})
        if handin.student in found:
            found[handin.student].fault = f"there are two entries for {handin.student}"
        found.setdefault(handin.student, handin)
    return list(found.values())


def read_handin(entry: Path, labs: Sequence[str], roster: Mapping[str, str]) -> HandIn:
    """Return the hand-in in this file or folder. A single `.py` is the only lab in `labs`."""
    handin = HandIn(printable(entry.name if entry.is_dir() and entry.suffix != ".git" else entry.stem))
    try:
        _read(entry, handin, labs, roster)
        if not handin.code:
            raise HandInError("it has no lab's file, such as lab-05.py or lab-05/starter.py")
        handin.names = {lab: printable(f"{entry.name}: {name}") for lab, name in handin.names.items()}
    except Exception as error:  # a file can be broken in more ways than its reader names, and others are waiting
        handin.fault = printable(" ".join(f"{entry.name} cannot be read: {error or type(error).__name__}".split()))
    return handin


def printable(text: str) -> str:
    r"""Return a text that terminals, pages and files in UTF-8 can show: line ends, escapes and the like spelled out.

    >>> printable("\x1b[2JAda")
    '\\x1b[2JAda'
    """
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _read(entry: Path, handin: HandIn, labs: Sequence[str], roster: Mapping[str, str]) -> None:
    if entry.is_symlink():
        raise HandInError("it is a link")
    if entry.is_dir():
        _read_git(entry, handin) if (entry / "HEAD").is_file() else _read_folder(entry, handin)
    elif entry.suffix == ".url":
        where = _read_file(entry).decode().strip().removeprefix("file://")
        if roster.get(handin.student) != where:  # a student can write such a file, too
            raise HandInError(f"it points to {where[:200]}, and no --roster gives this path for {handin.student}")
        _read_git(entry.parent / where, handin)
    elif entry.suffix == ".zip":
        _read_zip(entry, handin)
    elif entry.suffix == ".json":
        _take("page.json", lambda: _read_file(entry), handin)
    elif entry.suffix == ".py" and len(labs) == 1:
        handin.code[labs[0]], handin.names[labs[0]] = _read_file(entry), "the file itself"
    else:
        raise HandInError(
            "it is not a folder, a zip, a git repository or a saved page (or a .py, with one lab in --lab)"
        )


def _take(name: str, read: Callable[[], bytes], handin: HandIn) -> None:
    """Keep the file if its name is that of a lab's file or a saved page."""
    found = _FILE.search(name)
    if found:
        if found[1] in handin.code:
            raise HandInError(f"it contains {found[1]} twice")
        handin.code[found[1]], handin.names[found[1]] = read(), found[0].removeprefix("/")
    elif name.endswith(".json"):
        handin.pages += 1
        if handin.pages > MAX_PAGES:
            raise HandInError(f"more than {MAX_PAGES} files that could be a saved page")
        _take_page(read(), handin)


def _take_page(content: bytes, handin: HandIn) -> None:
    try:
        saved = json.loads(content)
        if not isinstance(saved, dict) or saved.get("format") != _PAGE_FORMAT:
            return  # some other file
        labs = {lab: page for lab, page in saved["labs"].items() if re.fullmatch(_LAB, lab)}
        for lab, page in labs.items():
            code = page["code"].encode()
            if lab in handin.code:
                raise HandInError(f"it contains {lab} twice")
            if len(code) > MAX_BYTES:
                raise HandInError(f"{lab} is larger than {MAX_BYTES:,} bytes")
            handin.code[lab], handin.names[lab] = code, "a saved page"
            handin.page[lab] = {name: page.get(name) for name in ("forecasts", "hints", "runs")}
    except HandInError:
        raise
    except (KeyError, AttributeError, TypeError, ValueError, RecursionError) as error:
        raise HandInError(f"not a saved page: {error}") from None


def _read_file(path: Path) -> bytes:
    """Return the content of a plain file of at most `MAX_BYTES`. Links, pipes and devices are refused."""
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
    if not path.is_file():  # a pipe would be read without end
        raise HandInError(f"{path.name} is not a plain file")
    with zipfile.ZipFile(path) as archive:
        if len(archive.infolist()) > MAX_NAMES:
            raise HandInError(f"more than {MAX_NAMES:,} names")
        for info in archive.infolist():
            if info.is_dir() or stat.S_ISLNK(info.external_attr >> 16):
                continue
            if info.compress_type not in (
                zipfile.ZIP_STORED,
                zipfile.ZIP_DEFLATED,
            ):  # the others unpack without a limit
                raise HandInError("it is packed in an unusual way: pack it as an ordinary zip")

            def read(info: zipfile.ZipInfo = info) -> bytes:
                with archive.open(info) as member:  # whatever size it claims, no more is unpacked
                    return _bounded(member.read(MAX_BYTES + 1), info.filename)

            _take(info.filename, read, handin)


def _read_git(repository: Path, handin: HandIn) -> None:
    """Read the files of HEAD. The git commands run no hooks and no programs that the repository names."""
    where = repository / ".git" if (repository / ".git").is_dir() else repository
    if _borrows(where):
        raise HandInError("it uses objects of another repository")
    names = _git(where, "ls-tree", "-r", "-z", "--full-tree", "HEAD").split(b"\0")
    for entry in names[:MAX_NAMES]:
        mode, _, rest = entry.decode(errors="replace").partition(" ")
        if mode in ("100644", "100755"):
            blob, _, name = rest.partition(" ")[2].partition("\t")
            _take(name, lambda blob=blob, name=name: _blob(where, blob, name), handin)  # type: ignore[misc]


def _borrows(where: Path) -> bool:
    """Return whether a repository uses files outside its folder."""
    names = [where / "commondir", where / "objects" / "info" / "alternates"]
    return any(path.exists() for path in names) or any(path.is_symlink() for path in (where, *where.rglob("*")))


def _blob(where: Path, blob: str, name: str) -> bytes:
    if int(_git(where, "cat-file", "-s", blob)) > MAX_BYTES:
        raise HandInError(f"{name} is larger than {MAX_BYTES:,} bytes")
    return _git(where, "cat-file", "blob", blob)


def _git(where: Path, *words: str) -> bytes:
    """Return git's output for the repository in this folder. Its `config` cannot allow or start anything."""
    quiet = {
        "PATH": os.environ.get("PATH", ""),
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_ALLOW_PROTOCOL": "none",  # an object that is missing would be fetched, by a program that `config` names
        "GIT_NO_LAZY_FETCH": "1",
    }
    command = ["git", f"--git-dir={where}", "-c", "core.fsmonitor=", *words]
    with (
        tempfile.TemporaryFile() as errors,
        subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, env=quiet) as git,
    ):
        clock = threading.Timer(GIT_SECONDS, git.kill)
        clock.start()
        said = git.stdout.read(MAX_LISTED + 1) if git.stdout is not None else b""
        if len(said) > MAX_LISTED:
            git.kill()
        git.wait()
        clock.cancel()
        errors.seek(0)
        told = errors.read(200).decode(errors="replace").strip()
    if git.returncode:
        raise HandInError(f"git printed: {told or 'nothing; it was stopped'}")
    return said

"""The tier on a disk: one file per block, and an index in sqlite of the files and their last uses.

    DIR/mini_kv-tier.lock       marks the folder as a tier; its owner holds a lock on it
    DIR/index.sqlite3           key, bytes, a number that grows with each use
    DIR/ab/abcdef....kv         the envelope of one block, written to another name and then moved atomically

A crash does no harm. A file without a row, or a row without its file, is deleted when the tier
is opened. An index that cannot be read is set aside, and a new one is started. A file with wrong bytes does not open
(`sealed`). There is no fsync: a lost block is computed again.

The tier changes only its own files. It accepts an empty folder or one with its lock, and in it only uses
files with its kind of names.
"""

import contextlib
import errno
import os
import re
import sqlite3
from collections import Counter, OrderedDict
from collections.abc import Iterator
from pathlib import Path

from mini_kv.core.errors import ConfigError

_SUFFIX = ".kv"
_UNFINISHED = ".new"
_LOCK = "mini_kv-tier.lock"
_INDEX = "index.sqlite3"
_BESIDE_THE_INDEX = ("-journal", "-wal", "-shm")
"""Files that sqlite may leave next to an index. A new index must not be read together with an old one's files."""
_DAMAGED = ".damaged"
_TABLE = "CREATE TABLE blocks (key BLOB PRIMARY KEY, size INTEGER, used INTEGER)"
_LARGEST_USE = 1 << 62
_OUR_FOLDER = re.compile("[0-9a-f]{2}")
_OUR_NAME = re.compile(rf"([0-9a-f]{{2}}){{32,}}({re.escape(_SUFFIX)}|{re.escape(_UNFINISHED)})")
"""Names of our files. A key contains a digest of at least 32 bytes."""


class DiskTier:
    """Envelopes by key, up to a number of bytes, in a folder that nothing else uses. For one thread of one process.

    Once it is open, an error of the disk is not raised. It is a miss, and counted in `failures`.
    """

    def __init__(self, folder: str | Path, capacity_bytes: int) -> None:
        """Open the folder, or make it. Delete rows and files that do not match.

        Raises `ConfigError` if another process has it open, if it contains other files, if it cannot be read and
        written, or if the capacity is too small.
        """
        if capacity_bytes < 1:
            raise ConfigError(f"capacity_bytes is {capacity_bytes}, it must be at least 1")
        self.folder = Path(folder)
        self.capacity_bytes = capacity_bytes
        self.num_bytes = 0
        self.failures: Counter[str] = Counter()
        """Number of errors by class name. "damaged index" counts the indexes that were set aside."""
        self._sizes: OrderedDict[bytes, int] = OrderedDict()
        """Bytes of each file by key, the least recently used first: the copy of the index in memory."""
        self._num_uses = 0
        try:
            with contextlib.ExitStack() as opened:
                self._lock = _lock(self.folder)
                opened.callback(self._lock.close)
                self._index = self._open_index()
                opened.callback(self._index.close)
                self._reconcile()
                opened.pop_all()  # it is open, and stays so
        except (OSError, sqlite3.Error) as error:
            raise ConfigError(f"{folder} cannot hold a cache: {getattr(error, 'strerror', None) or error}") from None

    def __len__(self) -> int:
        return len(self._sizes)

    def __contains__(self, key: bytes) -> bool:
        return key in self._sizes

    def in_order(self) -> list[bytes]:
        """Return all keys in the order of eviction."""
        return list(self._sizes)

    def load(self, key: bytes) -> bytes | None:
        """Return the envelope, or `None` if it is not here. This counts as a use. The envelope may be damaged."""
        size = self._sizes.get(key)
        if size is None:
            return None
        try:
            with self._path(key).open("rb") as file:
                envelope = file.read(size + 1)  # a file that has grown does not open, and is not read to its end
        except OSError as error:
            self._note_failure(error)
            self.discard(key)
            return None
        self._note_use(key)
        return envelope

    def store(self, key: bytes, envelope: bytes) -> bool:
        """Evict the least recently used entries, then write this one. Return whether it is here now.

        It also evicts when the disk is full before `capacity_bytes` are used.
        """
        if key in self._sizes:
            self._note_use(key)
            return True
        if len(envelope) > self.capacity_bytes:
            return False
        while self.num_bytes + len(envelope) > self.capacity_bytes:
            self.discard(next(iter(self._sizes)))
        while True:
            try:
                self._write(key, envelope)
                return True
            except (OSError, sqlite3.Error) as error:
                self._note_failure(error)
                self._delete(key)
                if not (_is_full(error) and self._sizes):
                    return False
            self.discard(next(iter(self._sizes)))

    def discard(self, key: bytes) -> None:
        """Remove an entry and delete its file, if it is here."""
        size = self._sizes.pop(key, None)
        if size is not None:
            self.num_bytes -= size
            self._delete(key)

    def clear(self) -> None:
        """Remove all entries and delete their files."""
        for key in self.in_order():
            self.discard(key)

    def close(self) -> None:
        """Release the folder. Its files are kept for the next engine."""
        self._index.close()
        self._lock.close()

    def _path(self, key: bytes) -> Path:
        name = key.hex()
        return self.folder / name[:2] / f"{name}{_SUFFIX}"

    def _write(self, key: bytes, envelope: bytes) -> None:
        path = self._path(key)
        beside = path.with_suffix(_UNFINISHED)
        path.parent.mkdir(exist_ok=True)
        if path.parent.is_symlink():
            raise NotADirectoryError(errno.ENOTDIR, "leads out of the tier's folder", str(path.parent))
        beside.write_bytes(envelope)
        os.replace(beside, path)
        self._index.execute("INSERT OR REPLACE INTO blocks VALUES (?, ?, ?)", (key, len(envelope), self._next_use()))
        self._sizes[key] = len(envelope)
        self.num_bytes += len(envelope)

    def _delete(self, key: bytes) -> None:
        """Delete an entry's row and files as far as possible. Opening the tier deletes the remainder."""
        try:
            self._index.execute("DELETE FROM blocks WHERE key = ?", (key,))
        except sqlite3.Error as error:
            self._note_failure(error)
        path = self._path(key)
        for each in (path, path.with_suffix(_UNFINISHED)):
            if not path.parent.is_symlink():
                with contextlib.suppress(OSError):
                    each.unlink(missing_ok=True)

    def _note_use(self, key: bytes) -> None:
        self._sizes.move_to_end(key)
        try:
            self._index.execute("UPDATE blocks SET used = ? WHERE key = ?", (self._next_use(), key))
        except sqlite3.Error as error:
            self._note_failure(error)

    def _next_use(self) -> int:
        self._num_uses += 1
        return self._num_uses

    def _note_failure(self, error: Exception) -> None:
        self.failures[type(error).__name__] += 1

    def _open_index(self) -> sqlite3.Connection:
        """Return the index. An index that cannot be read is set aside, and a new one is started."""
        path = self.folder / _INDEX
        if os.path.lexists(path):
            try:
                return _opened(path, is_new=False)
            except Exception:  # sqlite may raise anything over damaged bytes, UnicodeDecodeError for instance
                self.failures["damaged index"] += 1
            for name in (_INDEX, *(_INDEX + suffix for suffix in _BESIDE_THE_INDEX)):
                with contextlib.suppress(FileNotFoundError):
                    os.replace(self.folder / name, self.folder / (name + _DAMAGED))
        return _opened(path, is_new=True)

    def _reconcile(self) -> None:
        """Keep the entries with a row and a file of the right length. Delete all others. Costs O(files)."""
        files = {path.name: (path, size) for path, size in _our_files(self.folder)}
        rows = self._index.execute("SELECT key, size, used FROM blocks ORDER BY used").fetchall()
        self._num_uses = rows[-1][2] if rows else 0
        for key, size, _ in rows:
            name = f"{key.hex()}{_SUFFIX}"
            if name in files and files[name][1] == size:
                del files[name]
                self._sizes[key] = size
                self.num_bytes += size
            else:
                self._index.execute("DELETE FROM blocks WHERE key = ?", (key,))
        for path, _ in files.values():
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
        while self.num_bytes > self.capacity_bytes:
            self.discard(next(iter(self._sizes)))


def _lock(folder: Path) -> sqlite3.Connection:
    """Return a lock on the folder. Make the folder if it is missing.

    The lock is that of an empty database: it has no bytes that could be damaged, and works on every system.
    Raises `ConfigError` if another process has it, or if the folder holds files and is not a tier.
    """
    folder.mkdir(parents=True, exist_ok=True)
    names = os.listdir(folder)
    if names and _LOCK not in names:
        raise ConfigError(
            f"{folder} cannot hold a cache: it holds {sorted(names)[0]!r} and no {_LOCK}, so it is not a tier;"
            " give an empty folder"
        )
    lock = _connect(folder / _LOCK)
    try:
        lock.execute("BEGIN EXCLUSIVE")
    except sqlite3.Error as error:
        lock.close()
        if isinstance(error, sqlite3.OperationalError):
            raise ConfigError(f"{folder} cannot hold a cache: {error} (does another process use it?)") from None
        raise ConfigError(f"{folder} cannot hold a cache: its {_LOCK} is not empty; delete that file") from None
    return lock


def _connect(path: Path) -> sqlite3.Connection:
    """Return a connection that does not wait for locks."""
    return sqlite3.connect(path, isolation_level=None, timeout=0.0, check_same_thread=False)


def _opened(path: Path, is_new: bool) -> sqlite3.Connection:
    """Return the index at a path. Raises unless it is undamaged, is ours, and can be written to."""
    if path.is_symlink():
        raise sqlite3.DatabaseError("a link leads out of the tier's folder")
    index = _connect(path)
    try:
        index.execute("PRAGMA locking_mode = EXCLUSIVE")
        index.execute("PRAGMA journal_mode = MEMORY")
        index.execute("PRAGMA synchronous = OFF")
        index.execute("BEGIN EXCLUSIVE")
        if is_new:
            index.execute(_TABLE)
        index.execute("PRAGMA user_version = 1")  # a write: an index may be whole and read-only
        _check(index)
        index.execute("COMMIT")
    except BaseException:
        index.close()
        raise
    return index


def _check(index: sqlite3.Connection) -> None:
    """Raise unless the index is undamaged and ours."""
    wrong = (
        "typeof(key) != 'blob' OR typeof(size) != 'integer' OR typeof(used) != 'integer'"
        f" OR used NOT BETWEEN 0 AND {_LARGEST_USE}"
    )
    found = [
        index.execute("PRAGMA integrity_check").fetchall(),
        index.execute("SELECT sql FROM sqlite_schema WHERE sql IS NOT NULL").fetchall(),
        index.execute(f"SELECT count(*) FROM blocks WHERE {wrong}").fetchall(),
    ]
    if found != [[("ok",)], [(_TABLE,)], [(0,)]]:
        raise sqlite3.DatabaseError(f"not an index: {found}")


def _our_files(folder: Path) -> Iterator[tuple[Path, int]]:
    """Yield the files that a tier has written, and their sizes. Links are not followed."""
    for path in folder.iterdir():
        if not (_OUR_FOLDER.fullmatch(path.name) and path.is_dir() and not path.is_symlink()):
            continue
        with contextlib.suppress(OSError), os.scandir(path) as entries:  # what cannot be read is not ours
            for entry in entries:
                is_ours = _OUR_NAME.fullmatch(entry.name) and entry.name.startswith(path.name)
                if is_ours and entry.is_file(follow_symlinks=False):
                    yield Path(entry.path), entry.stat(follow_symlinks=False).st_size


def _is_full(error: Exception) -> bool:
    """Return whether an error means that the disk or this user's quota is full."""
    if isinstance(error, OSError):
        return error.errno in (errno.ENOSPC, errno.EDQUOT)
    return getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL

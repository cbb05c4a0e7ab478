"""The tier on a disk: one file per block, and an index in sqlite of which there are and when each was used.

    DIR/index.sqlite3           key, bytes, a number that grows with each use
    DIR/ab/abcdef....kv         the envelope of one block, written beside and moved to its place in one go

Whatever a crash leaves behind is harmless. A file without a row, or a row without its file, is dropped when the tier
is opened; an index that cannot be read is begun anew; a file of wrong bytes does not open (`sealed`). Nothing is waited
for (no fsync): a block that is lost is computed again.
"""

import contextlib
import os
import sqlite3
from collections import OrderedDict
from pathlib import Path

from mini_kv.core.errors import ConfigError

_SUFFIX = ".kv"
_INDEX = "index.sqlite3"


class DiskTier:
    """Envelopes by key, up to a number of bytes, in a folder of its own. For one thread, of one process."""

    def __init__(self, folder: Path, capacity_bytes: int) -> None:
        """Open the folder, or make it; drop what does not fit together.

        Raises `ConfigError` if another process has it open, if it is no such folder, or if there is room for nothing.
        """
        if capacity_bytes < 1:
            raise ConfigError(f"capacity_bytes is {capacity_bytes}, it must be at least 1")
        self.folder = folder
        self.capacity_bytes = capacity_bytes
        self.num_bytes = 0
        self._sizes: OrderedDict[bytes, int] = OrderedDict()
        """Bytes of each file by key, the least recently used first: the index, as it is in memory."""
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._index = _open_index(folder / _INDEX)
        except OSError as error:
            raise ConfigError(f"{folder} cannot hold a cache: {error.strerror}") from None
        self._reconcile()

    def __len__(self) -> int:
        return len(self._sizes)

    def __contains__(self, key: bytes) -> bool:
        return key in self._sizes

    def in_order(self) -> list[bytes]:
        """Return all keys, the next to leave first."""
        return list(self._sizes)

    def load(self, key: bytes) -> bytes | None:
        """Return the envelope, which counts as a use of it; `None` if it is not here. It may be damaged."""
        if key not in self._sizes:
            return None
        try:
            envelope = self._path(key).read_bytes()
        except OSError:
            self.discard(key)
            return None
        self._note_use(key)
        return envelope

    def store(self, key: bytes, envelope: bytes) -> bool:
        """Write an entry, after dropping the least recently used for it; return whether it is here now."""
        if key in self._sizes:
            self._note_use(key)
            return True
        if len(envelope) > self.capacity_bytes:
            return False
        while self.num_bytes + len(envelope) > self.capacity_bytes:
            self.discard(next(iter(self._sizes)))
        path = self._path(key)
        beside = path.with_suffix(".new")
        try:
            path.parent.mkdir(exist_ok=True)
            beside.write_bytes(envelope)
            os.replace(beside, path)
        except OSError:  # the disk is full, or gone
            with contextlib.suppress(OSError):
                beside.unlink(missing_ok=True)
            return False
        self._index.execute("INSERT OR REPLACE INTO blocks VALUES (?, ?, ?)", (key, len(envelope), self._next_use()))
        self._sizes[key] = len(envelope)
        self.num_bytes += len(envelope)
        return True

    def discard(self, key: bytes) -> None:
        """Forget an entry and delete its file, if it is here."""
        size = self._sizes.pop(key, None)
        if size is not None:
            self.num_bytes -= size
            self._index.execute("DELETE FROM blocks WHERE key = ?", (key,))
            with contextlib.suppress(OSError):
                self._path(key).unlink(missing_ok=True)

    def close(self) -> None:
        """Let go of the folder; its files stay, for the next engine."""
        self._index.close()

    def _path(self, key: bytes) -> Path:
        name = key.hex()
        return self.folder / name[:2] / f"{name}{_SUFFIX}"

    def _note_use(self, key: bytes) -> None:
        self._sizes.move_to_end(key)
        self._index.execute("UPDATE blocks SET used = ? WHERE key = ?", (self._next_use(), key))

    def _next_use(self) -> int:
        self._num_uses += 1
        return self._num_uses

    def _reconcile(self) -> None:
        """Make rows and files agree: keep what has both, of the right length; delete the rest. Costs O(files)."""
        files = {path.stem: path for path in self.folder.glob(f"??/*{_SUFFIX}")}
        rows = self._index.execute("SELECT key, size, used FROM blocks ORDER BY used").fetchall()
        self._num_uses = rows[-1][2] if rows else 0
        for key, size, _ in rows:
            path = files.get(key.hex())
            if path is not None and path.stat().st_size == size:
                del files[key.hex()]
                self._sizes[key] = size
                self.num_bytes += size
            else:
                self._index.execute("DELETE FROM blocks WHERE key = ?", (key,))
        for path in (*files.values(), *self.folder.glob("??/*.new")):
            path.unlink(missing_ok=True)
        while self.num_bytes > self.capacity_bytes:
            self.discard(next(iter(self._sizes)))


def _open_index(path: Path) -> sqlite3.Connection:
    """Return the index, made anew if it is damaged. Raises `ConfigError` if another process has it."""
    for attempt in range(2):
        index = sqlite3.connect(path, isolation_level=None, timeout=0.0, check_same_thread=False)
        try:
            index.execute("PRAGMA locking_mode = EXCLUSIVE")
            index.execute("PRAGMA journal_mode = MEMORY")
            index.execute("PRAGMA synchronous = OFF")
            index.execute("BEGIN EXCLUSIVE")
            index.execute("CREATE TABLE IF NOT EXISTS blocks (key BLOB PRIMARY KEY, size INTEGER, used INTEGER)")
            index.execute("COMMIT")
            if index.execute("PRAGMA integrity_check").fetchone() == ("ok",) and _has_our_columns(index):
                return index
        except sqlite3.OperationalError as error:
            index.close()
            if "locked" in str(error) or attempt:
                raise ConfigError(
                    f"{path.parent} cannot hold a cache: {error} (does another process use it?)"
                ) from None
        except sqlite3.DatabaseError:  # no database, or a torn one
            pass
        index.close()
        path.unlink(missing_ok=True)
    raise ConfigError(f"{path.parent} cannot hold a cache: its index cannot be made")


def _has_our_columns(index: sqlite3.Connection) -> bool:
    """Return whether every row is a key, a size and a use: a row of anything else is damage."""
    wrong = "typeof(key) != 'blob' OR typeof(size) != 'integer' OR typeof(used) != 'integer'"
    return bool(index.execute(f"SELECT count(*) FROM blocks WHERE {wrong}").fetchone() == (0,))

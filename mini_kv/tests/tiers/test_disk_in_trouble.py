"""The tier on a disk among somebody else's files, over damaged indexes, and on disks that are full or fail."""

import errno
import os
import random
import sqlite3
from pathlib import Path

import pytest

from mini_kv.core.errors import ConfigError
from mini_kv.tests.tiers.test_disk import ENVELOPES, KEYS, SIZE, opens
from mini_kv.tests.tree import drawn
from mini_kv.tiers.disk import DiskTier

LOCK = "mini_kv-tier.lock"


def name_of(number: int) -> str:
    """Return where a block's file is, below the folder."""
    name = KEYS[number].hex()
    return f"{name[:2]}/{name}.kv"


def contents(folder: Path) -> dict[str, bytes | str]:
    """Return what is in a folder but for an index: the bytes of each file, and where each link leads."""
    return {
        str(path.relative_to(folder)): os.readlink(path) if path.is_symlink() else path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_symlink() or (path.is_file() and path.name != "index.sqlite3")
    }


@pytest.mark.parametrize("name", ["index.sqlite3", "notes.kv", "ab/notes.kv", name_of(0)])
def test_a_folder_with_files_of_another_program_is_refused_and_left_alone(name: str, tmp_path: Path) -> None:
    """Even if a file is called as ours are: only a folder that was empty once becomes a tier."""
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    if name == "index.sqlite3":
        with sqlite3.connect(path) as connection:
            connection.execute("CREATE TABLE photos (name TEXT)")
        connection.close()
    else:
        path.write_bytes(b"of another program")
    before = contents(tmp_path), path.read_bytes()
    with pytest.raises(ConfigError, match=r"it holds '[a-z0-9.]+' and no mini_kv-tier.lock, .* give an empty folder"):
        DiskTier(tmp_path, SIZE)
    assert (contents(tmp_path), path.read_bytes()) == before


def test_foreign_files_in_a_tiers_folder_stay(tmp_path: Path) -> None:
    """Files with other names, a folder or a link with the name of a block, links that lead elsewhere or nowhere."""
    folder, elsewhere = tmp_path / "tier", tmp_path / "elsewhere"
    DiskTier(folder, SIZE).close()
    elsewhere.mkdir()
    (elsewhere / Path(name_of(1)).name).write_bytes(b"not in the tier's folder")
    (folder / "ab").mkdir()
    (folder / "ab" / "notes.kv").write_bytes(b"notes")
    (folder / "ab" / "abcd.kv").write_bytes(b"hexadecimal, and no key")
    (folder / "ab" / "notes.new").write_bytes(b"new notes")
    (folder / name_of(0)).mkdir(parents=True)
    (folder / name_of(1)[:2]).symlink_to(elsewhere)
    (folder / name_of(2)[:2]).mkdir()
    (folder / name_of(2)).symlink_to(tmp_path / "nowhere")
    before = contents(tmp_path)
    disk = DiskTier(folder, SIZE)
    assert len(disk) == 0
    assert not disk.store(KEYS[0], ENVELOPES[0])  # a folder is in its place
    assert not disk.store(KEYS[1], ENVELOPES[1])  # it would be written outside
    assert disk.failures == {"IsADirectoryError": 1, "NotADirectoryError": 1}
    disk.close()
    assert contents(tmp_path) == before


def test_a_folder_that_cannot_be_used_is_a_plain_error(tmp_path: Path) -> None:
    """A link that leads nowhere; a folder that nobody may read (the system's administrator may); a lock with bytes."""
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match="link cannot hold a cache: "):
        DiskTier(tmp_path / "link", SIZE)
    closed = tmp_path / "closed"
    closed.mkdir(mode=0)
    if not os.access(closed, os.R_OK):
        with pytest.raises(ConfigError, match="closed cannot hold a cache: "):
            DiskTier(closed, SIZE)
    DiskTier(tmp_path / "tier", SIZE).close()
    (tmp_path / "tier" / LOCK).write_bytes(b"not an empty database, nor one at all" * 100)
    with pytest.raises(ConfigError, match=f"its {LOCK} is not empty; delete that file"):
        DiskTier(tmp_path / "tier", SIZE)


class Images:
    """A tier's folder with three blocks, whose index is replaced again and again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        disk = DiskTier(folder, 3 * SIZE)
        for number in range(3):
            disk.store(KEYS[number], ENVELOPES[number])
        disk.close()
        (folder / "notes.txt").write_text("of another program")
        self.right = (folder / "index.sqlite3").read_bytes()

    def try_one(self, image: bytes) -> bool:
        """Open the tier over an index; return whether the index was set aside. Raises if anything is wrong."""
        index, aside = self.folder / "index.sqlite3", self.folder / "index.sqlite3.damaged"
        for number in range(3):
            (self.folder / name_of(number)).write_bytes(ENVELOPES[number])
        aside.unlink(missing_ok=True)
        index.write_bytes(image)
        disk = DiskTier(self.folder, 3 * SIZE)
        is_aside = disk.failures == {"damaged index": 1}
        assert disk.failures == {} or is_aside
        assert not is_aside or (len(disk) == 0 and aside.read_bytes() == image)
        assert len(disk) == sum(opens(disk, number) is True for number in range(3))
        for number in (3, 0):
            assert disk.store(KEYS[number], ENVELOPES[number]) and opens(disk, number)
        assert is_aside == bool(disk.failures)
        disk.close()
        again = DiskTier(self.folder, 3 * SIZE)
        assert (again.failures, opens(again, 3), opens(again, 0)) == ({}, True, True)
        again.close()
        return is_aside

    def damaged(self, rng: random.Random) -> bytes:
        """Return the right index with one byte changed, several, a part gone or a part of zeros."""
        image = bytearray(self.right)
        match rng.randrange(6):
            case 0:
                image[rng.randrange(100)] = rng.randrange(256)  # the head
            case 1 | 2:
                image[rng.randrange(len(image))] = rng.randrange(256)
            case 3:
                for _ in range(rng.randrange(2, 50)):
                    image[rng.randrange(len(image))] ^= 1 << rng.randrange(8)
            case 4:
                del image[rng.randrange(len(image)) :]
            case 5:
                start = rng.randrange(len(image))
                end = min(start + rng.randrange(1, 5000), len(image))
                image[start:end] = bytes(end - start)
        return bytes(image)


MANY = 10_000 if os.environ.get("MINI_KV_LONG") else 1500
SEED = drawn("damaged images of the index", 1_000_000)


@pytest.mark.parametrize(
    ("num_images", "seed"), [pytest.param(60, 0, id="few"), pytest.param(MANY, SEED, id="many", marks=pytest.mark.slow)]
)
def test_damaged_images_of_the_index(num_images: int, seed: int, tmp_path: Path) -> None:
    """Each is either of no consequence or set aside; the tier then works, and the one after it finds what it kept.

    Which of the many are tried follows from the last commit's tree.
    """
    images, rng = Images(tmp_path / "tier"), random.Random(seed)
    assert not images.try_one(images.right)
    num_aside = sum(images.try_one(images.damaged(rng)) for _ in range(num_images))
    assert num_images // 4 < num_aside < num_images, f"seed {seed}"
    assert (tmp_path / "tier" / "notes.txt").read_text() == "of another program"


@pytest.mark.parametrize("at", [18, 19, 28, 40, 56, 100, 4000, 4090])
def test_bytes_of_the_index_that_once_ended_in_a_traceback(at: int, tmp_path: Path) -> None:
    """The version of the format ("locked", "readonly"), the encoding, and the words that make the table (no UTF-8)."""
    images = Images(tmp_path / "tier")
    for value in (2, 0xB4, 0xFF):
        images.try_one(images.right[:at] + bytes([value]) + images.right[at + 1 :])


def test_uses_that_cannot_be_counted_on(tmp_path: Path) -> None:
    """A row of the right shape whose number is the last one that sqlite can keep."""
    images = Images(tmp_path / "tier")
    with sqlite3.connect(tmp_path / "tier" / "index.sqlite3") as connection:
        connection.execute("UPDATE blocks SET used = ? WHERE key = ?", (2**63 - 1, KEYS[1]))
    connection.close()
    assert images.try_one((tmp_path / "tier" / "index.sqlite3").read_bytes())


class FullDisk(DiskTier):
    """A disk on which only two files have room."""

    def _write(self, key: bytes, envelope: bytes) -> None:
        if len(self) == 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        super()._write(key, envelope)


def test_a_full_disk_makes_room_as_a_full_memory_does(tmp_path: Path) -> None:
    """The least recently used leaves, though the tier has not used its capacity."""
    disk = FullDisk(tmp_path, 10 * SIZE)
    assert [disk.store(KEYS[number], ENVELOPES[number]) for number in range(4)] == [True] * 4
    assert (disk.in_order(), disk.num_bytes, disk.failures) == ([KEYS[2], KEYS[3]], 2 * SIZE, {"OSError": 2})
    assert sorted(path.name for path in tmp_path.glob("??/*")) == [Path(name_of(number)).name for number in (2, 3)]


def test_an_index_without_room_makes_room_too(tmp_path: Path) -> None:
    """Sqlite says itself that it is full; the envelope's file is not left behind."""
    keys = [bytes([number]) * 100 for number in range(120)]
    disk = DiskTier(tmp_path, 1 << 20)
    disk._index.execute("PRAGMA max_page_count = 6")
    assert all(disk.store(key, b"envelope") for key in keys)
    assert 20 < len(disk) < 120 and disk.in_order() == keys[-len(disk) :]
    assert set(disk.failures) == {"OperationalError"}
    assert len(list(tmp_path.glob("??/*"))) == len(disk)


def test_an_index_that_fails_costs_entries_and_no_exception(tmp_path: Path) -> None:
    """What is here can still be loaded and discarded; what comes is refused, and leaves no file."""
    disk = DiskTier(tmp_path, 10 * SIZE)
    assert disk.store(KEYS[0], ENVELOPES[0]) and disk.store(KEYS[1], ENVELOPES[1])
    disk._index.close()
    assert opens(disk, 0)
    assert not disk.store(KEYS[2], ENVELOPES[2])
    disk.discard(KEYS[1])
    assert (disk.in_order(), disk.num_bytes) == ([KEYS[0]], SIZE)
    assert [path.name for path in tmp_path.glob("??/*")] == [Path(name_of(0)).name]
    assert disk.failures["ProgrammingError"] >= 3


def test_a_file_that_has_grown_is_not_read_to_its_end(tmp_path: Path) -> None:
    """A gigabyte of zeros behind a block takes no gigabyte of memory: one byte more tells that it is damaged."""
    disk = DiskTier(tmp_path, 10 * SIZE)
    disk.store(KEYS[0], ENVELOPES[0])
    with (tmp_path / name_of(0)).open("r+b") as file:
        file.truncate(1 << 30)
    assert len(disk.load(KEYS[0]) or b"") == SIZE + 1


def test_a_tier_can_be_cleared(tmp_path: Path) -> None:
    """Its files are gone, and the next one finds nothing."""
    disk = DiskTier(tmp_path, 10 * SIZE)
    for number in range(3):
        disk.store(KEYS[number], ENVELOPES[number])
    disk.clear()
    assert (len(disk), disk.num_bytes, list(tmp_path.glob("??/*"))) == (0, 0, [])
    disk.close()
    assert len(DiskTier(tmp_path, 10 * SIZE)) == 0

"""The tier on a disk: what it keeps, what a crash may leave behind, and what of that opens."""

import contextlib
import itertools
import random
import shutil
import sqlite3
from pathlib import Path

import pytest

from mini_kv.core.errors import ConfigError
from mini_kv.tiers.disk import DiskTier
from mini_kv.tiers.sealed import DamagedError, seal, unseal

KEYS = [bytes([number]) * 36 for number in range(6)]
PAYLOADS = [random.Random(number).randbytes(424) for number in range(6)]
ENVELOPES = [seal(key, payload) for key, payload in zip(KEYS, PAYLOADS, strict=True)]
SIZE = len(ENVELOPES[0])
SECTOR = 64


@pytest.fixture
def disk(tmp_path: Path) -> DiskTier:
    """A tier with room for three blocks."""
    return DiskTier(tmp_path / "tier", 3 * SIZE)


def opens(disk: DiskTier, number: int) -> bool | None:
    """Load a block: `True` if its own bytes come, `None` if none do; what opens as something else is an error."""
    envelope = disk.load(KEYS[number])
    try:
        payload = unseal(KEYS[number], envelope, len(PAYLOADS[number]))
    except DamagedError:
        return None
    assert payload == PAYLOADS[number], "wrong bytes were loaded as right ones"
    return True


def test_the_least_recently_used_leaves(disk: DiskTier) -> None:
    """Capacity counts bytes; a load is a use."""
    for number in (0, 1, 2):
        assert disk.store(KEYS[number], ENVELOPES[number])
    assert disk.load(KEYS[0]) == ENVELOPES[0]
    assert disk.store(KEYS[3], ENVELOPES[3])
    assert disk.in_order() == [KEYS[2], KEYS[0], KEYS[3]]
    assert disk.num_bytes == 3 * SIZE == sum(path.stat().st_size for path in disk.folder.glob("??/*"))
    assert disk.load(KEYS[1]) is None


def test_the_next_engine_finds_it_in_the_same_order(disk: DiskTier) -> None:
    """Uses are part of what is kept; a smaller capacity drops the oldest."""
    for number in (0, 1, 2):
        disk.store(KEYS[number], ENVELOPES[number])
    disk.load(KEYS[0])
    disk.close()
    again = DiskTier(disk.folder, 3 * SIZE)
    assert (again.in_order(), again.num_bytes) == ([KEYS[1], KEYS[2], KEYS[0]], 3 * SIZE)
    assert again.load(KEYS[1]) == ENVELOPES[1]
    again.close()
    smaller = DiskTier(disk.folder, 2 * SIZE)
    assert smaller.in_order() == [KEYS[0], KEYS[1]]
    assert len(list(disk.folder.glob("??/*"))) == 2


def test_a_folder_belongs_to_one_engine(disk: DiskTier) -> None:
    """The second is told; and gets it when the first has closed."""
    with pytest.raises(ConfigError, match=r"cannot hold a cache: database is locked .does another process use it?"):
        DiskTier(disk.folder, SIZE)
    disk.close()
    DiskTier(disk.folder, SIZE).close()


def test_the_folder_may_be_a_text(tmp_path: Path) -> None:
    with contextlib.closing(DiskTier(str(tmp_path / "tier"), 3 * SIZE)) as disk:
        assert disk.store(KEYS[0], ENVELOPES[0])
    assert (tmp_path / "tier" / KEYS[0].hex()[:2]).is_dir()


def test_a_folder_that_is_none(tmp_path: Path) -> None:
    """A file stands where the folder should be made."""
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="file cannot hold a cache: "):
        DiskTier(tmp_path / "file", SIZE)
    with pytest.raises(ConfigError, match="capacity_bytes is 0, it must be at least 1"):
        DiskTier(tmp_path / "tier", 0)


def test_a_disk_that_takes_no_more(disk: DiskTier) -> None:
    """A folder in a file's place stands for a disk that is full: the block is not kept, and no trace is left."""
    (disk.folder / KEYS[0].hex()[:2]).write_text("")
    assert not disk.store(KEYS[0], ENVELOPES[0])
    assert (len(disk), disk.num_bytes) == (0, 0)
    assert not disk.store(KEYS[1], b"x" * (3 * SIZE + 1))


@pytest.mark.parametrize("damage", ["no database", "torn", "other columns", "other rows", "gone"])
def test_an_index_that_cannot_be_read_is_begun_anew(disk: DiskTier, damage: str) -> None:
    """The blocks are lost; the cache works."""
    disk.store(KEYS[0], ENVELOPES[0])
    disk.close()
    index = disk.folder / "index.sqlite3"
    if damage == "no database":
        index.write_bytes(b"not a database at all" * 100)
    elif damage == "torn":
        index.write_bytes(index.read_bytes()[:5000])
    elif damage == "gone":
        index.unlink()
    else:
        with sqlite3.connect(index) as connection:
            if damage == "other columns":
                connection.execute("DROP TABLE blocks")
                connection.execute("CREATE TABLE blocks (name TEXT)")
            else:
                connection.execute("INSERT INTO blocks VALUES ('text', 'x', NULL)")
        connection.close()
    again = DiskTier(disk.folder, 3 * SIZE)
    assert (len(again), opens(again, 0), list(disk.folder.glob("??/*"))) == (0, None, [])
    assert again.store(KEYS[0], ENVELOPES[0]) and opens(again, 0)
    again.close()


def test_rows_and_files_that_do_not_fit_together(disk: DiskTier) -> None:
    """A file without a row, a row without its file, a file of another length, one that was being written."""
    for number in (0, 1, 2):
        disk.store(KEYS[number], ENVELOPES[number])
    disk.close()
    path_of = {number: disk.folder / KEYS[number].hex()[:2] / f"{KEYS[number].hex()}.kv" for number in range(6)}
    path_of[0].unlink()
    path_of[1].write_bytes(ENVELOPES[1][:-1])
    path_of[3].parent.mkdir()
    path_of[3].write_bytes(ENVELOPES[3])
    path_of[2].with_suffix(".new").write_bytes(ENVELOPES[2][:100])
    again = DiskTier(disk.folder, 3 * SIZE)
    assert (again.in_order(), again.num_bytes) == ([KEYS[2]], SIZE)
    assert list(disk.folder.glob("??/*")) == [path_of[2]]


@pytest.mark.slow
def test_ten_thousand_files_as_a_crash_may_leave_them(disk: DiskTier) -> None:
    """Each sector of a block's file is the new one, an old block's or never written; or the file ends early.

    There is no fsync, so any mixture can be what is on the disk after a power cut. Only one of them opens.
    """
    disk.store(KEYS[0], ENVELOPES[0])
    path = disk.folder / KEYS[0].hex()[:2] / f"{KEYS[0].hex()}.kv"
    starts = range(0, SIZE, SECTOR)
    versions = [ENVELOPES[0], ENVELOPES[1], bytes(SIZE)]
    images = [
        b"".join(versions[choice][start : start + SECTOR] for choice, start in zip(choices, starts, strict=True))
        for choices in itertools.product(range(3), repeat=len(starts))
    ]
    new, old, never = versions
    images += [image[:length] for image in versions for length in range(SIZE)]
    longer = (new + old, new + never, old + new, never + new)
    images += [image[:length] for image in longer for length in range(SIZE + 1, 2 * SIZE + 1)]
    loaded = 0
    for image in images:
        path.write_bytes(image)
        loaded += opens(disk, 0) is True
    assert len(set(images)) >= 10_000
    assert (len(images), loaded) == (10_145, 1)
    assert sum(len(image) == SIZE for image in images) == 3**8  # what would open if the length alone were checked


@pytest.mark.slow
def test_crashes_at_every_place_of_a_write_or_a_deletion(tmp_path: Path) -> None:
    """File and row of a block, each before, after or half way, beside a block that nothing happened to."""
    still = DiskTier(tmp_path / "still", 9 * SIZE)
    still.store(KEYS[1], ENVELOPES[1])
    index_without = (still.folder / "index.sqlite3").read_bytes()
    still.store(KEYS[0], ENVELOPES[0])
    still.close()
    index_with = (still.folder / "index.sqlite3").read_bytes()
    name = Path(KEYS[0].hex()[:2]) / f"{KEYS[0].hex()}.kv"
    files = [None, ENVELOPES[0], ENVELOPES[0][: SIZE // 2], ENVELOPES[1], bytes(SIZE)]
    torn = [index_with[:cut] + index_without[cut:] for cut in range(512, len(index_with), 512)]
    half_new = [None, ENVELOPES[0][:7], ENVELOPES[0]]
    outcomes = set()
    for number, (file, beside, index) in enumerate(
        itertools.product(files, half_new, [index_without, index_with, *torn])
    ):
        folder = tmp_path / str(number)
        shutil.copytree(still.folder, folder)
        (folder / "index.sqlite3").write_bytes(index)
        (folder / name).unlink()
        if file is not None:
            (folder / name).write_bytes(file)
        if beside is not None:
            (folder / name).with_suffix(".new").write_bytes(beside)
        disk = DiskTier(folder, 9 * SIZE)
        outcomes.add((file == ENVELOPES[0] and index == index_with, opens(disk, 0)))
        assert opens(disk, 1) or index not in (index_with, index_without)
        assert disk.store(KEYS[0], ENVELOPES[0])
        disk.close()
        shutil.rmtree(folder)
    assert (True, True) in outcomes and (True, None) not in outcomes


@pytest.mark.slow
def test_ten_thousand_bits_lengths_and_swaps(disk: DiskTier) -> None:
    """A disk that lies: any damage to any of three files, and files in each other's place."""
    rng = random.Random(0)
    for number in (0, 1, 2):
        disk.store(KEYS[number], ENVELOPES[number])
    paths = {number: disk.folder / KEYS[number].hex()[:2] / f"{KEYS[number].hex()}.kv" for number in (0, 1, 2)}
    wrong_or_kept = 0
    for _ in range(10_000):
        number, other = rng.sample((0, 1, 2), 2)
        image = bytearray(ENVELOPES[number])
        match rng.randrange(3):
            case 0:
                image[rng.randrange(SIZE)] ^= 1 << rng.randrange(8)
            case 1:
                del image[rng.randrange(SIZE) :]
            case 2:
                image[:] = ENVELOPES[other]
        paths[number].write_bytes(image)
        wrong_or_kept += opens(disk, number) is not None
        paths[number].write_bytes(ENVELOPES[number])
    assert wrong_or_kept == 0
    assert [opens(disk, number) for number in (0, 1, 2)] == [True, True, True]

"""Random lives of an engine over tiers: no wrong content, one owner per block, all requests end."""

import os
from pathlib import Path
from typing import Any

import pytest

from mini_kv.tests.tiers.tiers_driver import GROUPS, TieredDrive
from mini_kv.tiers.sealed import OVERHEAD_BYTES
from mini_kv.tiers.tiered_cache import TieredCache

pytestmark = pytest.mark.slow

OPERATIONS = max(int(os.environ.get("MINI_KV_OPERATIONS", "0")) // 30, 1_000)
"""In each of nine runs."""


@pytest.mark.parametrize("groups", GROUPS)
@pytest.mark.parametrize("seed", range(3))
def test_random_lives(seed: int, groups: str, tmp_path: Path) -> None:
    """Servers that fail, disks that lie, workers that stop in the middle; then the engine is left to finish."""
    drive = TieredDrive(seed, groups, tmp_path)
    for _ in drive.operations(OPERATIONS):
        pass
    assert drive.num_failed > 10 and drive.scheduler.num_preemptions > 10
    assert drive.connector.counts["promoted"] > 10 and drive.tiers.counts["damaged"] > 2
    assert drive.tiers.counts["fetched"] > 10 and drive.tiers.counts["pushed out"] > 10


@pytest.mark.parametrize("groups", GROUPS)
def test_when_nothing_new_comes_all_requests_end(groups: str, tmp_path: Path) -> None:
    """Whatever the tiers are like at that moment; and then nothing is held, leased or prepared."""
    drive = TieredDrive(7, groups, tmp_path)
    for number, _ in enumerate(drive.operations(600)):
        if number % 60 == 59:
            for _ in range(300):
                if not drive.scheduler.requests:
                    break
                drive._step()
            assert not drive.scheduler.requests
            drive.connector.build_connector_meta(())
            assert drive.kv.usage == 0.0 and not drive.connector._preparations and not drive.tiers.memory._leases


class Trusting(TieredCache):
    """Believes every byte."""

    def _opened(self, key: bytes, envelope: bytes | None, num_bytes: int) -> bytes | None:
        return envelope

    def load(self, lease: Any, num_bytes: int) -> memoryview | None:
        envelope = self.memory.load(lease)
        start = OVERHEAD_BYTES - 32 + len(lease.key)
        return None if envelope is None else memoryview(envelope)[start : start + num_bytes]


class Forgetful(TieredCache):
    """Keeps what it hands over."""

    def take(self, lease: Any) -> None:
        self.memory.release(lease)


class Careless(TieredCache):
    """Lets go of what the engine has computed anew only in memory."""

    def discard(self, key: bytes) -> None:
        self.memory.discard(key)


class Leaking(TieredCache):
    """Never ends a lease."""

    def release(self, lease: Any) -> None:
        pass


@pytest.mark.parametrize(
    ("faulty", "complaint"),
    [
        (Trusting, "block"),
        (Forgetful, "in the pool and below it"),
        (Careless, "in the pool and below it"),
        (Leaking, "a lease is left"),
    ],
)
def test_the_driver_finds_faulty_tiers(faulty: type[TieredCache], complaint: str, tmp_path: Path) -> None:
    """Each within a few hundred operations of some seed."""
    with pytest.raises(AssertionError, match=complaint):
        drive_several(faulty, tmp_path)


def drive_several(faulty: type[TieredCache], folder: Path) -> None:
    """Drive six engines over tiers of this class."""
    for seed in range(6):
        drive = TieredDrive(seed, "full and window", folder / str(seed), make_tiers=faulty)
        for _ in drive.operations(1_000):
            pass

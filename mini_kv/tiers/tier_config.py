"""The options for an engine's tiers, and the opened tiers."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from mini_kv.core.errors import ConfigError
from mini_kv.tiers.background import Thread, Worker
from mini_kv.tiers.disk import DiskTier
from mini_kv.tiers.memory_tier import MemoryTier
from mini_kv.tiers.remote import RemoteTier, connect
from mini_kv.tiers.tiered_cache import TieredCache


@dataclass(frozen=True, slots=True)
class TierConfig:
    """The tiers of an engine. With memory only, no bytes leave the process."""

    memory_bytes: int = 64 << 20
    disk_folder: Path | None = None
    """A folder that only this engine uses."""
    disk_bytes: int = 1 << 30
    server: str | None = None
    """`redis://host:port/db` of a Valkey or Redis server."""
    is_cluster: bool = False
    secret: bytes | None = None
    """Secret of the engines that share the server. The server does not know it."""
    seconds_to_wait: float = 0.05
    """The longest time that a request waits for its blocks, and the limit of each call to the server."""
    reload: str = "always"
    """When a hit in a tier is reloaded: `"always"`, or `"cheaper"`: only if computing it would take longer, by the
    times measured so far."""

    def __post_init__(self) -> None:
        for name in ("memory_bytes", "disk_bytes"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}, it must be at least 1")
        if self.is_cluster and self.server is None:
            raise ConfigError("is_cluster needs a server tier, but no server is given")
        if self.reload not in ("always", "cheaper"):
            raise ConfigError(f"reload is {self.reload!r}, it must be 'always' or 'cheaper'")
        if self.seconds_to_wait <= 0:
            raise ConfigError(f"seconds_to_wait is {self.seconds_to_wait}, it must be more than 0")


def open_tiers(config: TierConfig, make_worker: Callable[[], Worker] = Thread) -> TieredCache:
    """Open disk and server, and combine the tiers. Raises `ConfigError` if one cannot be opened."""
    remote = None
    if config.server is not None:
        remote = RemoteTier(connect(config.server, seconds=config.seconds_to_wait, is_cluster=config.is_cluster))
    disk = DiskTier(config.disk_folder, config.disk_bytes) if config.disk_folder is not None else None
    return TieredCache(MemoryTier(config.memory_bytes), disk, remote, secret=config.secret, make_worker=make_worker)

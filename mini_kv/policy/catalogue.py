"""Eviction and admission policies by name or from a file: `--policy sieve`, `--policy mine.py:Hybrid`."""

import importlib.util
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from mini_kv.core.block import KVCacheBlock
from mini_kv.core.errors import ConfigError
from mini_kv.core.free_queue import FreeKVCacheBlockQueue
from mini_kv.messages import choices, shown
from mini_kv.policy.admission_strategies import Strategy, strategies
from mini_kv.policy.eviction import Policy
from mini_kv.policy.ranked import FIFO, LFU, LeafFirst, SeenTwice
from mini_kv.policy.recent_then_used import RecentThenUsed
from mini_kv.policy.sieve import Sieve


class HeadFirst(FreeKVCacheBlockQueue):
    """LRU with the wrong order for prefixes: a prompt's head is evicted before its tail."""

    def append_n(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Add the blocks at the back in reverse order."""
        super().append_n(blocks[::-1])


POLICIES: dict[str, Policy] = {
    "lru": FreeKVCacheBlockQueue,
    "lru-head-first": HeadFirst,
    "fifo": FIFO,
    "lfu": LFU,
    "seen-twice": SeenTwice,
    "leaf-first": LeafFirst,
    "sieve": Sieve,
    "hybrid": RecentThenUsed,
}
"""The eviction policies by name. The first is the engine's own."""


VERBS = ("popleft_n", "remove", "append_n", "prepend_n", "get_all_free_blocks")
"""Methods that a pool needs of its free queue. `num_free_blocks` is not listed: it may be set by the constructor."""
_VERBS_OF_ADMISSION = ("may_jump", "reserved_blocks")
"""Attributes that the scheduler needs of an admission policy."""


ALL = "all"
"""The word for every known name."""


def requested(names: Sequence[str], known: Iterable[str]) -> list[str]:
    """Return the requested names, each once, with every known one in place of `ALL`."""
    return list(dict.fromkeys(each for name in names for each in (known if name == ALL else (name,))))


def find_policy(name: str) -> Policy:
    """Return the eviction policy with this name, or the class at `file.py:Class`.

    Raises `ConfigError` if there is none. An exception of the file itself is passed on.
    """
    return POLICIES[name] if name in POLICIES else _own("policy", name, list(POLICIES), VERBS)


def find_strategy(name: str) -> Strategy:
    """Return the admission strategy with this name, or one with an object of the class at `file.py:Class`.

    Raises `ConfigError` if there is none. An exception of the file itself is passed on.
    """
    known = strategies()
    return known[name] if name in known else Strategy(_own("admission", name, list(known), _VERBS_OF_ADMISSION)())


def _own(option: str, name: str, known: Sequence[str], verbs: Sequence[str]) -> Any:
    """Return the class at `file.py:Class`, if it has these attributes."""
    path, colon, attribute = name.rpartition(":")
    if not colon or not path.endswith(".py"):
        raise ConfigError(f"there is no {option} {shown(name)}; {choices(name, known)}, or yours: file.py:Class")
    if not Path(path).is_file():
        raise ConfigError(f"--{option} {name}: there is no file {path}")
    spec = importlib.util.spec_from_file_location(Path(path).stem, path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"--{option} {name}: {path} cannot be loaded as Python")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found = getattr(module, attribute, None)
    if not isinstance(found, type):
        raise ConfigError(f"--{option} {name}: {path} has no class {attribute}")
    missing = [verb for verb in verbs if not hasattr(found, verb)]
    if missing:
        raise ConfigError(f"--{option} {name}: {attribute} lacks {', '.join(missing)}")
    return found

"""mini_kv: a small, real KV-cache engine, and the workbook built on it.

The names below are the public interface. Each is loaded when it is first used. The bookkeeping needs only the standard
library. The names that compute (`LLM`, `LLMEngine`, `SamplingParams`, `RequestOutput`) need torch. Without torch these
are missing: `hasattr` is false, `from mini_kv import *` omits them, and the error for one explains how to get torch.
"""

import sys
from importlib import import_module
from importlib.util import find_spec

TYPE_CHECKING = False  # as typing's, which would be most of the time that this import takes
if TYPE_CHECKING:
    from mini_kv.core.block import KVCacheBlock
    from mini_kv.core.block_hash import hash_block_tokens
    from mini_kv.core.block_pool import BlockPool
    from mini_kv.core.errors import ConfigError, KVCacheError
    from mini_kv.core.free_queue import FreeKVCacheBlockQueue
    from mini_kv.core.invariants import check_invariants
    from mini_kv.core.kv_cache_interface import (
        FullAttentionSpec,
        KVCacheConfig,
        KVCacheGroupSpec,
        MambaSpec,
        SlidingWindowSpec,
    )
    from mini_kv.core.kv_cache_manager import KVCacheBlocks, KVCacheManager
    from mini_kv.core.request import Request
    from mini_kv.core.sched.config import SchedulerConfig
    from mini_kv.core.sched.output import SchedulerOutput
    from mini_kv.core.sched.request_queue import SchedulingPolicy
    from mini_kv.core.sched.scheduler import Scheduler
    from mini_kv.engine.config import EngineConfig
    from mini_kv.engine.llm import LLM
    from mini_kv.engine.llm_engine import LLMEngine
    from mini_kv.engine.output_processor import RequestOutput
    from mini_kv.engine.sampling import SamplingParams
    from mini_kv.story.debug import DebugKVCacheManager

__version__ = "0.2.0"

__all__ = [
    "BlockPool",
    "ConfigError",
    "DebugKVCacheManager",
    "EngineConfig",
    "FreeKVCacheBlockQueue",
    "FullAttentionSpec",
    "KVCacheBlock",
    "KVCacheBlocks",
    "KVCacheConfig",
    "KVCacheError",
    "KVCacheGroupSpec",
    "KVCacheManager",
    "MambaSpec",
    "Request",
    "Scheduler",
    "SchedulerConfig",
    "SchedulerOutput",
    "SchedulingPolicy",
    "SlidingWindowSpec",
    "check_invariants",
    "hash_block_tokens",
]
if find_spec("torch") is not None:
    __all__ += ["LLM", "LLMEngine", "RequestOutput", "SamplingParams"]

_HOMES = {
    "core.block": ("KVCacheBlock",),
    "core.block_hash": ("hash_block_tokens",),
    "core.block_pool": ("BlockPool",),
    "story.debug": ("DebugKVCacheManager",),
    "core.errors": ("ConfigError", "KVCacheError"),
    "core.free_queue": ("FreeKVCacheBlockQueue",),
    "core.invariants": ("check_invariants",),
    "core.kv_cache_interface": (
        "FullAttentionSpec",
        "KVCacheConfig",
        "KVCacheGroupSpec",
        "MambaSpec",
        "SlidingWindowSpec",
    ),
    "core.kv_cache_manager": ("KVCacheBlocks", "KVCacheManager"),
    "core.request": ("Request",),
    "core.sched.config": ("SchedulerConfig",),
    "core.sched.output": ("SchedulerOutput",),
    "core.sched.request_queue": ("SchedulingPolicy",),
    "core.sched.scheduler": ("Scheduler",),
    "engine.config": ("EngineConfig",),
    "engine.llm": ("LLM",),
    "engine.llm_engine": ("LLMEngine",),
    "engine.output_processor": ("RequestOutput",),
    "engine.sampling": ("SamplingParams",),
}
"""The module of each public name."""


def __getattr__(name: str) -> object:
    """Load the module of a public name when the name is first used.

    Raises `AttributeError` for an unknown name, and for a name that needs torch if torch is missing. The statement
    `from mini_kv import LLM` then raises `ModuleNotFoundError`, because Python drops the text of an `AttributeError`.
    """
    for home, names in _HOMES.items():
        if name in names:
            try:
                value = getattr(import_module(f"mini_kv.{home}"), name)
            except ModuleNotFoundError as error:
                if error.name != "torch":
                    raise
                from mini_kv.installer import install_torch

                problem = f"mini_kv.{name} needs torch: {install_torch()}"
                if sys._getframe(1).f_globals.get("__name__") == "importlib._bootstrap":
                    raise ModuleNotFoundError(problem, name="torch") from error
                raise AttributeError(problem, name=name) from error
            globals()[name] = value
            return value
    raise AttributeError(f"module 'mini_kv' has no attribute {name!r}")


def __dir__() -> list[str]:
    """Return the public names, loaded or not."""
    return sorted({*globals(), *__all__})

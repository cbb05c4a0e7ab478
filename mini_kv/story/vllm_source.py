"""The place in vLLM's source code for each event, each cause of a lost hit, and each published KV event.

    EVENTS[EdgeKind.EVICTED].symbol         # 'BlockPool._maybe_evict_cached_block'
    EVENTS[EdgeKind.EVICTED].url            # 'https://github.com/vllm-project/vllm/blob/v0.33.0/vllm/v1/core/...#L769'
    EVENTS[EdgeKind.EVICTED].here           # 'core.block_pool.BlockPool._maybe_evict_cached_block'

The line numbers are recorded from vLLM's wheel, in `vllm_source.json`. The figure's script reads the same file. After a
change of this table: `python -m mini_kv.dev.recorders.record_names`.
"""

import json
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any, NamedTuple

from mini_kv.story.edge import EdgeKind

VERSION = "0.33.0"
SOURCE = f"https://github.com/vllm-project/vllm/blob/v{VERSION}/vllm/"
"""The folder `vllm/` of this version, as a page of GitHub."""

_POOL = "v1/core/block_pool.py"
_MANAGER = "v1/core/kv_cache_manager.py"
_SCHEDULER = "v1/core/sched/scheduler.py"
_TABLES = "v1/core/single_type_kv_cache_manager.py"
_UTILS = "v1/core/kv_cache_utils.py"


class Place(NamedTuple):
    """A function of vLLM, its counterpart in mini_kv, and what happens there."""

    file: str
    """Below `vllm/`."""
    symbol: str
    here: str
    """The counterpart, below `mini_kv`."""
    sentence: str

    @property
    def line(self) -> int:
        """The line at which the function begins."""
        return _lines()[self.file][self.symbol]

    @property
    def url(self) -> str:
        """The link to that line."""
        return f"{SOURCE}{self.file}#L{self.line}"

    def as_dict(self) -> dict[str, str]:
        """Return the names, the link and the sentence."""
        return {"symbol": self.symbol, "url": self.url, "here": f"mini_kv.{self.here}", "sentence": self.sentence}


EVENTS: Mapping[EdgeKind, Place] = {
    EdgeKind.ALLOCATED: Place(
        _POOL,
        "BlockPool.get_new_blocks",
        "core.block_pool.BlockPool.get_new_blocks",
        "The block is taken from the front of the free queue, and its reference count becomes 1.",
    ),
    EdgeKind.REVIVED: Place(
        _POOL,
        "BlockPool.touch",
        "core.block_pool.BlockPool.touch",
        "A request found the free block. It leaves the free queue, and its reference count becomes 1.",
    ),
    EdgeKind.SHARED: Place(
        _POOL,
        "BlockPool.touch",
        "core.block_pool.BlockPool.touch",
        "Another request found a block in use. Its reference count grows by 1.",
    ),
    EdgeKind.UNSHARED: Place(
        _POOL,
        "BlockPool.free_blocks",
        "core.block_pool.BlockPool.free_blocks",
        "A request drops its reference. Another request still uses the block.",
    ),
    EdgeKind.FREED: Place(
        _POOL,
        "BlockPool.free_blocks",
        "core.block_pool.BlockPool.free_blocks",
        "The last reference is dropped. The block goes to the back of the free queue, or to the front without a hash.",
    ),
    EdgeKind.CACHED: Place(
        _POOL,
        "BlockPool.cache_full_blocks",
        "core.block_pool.BlockPool.cache_full_blocks",
        "A full block gets its block hash and is entered in the index.",
    ),
    EdgeKind.EVICTED: Place(
        _POOL,
        "BlockPool._maybe_evict_cached_block",
        "core.block_pool.BlockPool._maybe_evict_cached_block",
        "The block loses its block hash and is removed from the index.",
    ),
    EdgeKind.UNCACHED: Place(
        _POOL,
        "BlockPool.evict_blocks",
        "core.block_pool.BlockPool.evict_blocks",
        "A block in use loses its block hash, because its content is not valid. Its references are unchanged.",
    ),
    EdgeKind.ILLEGAL: Place(
        _UTILS,
        "KVCacheBlock.set_block_hash",
        "story.recorder.Recorder.report",
        "vLLM asserts that a block with a block hash gets no second one. Here every change of a block is checked.",
    ),
}
"""By the kind of event."""

LOOKUP = Place(
    _MANAGER,
    "KVCacheManager.get_computed_blocks",
    "core.kv_cache_manager.KVCacheManager.get_computed_blocks",
    "The longest cached prefix of a prompt is looked up.",
)
"""A lookup changes no block, so it is not an event."""

_HASHER = (_UTILS, "get_request_block_hasher", "core.block_hash.get_request_block_hasher")
_CHAIN = (_UTILS, "hash_block_tokens", "core.block_hash.hash_block_tokens")
_EXTRA_KEYS = "core.block_hash.generate_block_hash_extra_keys"

CAUSES: Mapping[str, Place] = {
    "timestamp": Place(
        *_CHAIN, "A block hash covers the hash of the block before. After one changed token no later block is found."
    ),
    "tool-order": Place(
        *_CHAIN, "A block hash covers the hash of the block before. Equal text after other text has another hash."
    ),
    "image-size": Place(
        *_HASHER, "Blocks are counted from the first token. A larger image moves all tokens after it to other places."
    ),
    "image": Place(
        _UTILS,
        "_gen_mm_extra_hash_keys",
        _EXTRA_KEYS,
        "The image's identifier is part of the hash of each of its blocks.",
    ),
    "adapter": Place(
        _UTILS, "_gen_lora_extra_hash_keys", _EXTRA_KEYS, "The adapter's name and path are part of every block hash."
    ),
    "salt": Place(
        _UTILS,
        "generate_block_hash_extra_keys",
        "core.block_hash.root_block_hash",
        "The salt is part of the hash of a prompt's first block. So all block hashes of the prompt depend on it.",
    ),
    "refused": Place(
        _MANAGER,
        "KVCacheManager.allocate_slots",
        "core.kv_cache_manager.KVCacheManager.allocate_slots",
        "It returns None if fewer blocks are free than the request needs. A larger prompt than the pool never runs.",
    ),
    "preemption-storm": Place(
        _SCHEDULER,
        "Scheduler._preempt_request",
        "core.sched.scheduler.Scheduler._preempt_request",
        "All blocks of a running request are freed. Its number of computed tokens becomes 0, and it waits again.",
    ),
    "short-prefix": Place(*_HASHER, "Only full blocks get a block hash. A prefix that fills no block is not cached."),
    "short-block": Place(
        "platforms/interface.py",
        "Platform._align_hybrid_block_size",
        "core.kv_cache_planning.align_hybrid_block_size",
        "A block of attention is made as large as a state, so it holds many tokens.",
    ),
    "block-size": Place(
        *_HASHER, "Only full blocks get a block hash. The larger the block, the more tokens are left in the last one."
    ),
    "small-pool": Place(
        _POOL,
        "BlockPool._maybe_evict_cached_block",
        "core.block_pool.BlockPool._maybe_evict_cached_block",
        "The block at the front of the free queue is used again. If it is still cached, it loses its block hash.",
    ),
    "state-gap": Place(
        _TABLES,
        "MambaManager.find_longest_cache_hit",
        "core.mamba_manager.MambaManager.find_longest_cache_hit",
        "A hit ends where a state is cached. Without a state at the end of the prefix the hit is shorter.",
    ),
    "window-gap": Place(
        _TABLES,
        "SlidingWindowManager.find_longest_cache_hit",
        "core.single_type_kv_cache_manager.SlidingWindowManager.find_longest_cache_hit",
        "A hit needs the cached blocks of a whole window before its end.",
    ),
    "reset": Place(
        _POOL,
        "BlockPool.reset_prefix_cache",
        "core.block_pool.BlockPool.reset_prefix_cache",
        "All block hashes are removed, from the index and from the blocks.",
    ),
}
"""By the name of the cause, as `mini-kv explain` prints it."""

PUBLISHED: Mapping[str, Place] = {
    "BlockStored": EVENTS[EdgeKind.CACHED],
    "BlockRemoved": EVENTS[EdgeKind.EVICTED],
    "AllBlocksCleared": CAUSES["reset"],
}
"""By the class of a published KV event: the function in which vLLM makes it in most cases."""


def all_places() -> list[Place]:
    """Return every place, each once."""
    return list(dict.fromkeys([*EVENTS.values(), LOOKUP, *CAUSES.values()]))


def event_symbols() -> dict[str, list[str]]:
    """Return file and symbol for each kind of event, and for `lookup`. The recording has it for the figure's script."""
    named = {**{str(kind): place for kind, place in EVENTS.items()}, "lookup": LOOKUP}
    return {name: [place.file, place.symbol] for name, place in named.items()}


@cache
def _lines() -> dict[str, dict[str, int]]:
    """Return the recorded line numbers, by file and symbol."""
    text = resources.files("mini_kv.story").joinpath("vllm_source.json").read_text(encoding="utf-8")
    recorded: dict[str, Any] = json.loads(text)
    lines: dict[str, dict[str, int]] = recorded["lines"]
    return lines

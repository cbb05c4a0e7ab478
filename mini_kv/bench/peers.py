"""The engines that are measured, each behind the same verbs.

An adapter does for its engine what that engine's scheduler does, no more: the same work is counted for every engine.

    submit   make a request of a prompt; hashes its full blocks if the engine does so here
    admit    look the prompt up, take its blocks, and enter the full ones in the index
    decode   one step of many requests: a slot for one token each, the ids of new blocks, then the sampled token
    finish   give the blocks back

Where the engines differ: nano-vllm hashes blocks in `admit` (twice where they hit) instead of `submit`, and enters
them after the step; here that is part of `admit` and `decode`. Its runner reads the table of ids in place; the others
tell theirs the ids of the new blocks only.
"""

import importlib
import importlib.util
import logging
import os
import random
import sys
import types
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from mini_kv import __version__
from mini_kv.core.block_hash import get_hash_function, get_request_block_hasher
from mini_kv.core.kv_cache_manager import KVCacheManager
from mini_kv.core.request import Request
from mini_kv.core.sched.config import SchedulerConfig
from mini_kv.core.sched.scheduler import Scheduler
from mini_kv.trace.step import run_step


class PeerError(Exception):
    """The engine is not there, or it did other work than the others did."""


class Cache(ABC):
    """One engine's KV cache of one size. Requests are the engine's own, opaque to the rows."""

    @abstractmethod
    def submit(self, request_id: str, token_ids: list[int]) -> Any:
        """Return a request for the prompt."""

    @abstractmethod
    def admit(self, request: Any) -> int:
        """Give the request all its blocks; return its hit in tokens. Raises `PeerError` if they do not fit."""

    @abstractmethod
    def decode(self, requests: Sequence[Any], token_id: int) -> None:
        """Do one step of all requests; each samples `token_id`."""

    def start_scheduling(self, requests: Sequence[Any]) -> Callable[[int], None]:
        """Admit the requests; return a step, in which each samples the token that the step is given.

        Ours is the whole scheduler. A peer's is its allocation path, `decode`: no peer's scheduler runs by itself.
        """
        for request in requests:
            self.admit(request)
        return lambda token_id: self.decode(requests, token_id)

    @abstractmethod
    def finish(self, request: Any) -> None:
        """Give the request's blocks back; what is cached stays cached."""

    @abstractmethod
    def churn(self, num_blocks: int, times: int) -> None:
        """Take `num_blocks` blocks from the pool and give them back, `times` times."""

    @abstractmethod
    def scatter(self, rng: random.Random) -> None:
        """Shuffle the free blocks, as long use does: neighbours in the queue are no neighbours in memory."""


class Peer(ABC):
    """An engine: makes caches and hashers."""

    name: str
    version: str

    @abstractmethod
    def cache(self, num_blocks: int, block_size: int) -> Cache:
        """Return an empty cache with prefix caching on; `num_blocks` counts the null block, if there is one."""

    @abstractmethod
    def pool(self, num_blocks: int) -> Any:
        """Return what holds the idle blocks, and nothing else; for weighing."""

    @abstractmethod
    def hasher(self, function: str, block_size: int, token_ids: list[int]) -> Callable[[], int]:
        """Return a call that hashes all full blocks of the prompt and returns how many these are.

        `function` is ours: `sha256` or `xxh3_128`. The peer uses the nearest that it has.
        """


class MiniKV(Peer):
    """mini_kv as a peer: the engine of this project."""

    name = "mini_kv"
    version = __version__

    def cache(self, num_blocks: int, block_size: int) -> Cache:
        """Return a manager of one full-attention group."""
        return _MiniKVCache(KVCacheManager.for_full_attention(num_blocks, block_size))

    def pool(self, num_blocks: int) -> Any:
        """Return a `BlockPool`."""
        return KVCacheManager.for_full_attention(num_blocks, 16).block_pool

    def hasher(self, function: str, block_size: int, token_ids: list[int]) -> Callable[[], int]:
        """Use the request block hasher; checking the tokens belongs to `submit`."""
        request = Request("hash", token_ids)
        hash_blocks = get_request_block_hasher(block_size, get_hash_function(function))
        return lambda: len(hash_blocks(request))


class _MiniKVCache(Cache):
    def __init__(self, kv: KVCacheManager) -> None:
        self.kv = kv

    def submit(self, request_id: str, token_ids: list[int]) -> Request:
        return self.kv.new_request(request_id, token_ids)

    def admit(self, request: Request) -> int:
        blocks, num_hit = self.kv.get_computed_blocks(request)
        new_blocks = self.kv.allocate_slots(request, request.num_tokens - num_hit, num_hit, blocks)
        if new_blocks is None:
            raise PeerError(f"{request.request_id} does not fit")
        request.num_computed_tokens = request.num_tokens
        return num_hit

    def decode(self, requests: Sequence[Request], token_id: int) -> None:
        allocate_slots = self.kv.allocate_slots
        for request in requests:
            request.append_output_token_ids(token_id)
            new_blocks = allocate_slots(request, 1)
            if new_blocks is None:
                raise PeerError("the pool is too small for decoding")
            new_blocks.get_block_ids()
            request.num_computed_tokens += 1

    def start_scheduling(self, requests: Sequence[Request]) -> Callable[[int], None]:
        budget = sum(request.num_tokens for request in requests)
        scheduler = Scheduler(self.kv, SchedulerConfig(max_num_batched_tokens=budget, max_num_seqs=len(requests)))
        for request in requests:
            scheduler.add_request(request, max_tokens=1 << 10)

        def step(token_id: int) -> None:
            run_step(scheduler, lambda output: dict.fromkeys(output.num_scheduled_tokens, (token_id,)))

        step(0)
        return step

    def finish(self, request: Request) -> None:
        self.kv.free(request)

    def churn(self, num_blocks: int, times: int) -> None:
        pool = self.kv.block_pool
        for _ in range(times):
            pool.free_blocks(pool.get_new_blocks(num_blocks))

    def scatter(self, rng: random.Random) -> None:
        pool = self.kv.block_pool
        blocks = pool.get_new_blocks(pool.num_free_blocks)
        rng.shuffle(blocks)
        pool.free_blocks(blocks)


class VLLM(Peer):
    """An installed vLLM, as of 0.33, with the settings of its scheduler where they matter."""

    name = "vllm"

    def __init__(self) -> None:
        """Import it, quietly. Raises `PeerError` if it is not installed, or not whole."""
        if importlib.util.find_spec("vllm") is None:
            raise PeerError("vLLM is not installed here")
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
        try:
            self.version = str(importlib.import_module("vllm.version").__version__)
            self._utils = importlib.import_module("vllm.v1.core.kv_cache_utils")
            self._hashing = importlib.import_module("vllm.utils.hashing")
            self._interface = importlib.import_module("vllm.v1.kv_cache_interface")
            self._manager = importlib.import_module("vllm.v1.core.kv_cache_manager")
            self.request_type = importlib.import_module("vllm.v1.request").Request
            self.sampling_params = importlib.import_module("vllm.sampling_params").SamplingParams(max_tokens=1 << 20)
            self._float16 = importlib.import_module("torch").float16
        except ImportError as error:
            raise PeerError(f"vLLM is installed, but cannot be imported: {error}") from error
        logging.getLogger("vllm").setLevel(logging.ERROR)  # else it warns at every xxhash hasher

    def block_hasher(self, function: str, block_size: int) -> Any:
        """Return vLLM's request block hasher; its own name for `xxh3_128` is `xxhash`."""
        hash_function = self._hashing.get_hash_fn_by_name({"xxh3_128": "xxhash"}.get(function, function))
        self._utils.init_none_hash(hash_function)
        return self._utils.get_request_block_hasher(block_size, hash_function)

    def request(self, request_id: str, token_ids: list[int], block_hasher: Any) -> Any:
        """Return one of vLLM's requests; all share their sampling parameters."""
        return self.request_type(request_id, token_ids, self.sampling_params, None, block_hasher=block_hasher)

    def cache(self, num_blocks: int, block_size: int) -> Cache:
        """Return a manager of one full-attention group that keeps hit statistics, as ours does."""
        return _VLLMCache(self, self._new_manager(num_blocks, block_size), block_size)

    def pool(self, num_blocks: int) -> Any:
        """Return a `BlockPool`."""
        return self._new_manager(num_blocks, 16).block_pool

    def hasher(self, function: str, block_size: int, token_ids: list[int]) -> Callable[[], int]:
        """Use the request block hasher. `xxh3_128` is vLLM's `xxhash`."""
        request = self.request("hash", token_ids, None)
        hash_blocks = self.block_hasher(function, block_size)
        return lambda: len(hash_blocks(request))

    def _new_manager(self, num_blocks: int, block_size: int) -> Any:
        spec = self._interface.FullAttentionSpec(
            block_size=block_size, num_kv_heads=1, head_size=1, dtype=self._float16
        )
        group = self._interface.KVCacheGroupSpec(["layers"], spec)
        config = self._interface.KVCacheConfig(num_blocks, kv_cache_tensors=[], kv_cache_groups=[group])
        return self._manager.KVCacheManager(
            config,
            max_model_len=1 << 20,
            scheduler_block_size=block_size,
            hash_block_size=block_size,
            enable_caching=True,
            log_stats=True,
        )


class _VLLMCache(Cache):
    def __init__(self, vllm: VLLM, kv: Any, block_size: int) -> None:
        self.vllm = vllm
        self.kv = kv
        self.block_hasher = vllm.block_hasher("sha256", block_size)

    def submit(self, request_id: str, token_ids: list[int]) -> Any:
        return self.vllm.request(request_id, token_ids, self.block_hasher)

    def admit(self, request: Any) -> int:
        blocks, num_hit, *_ = self.kv.get_computed_blocks(request)
        new_blocks = self.kv.allocate_slots(request, request.num_tokens - num_hit, num_hit, blocks)
        if new_blocks is None:
            raise PeerError(f"{request.request_id} does not fit")
        self.kv.record_prefix_cache_stats(request, num_hit)
        request.num_computed_tokens = request.num_tokens
        return int(num_hit)

    def decode(self, requests: Sequence[Any], token_id: int) -> None:
        allocate_slots = self.kv.allocate_slots
        for request in requests:
            request.append_output_token_ids(token_id)
            new_blocks = allocate_slots(request, 1)
            if new_blocks is None:
                raise PeerError("the pool is too small for decoding")
            new_blocks.get_block_ids(allow_none=True)
            request.num_computed_tokens += 1

    def finish(self, request: Any) -> None:
        self.kv.free(request)

    def churn(self, num_blocks: int, times: int) -> None:
        pool = self.kv.block_pool
        for _ in range(times):
            pool.free_blocks(pool.get_new_blocks(num_blocks))

    def scatter(self, rng: random.Random) -> None:
        pool = self.kv.block_pool
        blocks = pool.get_new_blocks(pool.get_num_free_blocks())
        rng.shuffle(blocks)
        pool.free_blocks(blocks)


class NanoVLLM(Peer):
    """A checkout of nano-vllm, of any age that has `BlockManager`: without and with `hash_blocks`."""

    name = "nano-vllm"

    def __init__(self, path: Path) -> None:
        """Import its block manager from the checkout at `path`. Raises `PeerError` if there is none."""
        package = path / "nanovllm"
        if not (package / "engine" / "block_manager.py").is_file():
            raise PeerError(f"{path} is no checkout of nano-vllm: it has no nanovllm/engine/block_manager.py")
        self.path = path.resolve()
        # An empty package in place of the real one, whose __init__ imports the model runner and with it a GPU's stack.
        stand_in = types.ModuleType("nanovllm")
        stand_in.__path__ = [str(package)]
        sys.modules["nanovllm"] = stand_in
        self.block_manager = importlib.import_module("nanovllm.engine.block_manager").BlockManager
        self.sequence = importlib.import_module("nanovllm.engine.sequence").Sequence
        self.entered_after_step = hasattr(self.block_manager, "hash_blocks")
        self.version = "HEAD" if self.entered_after_step else "older"

    def cache(self, num_blocks: int, block_size: int) -> Cache:
        """Return a block manager. The block size is a class attribute of its sequences: one size at a time."""
        return _NanoCache(self, num_blocks, block_size)

    def pool(self, num_blocks: int) -> Any:
        """Return a block manager."""
        return self.block_manager(num_blocks, 16)

    def hasher(self, function: str, block_size: int, token_ids: list[int]) -> Callable[[], int]:
        """Chain `compute_hash`. It has xxh64 only: 8 bytes, which it backs by comparing tokens at a hit."""
        compute_hash = self.block_manager.compute_hash

        def hash_blocks() -> int:
            parent = -1
            starts = range(0, len(token_ids) - block_size + 1, block_size)
            for start in starts:
                parent = compute_hash(token_ids[start : start + block_size], parent)
            return len(starts)

        return hash_blocks


class _NanoCache(Cache):
    def __init__(self, nano: NanoVLLM, num_blocks: int, block_size: int) -> None:
        self.nano = nano
        self.blocks = nano.block_manager(num_blocks, block_size)
        self.block_size = block_size

    def submit(self, request_id: str, token_ids: list[int]) -> Any:
        self.nano.sequence.block_size = self.block_size
        return self.nano.sequence(token_ids)

    def admit(self, request: Any) -> int:
        blocks = self.blocks
        fits = blocks.can_allocate(request)
        if fits is False or (fits is not True and fits < 0):
            raise PeerError(f"sequence {request.seq_id} does not fit")
        if not self.nano.entered_after_step:
            blocks.allocate(request)
            return int(request.num_cached_tokens)
        blocks.allocate(request, fits)
        num_hit = int(request.num_cached_tokens)
        request.num_scheduled_tokens = request.num_tokens - num_hit
        self._end_step(request)
        return num_hit

    def decode(self, requests: Sequence[Any], token_id: int) -> None:
        blocks = self.blocks
        entered_after_step = self.nano.entered_after_step
        for request in requests:
            request.append_token(token_id)
            if not blocks.can_append(request):
                raise PeerError("the pool is too small for decoding")
            request.num_scheduled_tokens = 1
            blocks.may_append(request)
            if entered_after_step:
                blocks.hash_blocks(request)
                request.num_cached_tokens += 1
                request.num_scheduled_tokens = 0

    def finish(self, request: Any) -> None:
        self.blocks.deallocate(request)

    def churn(self, num_blocks: int, times: int) -> None:
        for _ in range(times):
            for block_id in [self._take() for _ in range(num_blocks)]:
                self.blocks.blocks[block_id].ref_count -= 1
                self.blocks._deallocate_block(block_id)

    def scatter(self, rng: random.Random) -> None:
        free = list(self.blocks.free_block_ids)
        rng.shuffle(free)
        self.blocks.free_block_ids.clear()
        self.blocks.free_block_ids.extend(free)

    def _take(self) -> int:
        if self.nano.entered_after_step:
            return int(self.blocks._allocate_block())
        return int(self.blocks._allocate_block(self.blocks.free_block_ids[0]).block_id)

    def _end_step(self, request: Any) -> None:
        self.blocks.hash_blocks(request)
        request.num_cached_tokens += request.num_scheduled_tokens
        request.num_scheduled_tokens = 0


def make_peer(name: str, path: Path | None = None) -> Peer:
    """Return the peer of that name; nano-vllm is found at `path`. Raises `PeerError` if it is not there."""
    if name == MiniKV.name:
        return MiniKV()
    if name == VLLM.name:
        return VLLM()
    if name == NanoVLLM.name and path is not None:
        return NanoVLLM(path)
    raise PeerError(f"there is no peer {name!r}")

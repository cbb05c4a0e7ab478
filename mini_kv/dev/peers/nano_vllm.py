"""nano-vllm as a peer: its block manager and its scheduler, imported without the rest, which needs a GPU."""

import importlib
import random
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from mini_kv.dev.peers.base import Cache, NoSuchWorkError, Peer, PeerError
from mini_kv.other_engines import open_package


class NanoVLLM(Peer):
    """A checkout of nano-vllm, of any age that has `BlockManager`: without and with `hash_blocks`."""

    name = "nano-vllm"

    def __init__(self, path: Path) -> None:
        """Import its block manager from the checkout at `path`. Raises `PeerError` if there is none."""
        try:
            open_package(self.name, path, "nanovllm", "engine/block_manager.py")
        except ImportError as error:
            raise PeerError(str(error)) from error
        # The scheduler asks for the name alone, and the module that has it would load transformers.
        config = ModuleType("nanovllm.config")
        vars(config)["Config"] = object
        sys.modules["nanovllm.config"] = config
        self.block_manager = importlib.import_module("nanovllm.engine.block_manager").BlockManager
        self.sequence = importlib.import_module("nanovllm.engine.sequence").Sequence
        self.scheduler = importlib.import_module("nanovllm.engine.scheduler").Scheduler
        self.entered_after_step = hasattr(self.block_manager, "hash_blocks")
        self.version = "HEAD" if self.entered_after_step else "older"

    def cache(self, num_blocks: int, block_size: int) -> Cache:
        """Return a block manager. The block size is a class attribute of its sequences: one size at a time."""
        return _NanoCache(self, num_blocks, block_size)

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

    def namer(self, block_size: int) -> Callable[[str, list[int]], int]:
        """Make a sequence and chain `compute_hash` over it, which its block manager does at admission."""

        def make(request_id: str, token_ids: list[int]) -> int:
            return self.hasher("xxh64", block_size, self.sequence(token_ids).token_ids)()

        return make


class _NanoCache(Cache):
    def __init__(self, nano: NanoVLLM, num_blocks: int, block_size: int) -> None:
        self.nano = nano
        self.blocks = nano.block_manager(num_blocks, block_size)
        self.block_size = block_size

    def submit(self, request_id: str, prompt: list[int]) -> Any:
        self.nano.sequence.block_size = self.block_size
        return self.nano.sequence(prompt)

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

    def start_scheduling(self, requests: Sequence[Any]) -> Callable[[int], None]:
        if not self.nano.entered_after_step:
            raise NoSuchWorkError("its older scheduler had another interface")
        config = SimpleNamespace(
            max_num_seqs=len(requests),
            max_num_batched_tokens=sum(request.num_tokens for request in requests),
            eos=-1,
            kvcache_block_size=self.block_size,
            num_kvcache_blocks=len(self.blocks.blocks),
        )
        scheduler = self.nano.scheduler(config)
        self.blocks = scheduler.block_manager
        for request in requests:
            request.max_tokens = 1 << 20
            scheduler.add(request)

        def step(token_id: int) -> None:
            sequences, is_prefill = scheduler.schedule()
            if len(sequences) != len(requests):
                raise PeerError(f"nano-vllm planned {len(sequences)} of {len(requests)} requests")
            scheduler.postprocess(sequences, [token_id] * len(sequences), is_prefill)

        step(0)
        return step

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

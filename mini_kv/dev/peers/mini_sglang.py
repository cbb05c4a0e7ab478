"""mini-sglang as a peer: its radix tree and the manager around it, imported without the rest, which needs a GPU."""

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from mini_kv import other_engines
from mini_kv.dev.peers.base import Cache, NoSuchWorkError, Peer, PeerError

_MAX_REQUESTS = 512
_MAX_TOKENS = 1 << 13
"""Rows and columns of the page table, which its engine allocates when it starts."""


class MiniSGLang(Peer):
    """A checkout of mini-sglang. It finds prefixes by comparing tokens, in C++: no hashes."""

    name = "mini-sglang"
    version = "HEAD"

    def __init__(self, path: Path) -> None:
        """Import its cache from the checkout at `path`. Raises `PeerError` if it is missing or cannot be built."""
        try:
            self.engine = other_engines.MiniSGLang(path)
        except ImportError as error:
            raise PeerError(str(error)) from error
        self.path = path.resolve()

    def cache(self, num_blocks: int, block_size: int) -> Cache:
        """Return a cache with its radix-tree manager and the page table. Only one page size at a time is possible."""
        return _SGLangCache(self.engine, num_blocks, block_size)

    def pool(self, num_blocks: int) -> Any:
        """Return a cache manager. A free page is a number in a tensor."""
        return _SGLangCache(self.engine, num_blocks, 16).manager

    def hasher(self, function: str, block_size: int, token_ids: list[int]) -> Callable[[], int]:
        """Raise `NoSuchWorkError`: there are no names."""
        raise NoSuchWorkError("a radix tree names no blocks")

    def namer(self, block_size: int) -> Callable[[str, list[int]], int]:
        """Raise `NoSuchWorkError`: there are no names."""
        raise NoSuchWorkError("a radix tree names no blocks")


class _Request:
    """A request of mini-sglang, first waiting, then running."""

    def __init__(self, pending: Any) -> None:
        self.pending = pending
        self.running: Any = None


class _SGLangCache(Cache):
    def __init__(self, sglang: other_engines.MiniSGLang, num_blocks: int, block_size: int) -> None:
        self.sglang = sglang
        self.manager, self.tables = sglang.make_cache(num_blocks, block_size, _MAX_REQUESTS, _MAX_TOKENS)
        self.sampling_params = sglang.core.SamplingParams(max_tokens=1 << 10)

    def prompt(self, token_ids: list[int]) -> Any:
        return self.sglang.torch.tensor(token_ids, dtype=self.sglang.torch.int32)

    def submit(self, request_id: str, prompt: Any) -> _Request:
        return _Request(self.sglang.pending(request_id, prompt, self.sampling_params))

    def admit(self, request: _Request) -> int:
        """Do the work of `PrefillAdder` for a request that fits, and of its scheduler before and after the step."""
        manager, tables, pending = self.manager, self.tables, request.pending
        if pending.input_len > _MAX_TOKENS or tables.available_size == 0:
            raise NoSuchWorkError(f"its page table is {_MAX_REQUESTS} requests of {_MAX_TOKENS:,} tokens here")
        admitted = self.sglang.admit(manager, tables, pending)
        if admitted is None:
            raise PeerError(f"{pending.uid} does not fit")
        handle, row = admitted
        num_hit = int(handle.cached_len)
        if num_hit:
            tables.token_pool[row][:num_hit].copy_(pending.input_ids[:num_hit])
        tables.token_pool[row, num_hit : pending.input_len].copy_(pending.input_ids[num_hit:])
        request.running = self.sglang.core.Req(
            input_ids=pending.input_ids,
            table_idx=row,
            cached_len=num_hit,
            output_len=pending.output_len,
            uid=pending.uid,
            cache_handle=handle,
            sampling_params=pending.sampling_params,
        )
        manager.allocate_paged([request.running])
        request.running.complete_one()
        with manager.lazy_free_region():
            manager.cache_req(request.running, finished=False)
        return num_hit

    def decode(self, requests: Sequence[_Request], token_id: int) -> None:
        running = [request.running for request in requests]
        sampled = self.sglang.torch.full((len(running),), token_id, dtype=self.sglang.torch.int32)
        for index, request in enumerate(running):
            token = sampled[index]
            request.append_host(token.unsqueeze(0))
            int(token.item())
        self.manager.allocate_paged(running)
        for request in running:
            request.complete_one()

    def finish(self, request: _Request) -> None:
        with self.manager.lazy_free_region():
            self.tables.free(request.running.table_idx)
            self.manager.cache_req(request.running, finished=True)

    def churn(self, num_blocks: int, times: int) -> None:
        manager = self.manager
        for _ in range(times):
            manager._free(manager._page_to_token(manager._allocate(num_blocks)))

    def scatter(self, rng: random.Random) -> None:
        order = list(range(len(self.manager.free_slots)))
        rng.shuffle(order)
        self.manager.free_slots = self.manager.free_slots[order]

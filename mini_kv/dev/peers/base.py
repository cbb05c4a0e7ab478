"""The interface of the measured engines: the same verbs for each.

An adapter does exactly the work of its engine's scheduler, so the same work is counted for every engine.

    submit   make a request from a prompt, hash its full blocks if the engine does so here
    admit    look the prompt up, take its blocks, and enter the full ones in the index
    decode   one step of many requests: a slot for one token each, the ids of new blocks, then the sampled token
    finish   free the blocks

The engines differ. nano-vllm hashes blocks in `admit` (twice on a hit) instead of `submit`, and enters them after the
step, which is part of `admit` and `decode` here. Its runner reads the table of ids in place. The others send only the
ids of new blocks to their runners.
"""

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any


class PeerError(Exception):
    """The engine is missing, or it did other work than the others."""


class NoSuchWorkError(PeerError):
    """The engine has no such work. The row continues without it."""


class Cache(ABC):
    """One engine's KV cache of one size. Requests are the engine's own, opaque to the rows."""

    @abstractmethod
    def submit(self, request_id: str, prompt: list[int]) -> Any:
        """Return a request for the prompt."""

    @abstractmethod
    def admit(self, request: Any) -> int:
        """Give the request all its blocks and return its hit in tokens. Raises `PeerError` if they do not fit."""

    @abstractmethod
    def decode(self, requests: Sequence[Any], token_id: int) -> None:
        """Do one step of all requests. Each samples `token_id`."""

    def start_scheduling(self, requests: Sequence[Any]) -> Callable[[int], None]:
        """Admit the requests through the engine's own scheduler. Return a function for a whole step.

        A step plans, then processes the tokens. Each request samples the step's argument. Raises
        `NoSuchWorkError` if the scheduler cannot run without a GPU.
        """
        raise NoSuchWorkError("its scheduler does not run without a GPU")

    @abstractmethod
    def finish(self, request: Any) -> None:
        """Free the request's blocks. Cached ones stay cached."""

    @abstractmethod
    def churn(self, num_blocks: int, times: int) -> None:
        """Allocate `num_blocks` blocks of the pool and free them, `times` times."""

    @abstractmethod
    def scatter(self, rng: random.Random) -> None:
        """Shuffle the free blocks, as long use does, so that neighbours in the queue are not neighbours in memory."""


class ManagerCache(Cache):
    """A cache whose manager has vLLM's names: vLLM's own, and ours."""

    kv: Any

    @abstractmethod
    def num_free_blocks(self) -> int:
        """Return the number of free blocks."""

    def finish(self, request: Any) -> None:
        """Free the request's blocks."""
        self.kv.free(request)

    def churn(self, num_blocks: int, times: int) -> None:
        """Allocate blocks of the pool and free them."""
        pool = self.kv.block_pool
        for _ in range(times):
            pool.free_blocks(pool.get_new_blocks(num_blocks))

    def scatter(self, rng: random.Random) -> None:
        """Allocate all blocks and free them in random order."""
        pool = self.kv.block_pool
        blocks = pool.get_new_blocks(self.num_free_blocks())
        rng.shuffle(blocks)
        pool.free_blocks(blocks)


class Peer(ABC):
    """An engine: makes caches and hashers."""

    name: str
    version: str

    @abstractmethod
    def cache(self, num_blocks: int, block_size: int) -> Cache:
        """Return an empty cache with prefix caching on. `num_blocks` includes the null block, if there is one."""

    @abstractmethod
    def hasher(self, function: str, block_size: int, token_ids: list[int]) -> Callable[[], int]:
        """Return a call that hashes all full blocks of the prompt and returns their number.

        `function` is ours: `sha256` or `xxh3_128`. The peer uses the nearest that it has.
        """

    @abstractmethod
    def namer(self, block_size: int) -> Callable[[str, list[int]], int]:
        """Return a call that makes a request from a prompt, hashes its full blocks and returns their number.

        The engine's own checks are included. The hashes are SHA-256 if the engine has it.
        """

    def hybrid_cache(self, num_blocks: int, block_size: int, num_groups: int, sliding_window: int) -> Cache:
        """Return an empty cache with one group of full attention and `num_groups - 1` of windows."""
        raise NoSuchWorkError("it has one group of layers")

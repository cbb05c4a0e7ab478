"""The engines that are measured, each behind the same verbs.

An adapter does for its engine what that engine's scheduler does, no more: the same work is counted for every engine.

    submit   make a request of a prompt; hashes its full blocks if the engine does so here
    admit    look the prompt up, take its blocks, and enter the full ones in the index
    decode   one step of many requests: a slot for one token each, the ids of new blocks, then the sampled token
    finish   give the blocks back

Where the engines differ: nano-vllm hashes blocks in `admit` (twice where they hit) instead of `submit`, and enters
them after the step; here that is part of `admit` and `decode`. Its runner reads the table of ids in place; the others
tell theirs the ids of the new blocks only. mini-sglang names nothing: a radix tree compares tokens, which come as a
tensor (`prompt`); it enters them after the first step and again at the end.
"""

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any


class PeerError(Exception):
    """The engine is not there, or it did other work than the others did."""


class NoSuchWorkError(PeerError):
    """The engine has no such work to do: the row goes on without it."""


class Cache(ABC):
    """One engine's KV cache of one size. Requests are the engine's own, opaque to the rows."""

    def prompt(self, token_ids: list[int]) -> Any:
        """Return the prompt as the engine's tokenizer hands it over; never timed."""
        return token_ids

    @abstractmethod
    def submit(self, request_id: str, prompt: Any) -> Any:
        """Return a request for the prompt."""

    @abstractmethod
    def admit(self, request: Any) -> int:
        """Give the request all its blocks and return its hit in tokens. Raises `PeerError` if they do not fit."""

    @abstractmethod
    def decode(self, requests: Sequence[Any], token_id: int) -> None:
        """Do one step of all requests; each samples `token_id`."""

    def start_scheduling(self, requests: Sequence[Any]) -> Callable[[int], None]:
        """Admit the requests through the engine's own scheduler; return a step, whole: plan it and take its tokens in.

        Each request samples the token that the step is given. Raises `NoSuchWorkError` if the scheduler cannot run
        without a GPU.
        """
        raise NoSuchWorkError("its scheduler does not run without a GPU")

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
    path: Path | None = None
    """The checkout that it is imported from, or `None` if it is installed."""

    @abstractmethod
    def cache(self, num_blocks: int, block_size: int) -> Cache:
        """Return an empty cache with prefix caching on; `num_blocks` counts the null block, if there is one."""

    @abstractmethod
    def pool(self, num_blocks: int) -> Any:
        """Return the object that holds the idle blocks and nothing else, to measure its size."""

    @abstractmethod
    def hasher(self, function: str, block_size: int, token_ids: list[int]) -> Callable[[], int]:
        """Return a call that hashes all full blocks of the prompt and returns how many these are.

        `function` is ours: `sha256` or `xxh3_128`. The peer uses the nearest that it has.
        """

    @abstractmethod
    def namer(self, block_size: int) -> Callable[[str, list[int]], int]:
        """Return a call that makes a request of a prompt and names its full blocks; it returns how many these are.

        What a user pays: whatever the engine checks is inside. The names are SHA-256 where the engine has it.
        """

    def hybrid_cache(self, num_blocks: int, block_size: int, num_groups: int, sliding_window: int) -> Cache:
        """Return an empty cache with one group of full attention and `num_groups - 1` of windows."""
        raise NoSuchWorkError("it has one group of layers")

"""Managers that keep the contract of lab-15 and differ in what it leaves free. A check that accuses one is wrong."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any

from mini_kv.core.block import BlockHashWithGroupId, KVCacheBlock
from mini_kv.core.block_hash import HashFunction, RequestBlockHasher, get_request_block_hasher, sha256
from mini_kv.core.block_pool import BlockHashToBlockMap
from mini_kv.core.free_blocks import FreeBlocks
from mini_kv.core.free_queue import FreeKVCacheBlockQueue
from mini_kv.core.request import LoRARequest, Request
from mini_kv.course.given.faulty_queues import PlainQueue
from mini_kv.course.given.small_manager import make_manager
from mini_kv.course.given.subjects import Correct
from mini_kv.course.labkit.naive import NaiveCache


class HighestFirst(FreeKVCacheBlockQueue):
    """Hands out the blocks of a new pool from the highest id down."""

    def __init__(self, blocks: Sequence[KVCacheBlock]) -> None:
        super().__init__(blocks[::-1])


class NeverUsedFirst(FreeKVCacheBlockQueue):
    """Hands out blocks without a block hash in the order in which they were freed, the never used ones first."""

    def prepend_n(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Put the blocks after the other blocks without a block hash, and before the cached ones."""
        super().prepend_n([*take_uncached(self), *blocks])


class Shuffled(FreeKVCacheBlockQueue):
    """Hands out blocks without a block hash in a random order."""

    def __init__(self, blocks: Sequence[KVCacheBlock], seed: int = 0) -> None:
        self._chance = random.Random(seed)
        super().__init__(self._chance.sample(list(blocks), len(blocks)))

    def prepend_n(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Shuffle the blocks together with the other free blocks without a block hash, and put all of them in front."""
        uncached = [*blocks, *take_uncached(self)]
        super().prepend_n(self._chance.sample(uncached, len(uncached)))


def take_uncached(queue: FreeBlocks) -> list[KVCacheBlock]:
    """Remove and return the blocks without a block hash, which are at the front of the queue."""
    return queue.popleft_n(sum(block.block_hash is None for block in queue.get_all_free_blocks()))


class NewestTwin(BlockHashToBlockMap):
    """Finds the newest of several blocks with one key."""

    def get_one_block(self, key: BlockHashWithGroupId) -> KVCacheBlock | None:
        """Return the block that was entered last."""
        found = self._blocks.get(key)
        return list(found.values())[-1] if isinstance(found, dict) else found


@dataclass(frozen=True, slots=True)
class PlainBlocks:
    """Block ids of one request."""

    ids: list[int]

    def get_block_ids(self) -> tuple[list[int]]:
        """Return the ids, in a tuple with one list."""
        return (self.ids,)


class PlainManager:
    """A manager without block hashes, reference counts and blocks. It compares the tokens themselves."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self._cache = NaiveCache(num_blocks, block_size)
        self._numbers: dict[tuple[str | None, LoRARequest | None, int], int] = {}
        self._next = count()

    @property
    def block_pool(self) -> "PlainManager":
        """The manager is its own pool."""
        return self

    @property
    def num_free_blocks(self) -> int:
        """Number of blocks that are in no table."""
        return len(self._cache.free_queue)

    def new_request(self, request_id: str, token_ids: Sequence[int], **identity: Any) -> Request:
        """Return a request without block hashes."""
        return Request(request_id, token_ids, **identity)

    def get_computed_blocks(self, request: Request) -> tuple[PlainBlocks, int]:
        """Return the longest cached prefix."""
        hit = self._cache.hit(self._tokens_of(request))
        return PlainBlocks(hit), len(hit) * self._cache.block_size

    def allocate_slots(
        self,
        request: Request,
        num_new_tokens: int,
        num_new_computed_tokens: int = 0,
        new_computed_blocks: PlainBlocks | None = None,
        num_lookahead_tokens: int = 0,
    ) -> PlainBlocks | None:
        """Allocate slots as the contract says."""
        num_tokens = request.num_computed_tokens + num_new_computed_tokens + num_new_tokens
        hit = new_computed_blocks.ids if new_computed_blocks is not None else []
        tokens = self._tokens_of(request)[:num_tokens]
        new = self._cache.allocate(request.request_id, tokens, hit, num_tokens + num_lookahead_tokens)
        return None if new is None else PlainBlocks(new)

    def free(self, request: Request) -> None:
        """Drop the request's table."""
        self._cache.leave(request.request_id)

    def get_block_ids(self, request_id: str) -> tuple[list[int]]:
        """Return the ids in the request's table."""
        return (list(self._cache.tables.get(request_id, [])),)

    def _tokens_of(self, request: Request) -> list[int]:
        """Return a number per token, which is different for each salt and each adapter."""
        whole = [(request.cache_salt, request.lora_request, token) for token in request.token_ids]
        return [self._numbers.setdefault(key, next(self._next)) for key in whole]


def other_hashes(block_size: int, hash_function: HashFunction = sha256, *_namespace: Any) -> RequestBlockHasher:
    """Return a hasher that is right, and whose hashes are not the engine's: each digest is reversed."""
    return get_request_block_hasher(block_size, lambda data: hash_function(data)[::-1])


CORRECT = (
    Correct("the engine's own", make_manager),
    Correct(
        "the blocks of a new pool are allocated from the highest id down",
        partial(make_manager, make_queue=HighestFirst),
    ),
    Correct(
        "of the blocks that are not cached, those never used are allocated first",
        partial(make_manager, make_queue=NeverUsedFirst),
    ),
    Correct("another hash function", partial(make_manager, make_block_hasher=other_hashes)),
    Correct("of two equal blocks the newer one is found", partial(make_manager, make_index=NewestTwin)),
    Correct("the free queue is a plain list", partial(make_manager, make_queue=PlainQueue)),
    Correct("no hashes, no counts: it compares the tokens", PlainManager),
)
"""The correct managers of the lab. The first is the one with which a faulty one is compared."""


def shuffled(seed: int) -> Correct:
    """Return a correct manager that allocates blocks without a block hash in a random order."""
    title = f"blocks that are not cached are allocated in a random order, seed {seed}"
    return Correct(title, partial(make_manager, make_queue=partial(Shuffled, seed=seed)))

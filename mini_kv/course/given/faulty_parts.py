"""Parts of the engine with one fault each. The first line of each part is the fault. Reading them is reading answers.

`faulty_managers` has the rule that each of them breaks, and the public reports.
"""

import random
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from mini_kv.core.block import BlockHash, BlockHashWithGroupId, KVCacheBlock
from mini_kv.core.block_hash import (
    HashFunction,
    RequestBlockHasher,
    generate_block_hash_extra_keys,
    get_request_block_hasher,
    hash_block_tokens,
    make_block_hash_with_group_id,
    root_block_hash,
    sha256,
)
from mini_kv.core.block_pool import BlockHashToBlockMap, BlockPool
from mini_kv.core.free_queue import FreeKVCacheBlockQueue
from mini_kv.core.kv_cache_coordinator import MANAGER_CLASSES, HybridKVCacheCoordinator
from mini_kv.core.kv_cache_interface import FullAttentionSpec
from mini_kv.core.kv_cache_manager import KVCacheBlocks, KVCacheManager
from mini_kv.core.request import LoRARequest, Request
from mini_kv.core.sched.scheduler import Scheduler
from mini_kv.core.sched.step import Step
from mini_kv.core.single_type_kv_cache_manager import FullAttentionManager, cdiv

# Sharing ------------------------------------------------------------------------------------------------------------


class HitsTheLastToken(FullAttentionManager):
    """Finds a prompt's last token in the cache, too."""

    def find_longest_cache_hit(self, block_hashes: Sequence[BlockHash], max_length: int) -> list[KVCacheBlock]:
        """Return the longest hit of at most one token more than `max_length`."""
        return super().find_longest_cache_hit(block_hashes, max_length + 1)


class HitsAfterAHole(FullAttentionManager):
    """Finds the blocks after a missing one, too."""

    def find_longest_cache_hit(self, block_hashes: Sequence[BlockHash], max_length: int) -> list[KVCacheBlock]:
        """Return all cached blocks of the prompt."""
        index = self.block_pool.cached_block_hash_to_block
        hashes = block_hashes[: max_length // self.block_size]
        found = [index.get_one_block(make_block_hash_with_group_id(block_hash, 0)) for block_hash in hashes]
        return [block for block in found if block is not None]


class AllOrNothing(FullAttentionManager):
    """The belief: a prompt that is cached only in part is a miss."""

    def find_longest_cache_hit(self, block_hashes: Sequence[BlockHash], max_length: int) -> list[KVCacheBlock]:
        """Return the hit if it is as long as it can be, else nothing."""
        hit = super().find_longest_cache_hit(block_hashes, max_length)
        is_whole = len(hit) == len(block_hashes[: max_length // self.block_size])
        return hit if is_whole else []


class CachesAtTheEnd(FullAttentionManager):
    """Enters the blocks of a request in the index when the request is freed."""

    def cache_blocks(self, request: Request, num_tokens: int) -> None:
        """Keep the request until it is freed."""
        self._pending = {**getattr(self, "_pending", {}), request.request_id: (request, num_tokens)}

    def free(self, request_id: str) -> None:
        """Cache the full blocks, then free the table."""
        super().cache_blocks(*self._pending.pop(request_id))
        super().free(request_id)


class CopiesTheHit(FullAttentionManager):
    """Starts a table with a new block in place of the first of the hit. Its KV was never computed."""

    def get_num_blocks_to_allocate(
        self, request_id: str, num_tokens: int, new_computed_blocks: Sequence[KVCacheBlock]
    ) -> int | None:
        """Return the missing blocks, the first of the hit included."""
        return super().get_num_blocks_to_allocate(request_id, num_tokens, new_computed_blocks[1:])

    def allocate_new_computed_blocks(self, request_id: str, new_computed_blocks: Sequence[KVCacheBlock]) -> None:
        """Take a new block, and the blocks of the hit after the first."""
        super().allocate_new_computed_blocks(request_id, new_computed_blocks[1:])
        self.req_to_blocks[request_id][:0] = self.block_pool.get_new_blocks(len(new_computed_blocks[:1]))
        self.num_cached_block[request_id] = len(new_computed_blocks)


# Slots --------------------------------------------------------------------------------------------------------------


class OneTokenLate(FullAttentionManager):
    """Takes a new block one token after the first token that has no slot."""

    def num_missing_blocks(self, num_tokens: int, num_held: int) -> int:
        """Return the missing blocks for one token less."""
        return super().num_missing_blocks(num_tokens - 1, num_held)

    def allocate_new_blocks(self, request_id: str, num_tokens: int) -> list[KVCacheBlock]:
        """Take the blocks for one token less."""
        return super().allocate_new_blocks(request_id, num_tokens - 1)


class OneTokenEarly(FullAttentionManager):
    """Takes a new block as soon as the last one is full."""

    def num_missing_blocks(self, num_tokens: int, num_held: int) -> int:
        """Return the missing blocks for one token more."""
        return super().num_missing_blocks(num_tokens + 1, num_held)

    def allocate_new_blocks(self, request_id: str, num_tokens: int) -> list[KVCacheBlock]:
        """Take the blocks for one token more."""
        return super().allocate_new_blocks(request_id, num_tokens + 1)


class CachesPartialBlocks(FullAttentionManager):
    """Enters a block in the index when its first token is computed."""

    def cache_blocks(self, request: Request, num_tokens: int) -> None:
        """Cache one block more than is full."""
        super().cache_blocks(request, cdiv(num_tokens, self.block_size) * self.block_size)


class IgnoresLookahead(KVCacheManager):
    """Gives no slots to tokens that may be proposed later."""

    def allocate_slots(self, request: Request, num_new_tokens: int, *args: Any, **options: Any) -> Any:
        """Allocate as the engine does, without lookahead."""
        return super().allocate_slots(request, num_new_tokens, *args[:2])


# Refusals -----------------------------------------------------------------------------------------------------------


class RevivesForNothing(FullAttentionManager):
    """Does not count the blocks of a hit that are free, although the request takes them."""

    def get_num_blocks_to_allocate(
        self, request_id: str, num_tokens: int, new_computed_blocks: Sequence[KVCacheBlock]
    ) -> int:
        """Return the new blocks alone."""
        held = [*self.req_to_blocks.get(request_id, ()), *new_computed_blocks]
        return max(self.num_missing_blocks(num_tokens, len(held)), 0)

    def cache_blocks(self, request: Request, num_tokens: int) -> None:
        """Cache as many blocks as the table has."""
        num_slots = len(self.req_to_blocks[request.request_id]) * self.block_size
        super().cache_blocks(request, min(num_tokens, num_slots))


class GivesWhatThereIs(BlockPool):
    """Returns fewer blocks than requested if too few are free."""

    def get_new_blocks(self, num_blocks: int) -> list[KVCacheBlock]:
        """Take at most the free blocks."""
        return super().get_new_blocks(min(num_blocks, self.num_free_blocks))


class KeepsTheHit(KVCacheManager):
    """A refused request keeps the references to the blocks of its hit."""

    def allocate_slots(self, request: Request, *args: Any, **options: Any) -> KVCacheBlocks | None:
        """Touch the hit before the answer is known."""
        new_blocks = super().allocate_slots(request, *args, **options)
        hit = args[2] if len(args) > 2 else None
        if new_blocks is None and hit is not None:
            self.block_pool.touch(hit.blocks[0])
        return new_blocks


class KeepsNewBlocks(KVCacheManager):
    """Takes block after block until there is none, and does not give them back."""

    def allocate_slots(self, request: Request, *args: Any, **options: Any) -> KVCacheBlocks | None:
        """Take the free blocks before the answer is known."""
        new_blocks = super().allocate_slots(request, *args, **options)
        if new_blocks is None:
            self.block_pool.get_new_blocks(self.block_pool.num_free_blocks)
        return new_blocks


class RefusesTheLastBlock(KVCacheManager):
    """Refuses a request that would take the last free block."""

    def allocate_slots(self, request: Request, *args: Any, **options: Any) -> KVCacheBlocks | None:
        """Allocate with one free block in reserve."""
        return super().allocate_slots(request, *args, **{**options, "reserved_blocks": 1})


class NeedsRoomForAll(KVCacheManager):
    """Refuses a request if its hit and its new blocks are more than the free blocks."""

    def allocate_slots(self, request: Request, *args: Any, **options: Any) -> KVCacheBlocks | None:
        """Allocate if every token of the request would have a new block."""
        if request.num_tokens > self.block_pool.num_free_blocks * self.block_size:
            return None
        return super().allocate_slots(request, *args, **options)


class CountsItsSteps(KVCacheManager):
    """Counts the tokens of a step as computed in `allocate_slots`."""

    def allocate_slots(self, request: Request, num_new_tokens: int, *args: Any, **options: Any) -> Any:
        """Allocate, and count the hit and the new tokens."""
        new_blocks = super().allocate_slots(request, num_new_tokens, *args, **options)
        if new_blocks is not None:
            request.num_computed_tokens += num_new_tokens + (args[0] if args else 0)
        return new_blocks


# Freeing ------------------------------------------------------------------------------------------------------------


class FreesFullBlocks(FullAttentionManager):
    """Frees only the cached blocks of a table. The partial block at its end leaks."""

    def free(self, request_id: str) -> None:
        """Free the blocks of a request, but not the last partial one."""
        del self.req_to_blocks[request_id][self.num_cached_block[request_id] :]
        super().free(request_id)


class OneHolder(BlockPool):
    """Does not count a second holder. The first that leaves frees the blocks of both."""

    def touch(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Add a reference to free blocks only."""
        super().touch([block for block in blocks if block.ref_cnt == 0])

    def free_blocks(self, ordered_blocks: Iterable[KVCacheBlock]) -> None:
        """Free the blocks that are in use."""
        super().free_blocks([block for block in ordered_blocks if block.ref_cnt > 0])


class KeepsSharedBlocks(FullAttentionManager):
    """A request frees the blocks that it allocated, but not those of its hit."""

    def allocate_new_computed_blocks(self, request_id: str, new_computed_blocks: Sequence[KVCacheBlock]) -> None:
        """Keep the length of the hit."""
        super().allocate_new_computed_blocks(request_id, new_computed_blocks)
        self._hits = {**getattr(self, "_hits", {}), request_id: len(new_computed_blocks)}

    def free(self, request_id: str) -> None:
        """Free the table without the hit."""
        del self.req_to_blocks[request_id][: self._hits.pop(request_id)]
        super().free(request_id)


class HandsOutTheNullBlock(BlockPool):
    """Puts the null block into the free queue, behind all others."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.null_block.is_null = False
        self.free_block_queue.append_n([self.null_block])


class ForgetsFreedBlocks(BlockPool):
    """Removes a block from the index as soon as no table contains it."""

    def free_blocks(self, ordered_blocks: Iterable[KVCacheBlock]) -> None:
        """Free the blocks, and forget the content of those that no table contains."""
        freed = list(ordered_blocks)
        super().free_blocks(freed)
        self.evict_blocks([block.block_id for block in freed if block.ref_cnt == 0])


class CountsTheNullBlock(BlockPool):
    """Counts the null block as free."""

    @property
    def num_free_blocks(self) -> int:
        """Number of free blocks, and one."""
        return super().num_free_blocks + 1


class CountsCachedAsUsed(BlockPool):
    """Does not count a cached block as free, although it can be taken."""

    @property
    def num_free_blocks(self) -> int:
        """Number of free blocks that are not cached."""
        return sum(block.block_hash is None for block in self.free_block_queue.get_all_free_blocks())


# Eviction -----------------------------------------------------------------------------------------------------------


class NeverForgets(BlockHashToBlockMap):
    """An index that keeps the entry of a block after its eviction."""

    def pop(self, key: BlockHashWithGroupId, block_id: int) -> KVCacheBlock | None:
        """Do nothing: the entry stays in the index."""
        return None


class TurnsTheList(FreeKVCacheBlockQueue):
    """The belief: a queue has to turn a list of freed blocks around. Then it is head first."""

    def append_n(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Append the blocks in reverse."""
        super().append_n(list(reversed(blocks)))


class AnyOrder(FreeKVCacheBlockQueue):
    """Blocks that are freed in one call have the same age. This queue takes them in any order."""

    def __init__(self, blocks: Sequence[KVCacheBlock], seed: int = 0) -> None:
        self._chance = random.Random(seed)
        super().__init__(blocks)

    def append_n(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Append the blocks in a random order."""
        super().append_n(self._chance.sample(list(blocks), len(blocks)))


class NewestFirst(FreeKVCacheBlockQueue):
    """Evicts the blocks that became free last."""

    def append_n(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Put the blocks in front, to be reused next."""
        self.prepend_n(blocks)


class ForgetsTwins(BlockHashToBlockMap):
    """Removes all blocks with a key when one of them is evicted."""

    def pop(self, key: BlockHashWithGroupId, block_id: int) -> KVCacheBlock | None:
        """Remove the key with all its blocks."""
        found = self._blocks.pop(key, None)
        return next(iter(found.values())) if isinstance(found, dict) else found


class UselessLast(FreeKVCacheBlockQueue):
    """Puts blocks without a block hash behind all others, so that cached blocks are evicted before them."""

    def prepend_n(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Append the blocks."""
        self.append_n(blocks)


class CachedFirst(FreeKVCacheBlockQueue):
    """Takes cached blocks before those that are not cached."""

    def append_n(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Put cached blocks at the front."""
        super().prepend_n(blocks)

    def prepend_n(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Put the others at the back."""
        super().append_n(blocks)


class KeepsItsOldHash(BlockPool):
    """Removes an evicted block from the index, but not the hash from the block. The block gets no other hash."""

    def _maybe_evict_cached_block(self, block: KVCacheBlock) -> bool:
        """Remove the index entry alone."""
        key = block.block_hash
        return key is not None and self.cached_block_hash_to_block.pop(key, block.block_id) is not None

    def cache_full_blocks(
        self,
        blocks: Sequence[KVCacheBlock],
        block_hashes: Sequence[BlockHash],
        num_cached_blocks: int,
        num_full_blocks: int,
        kv_cache_group_id: int = 0,
    ) -> None:
        """Cache the blocks that have no hash."""
        for place in range(num_cached_blocks, num_full_blocks):
            if blocks[place].block_hash is None:
                super().cache_full_blocks(blocks, block_hashes, place, place + 1, kv_cache_group_id)


# Identity -----------------------------------------------------------------------------------------------------------


class _Seen:
    """A request with some attributes in place of its own."""

    def __init__(self, request: Request, changed: dict[str, Any]) -> None:
        self._request, self._changed = request, changed

    def __getattr__(self, name: str) -> Any:
        return self._changed[name] if name in self._changed else getattr(self._request, name)


def _hashes_of(changed: Callable[[Request], dict[str, Any]], block_size: int, *namespace: Any) -> RequestBlockHasher:
    """Return the engine's hasher. It gets each request with these attributes changed."""
    hash_blocks = get_request_block_hasher(block_size, *namespace)

    def hasher(request: Request) -> list[BlockHash]:
        seen: Any = _Seen(request, changed(request))
        return hash_blocks(seen)

    return hasher


def hashes_without_salts(*args: Any) -> RequestBlockHasher:
    """Ignores the cache salt."""
    return _hashes_of(lambda request: {"cache_salt": None}, *args)


def hashes_without_adapters(*args: Any) -> RequestBlockHasher:
    """Ignores the adapter."""
    return _hashes_of(lambda request: {"lora_request": None}, *args)


def hashes_without_paths(*args: Any) -> RequestBlockHasher:
    """Ignores the path of an adapter, but not its name."""

    def only_the_name(request: Request) -> dict[str, Any]:
        adapter = request.lora_request
        return {"lora_request": None if adapter is None else LoRARequest(adapter.lora_name, "")}

    return _hashes_of(only_the_name, *args)


def _block_by_block(
    block_size: int,
    hash_function: HashFunction,
    inputs: Callable[[BlockHash, BlockHash, Sequence[int]], tuple[BlockHash, Sequence[int]]],
) -> RequestBlockHasher:
    """Return a hasher. `inputs` gets the root, the parent hash and a block's tokens, and returns what is hashed."""

    def hasher(request: Request) -> list[BlockHash]:
        root = root_block_hash(hash_function, request.cache_salt)
        hashes = list(request.block_hashes)
        for start in range(len(hashes) * block_size, request.num_tokens - block_size + 1, block_size):
            end = start + block_size
            parent, tokens = inputs(root, hashes[-1] if hashes else root, request.token_ids[start:end])
            extra_keys = generate_block_hash_extra_keys(request, start, end)
            hashes.append(hash_block_tokens(hash_function, parent, tokens, extra_keys))
        return hashes[len(request.block_hashes) :]

    return hasher


def hashes_without_parents(
    block_size: int, hash_function: HashFunction = sha256, *_namespace: Any
) -> RequestBlockHasher:
    """The belief: a block's own tokens determine its KV. Return a hasher that leaves the parent hash out."""
    return _block_by_block(block_size, hash_function, lambda root, _, tokens: (root, tokens))


def hashes_of_joined_tokens(
    block_size: int, hash_function: HashFunction = sha256, *_namespace: Any
) -> RequestBlockHasher:
    """Hashes the decimal digits of a block's tokens. The tokens 1 23 and 12 3 have the same digits."""
    return _block_by_block(
        block_size,
        hash_function,
        lambda _, parent, tokens: (parent, [int(digit) for digit in "".join(map(str, tokens))]),
    )


def hashes_of_sorted_tokens(
    block_size: int, hash_function: HashFunction = sha256, *_namespace: Any
) -> RequestBlockHasher:
    """Ignores the order of a block's tokens."""
    return _block_by_block(block_size, hash_function, lambda _, parent, tokens: (parent, sorted(tokens)))


# Counting, and several groups ---------------------------------------------------------------------------------------


class CountsAgain(KVCacheManager):
    """Counts a request each time that it is admitted, also after a preemption."""

    def _admit(self, request: Request, num_hit_tokens: int, hit: tuple[Sequence[KVCacheBlock], ...]) -> None:
        was_admitted = request.num_cached_tokens is not None
        super()._admit(request, num_hit_tokens, hit)
        if was_admitted:
            self.prefix_cache_stats.record(request.num_tokens, num_hit_tokens)


class GroupByGroup(HybridKVCacheCoordinator):
    """Gives a group its hit and its new blocks, then the next group its hit and its new blocks."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._hits: dict[str, Sequence[Sequence[KVCacheBlock]]] = {}

    def allocate_new_computed_blocks(
        self, request_id: str, new_computed_blocks: Sequence[Sequence[KVCacheBlock]]
    ) -> None:
        """Keep the hit. No group has touched it yet."""
        self._hits[request_id] = new_computed_blocks

    def allocate_new_blocks(self, request_id: str, num_tokens: int) -> tuple[list[KVCacheBlock], ...]:
        """Finish one group before the next."""
        hits = self._hits.pop(request_id, None)
        taken: list[list[KVCacheBlock]] = []
        for manager in self.single_type_managers:
            if hits is not None:
                manager.allocate_new_computed_blocks(request_id, hits[manager.kv_cache_group_id])
            taken.append(manager.allocate_new_blocks(request_id, num_tokens))
        return tuple(taken)


# A block that is freed twice ----------------------------------------------------------------------------------------


class CountsDownFirst(BlockPool):
    """Trusts its callers: first it counts all blocks down, then it frees those whose count is 0."""

    def free_blocks(self, ordered_blocks: Iterable[KVCacheBlock]) -> None:
        """Free the blocks. One that is listed twice is counted down twice, and is freed twice."""
        blocks = [block for block in ordered_blocks if not block.is_null]
        for block in blocks:
            block.ref_cnt -= 1
        free = [block for block in blocks if block.ref_cnt == 0]
        self.free_block_queue.prepend_n([block for block in free if block.block_hash is None])
        self.free_block_queue.append_n([block for block in free if block.block_hash is not None])


class ListsABlockTwice(FullAttentionManager):
    """The caller's mistake: the first block of a table is twice in the list that it frees."""

    def free(self, request_id: str) -> None:
        """Free the table, with its first block listed twice."""
        self.req_to_blocks[request_id].insert(0, self.req_to_blocks[request_id][0])
        super().free(request_id)


class TrustingQueue(FreeKVCacheBlockQueue):
    """A queue that does not check whether a block is in it already."""

    def append_n(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Append the blocks. One that is listed twice is counted twice."""
        super().append_n(list(dict.fromkeys(blocks)))
        self.num_free_blocks += len(blocks) - len(set(blocks))


FREED_TWICE: dict[str, Any] = {
    "make_pool": CountsDownFirst,
    "make_queue": TrustingQueue,
    "manager_classes": {**MANAGER_CLASSES, FullAttentionSpec: ListsABlockTwice},
}
"""The parts of an engine in which a block is freed twice, and no part notices."""

# Scheduling ---------------------------------------------------------------------------------------------------------


class LetsTheNextPass(Scheduler):
    """The belief: a request that does not fit should let the others pass."""

    def _schedule_waiting(self, step: Step) -> None:
        """Admit requests until one does not fit. It goes to the end of the line."""
        super()._schedule_waiting(step)
        if self.waiting:
            self.waiting.add_request(self.waiting.pop_request())

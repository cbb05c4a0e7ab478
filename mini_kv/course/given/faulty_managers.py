"""The faulty managers of lab-15. Reading this file is reading the lab's answers.

Each is the engine's manager with one faulty part in place of the engine's own, and breaks one sentence of the contract.
Some have a fault that a public project reported. The others are plausible faults without a public report.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from mini_kv.core.block import BlockHash, BlockHashWithGroupId, KVCacheBlock
from mini_kv.core.block_hash import RequestBlockHasher, get_request_block_hasher, sha256
from mini_kv.core.block_pool import BlockHashToBlockMap, BlockPool
from mini_kv.core.free_queue import FreeKVCacheBlockQueue
from mini_kv.core.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from mini_kv.core.kv_cache_manager import KVCacheBlocks, KVCacheManager
from mini_kv.core.parts import KVCacheParts
from mini_kv.core.request import LoRARequest, Request
from mini_kv.core.single_type_kv_cache_manager import FullAttentionManager, cdiv


def make_manager(
    num_blocks: int,
    block_size: int,
    make: Callable[..., KVCacheManager] = KVCacheManager,
    tables: type[FullAttentionManager] = FullAttentionManager,
    **parts: Any,
) -> KVCacheManager:
    """Return a manager of one group of full attention with replaced parts. `tables` manages the block tables."""
    group = KVCacheGroupSpec(("layers",), FullAttentionSpec(block_size))
    all_parts = KVCacheParts(**{"manager_classes": {FullAttentionSpec: tables}, **parts})
    return make(KVCacheConfig(num_blocks, (group,)), parts=all_parts)


# Sharing ------------------------------------------------------------------------------------------------------------


class HitsTheLastToken(FullAttentionManager):
    """Finds a prompt's last token in the cache, too."""

    def find_longest_cache_hit(self, block_hashes: Sequence[BlockHash], max_length: int) -> list[KVCacheBlock]:
        """Return the longest hit of at most one token more than `max_length`."""
        return super().find_longest_cache_hit(block_hashes, max_length + 1)


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


# Freeing ------------------------------------------------------------------------------------------------------------


class FreesFullBlocks(FullAttentionManager):
    """Frees only the full blocks of a table. The partial block at its end leaks."""

    def free(self, request_id: str) -> None:
        """Free the blocks that are in the index."""
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


# Eviction -----------------------------------------------------------------------------------------------------------


class NeverForgets(BlockHashToBlockMap):
    """An index that keeps the entry of a block after its eviction."""

    def pop(self, key: BlockHashWithGroupId, block_id: int) -> KVCacheBlock | None:
        """Do nothing: the entry stays in the index."""
        return None


class HeadFirst(FreeKVCacheBlockQueue):
    """Evicts the first block of a prompt before its last one."""

    def append_n(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Append the blocks in the order of the table."""
        super().append_n(blocks[::-1])


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


class _Plain:
    """A request without the inputs that some hashers ignore. A hasher reads no other attributes."""

    def __init__(
        self, request: Request, *, cache_salt: bool = True, lora_request: bool = True, lora_path: bool = True
    ) -> None:
        self.block_hashes = request.block_hashes
        self.num_tokens = request.num_tokens
        self.token_ids = request.token_ids
        self.mm_features = request.mm_features
        self.cache_salt = request.cache_salt if cache_salt else None
        self.lora_request = request.lora_request if lora_request else None
        if self.lora_request is not None and not lora_path:
            self.lora_request = LoRARequest(self.lora_request.lora_name, "")


def _ignoring(block_size: int, *args: Any, **kept: bool) -> RequestBlockHasher:
    hash_blocks: Any = get_request_block_hasher(block_size, *args)
    return lambda request: hash_blocks(_Plain(request, **kept))


def _hash_of(request: Request, parent: bytes, content: str) -> BlockHash:
    identity = f"{request.cache_salt!r} {request.lora_request!r} {content}"
    return BlockHash(sha256(parent + identity.encode()))


def _without_parent(block_size: int, *args: Any) -> RequestBlockHasher:
    def hasher(request: Request) -> list[BlockHash]:
        starts = range(len(request.block_hashes) * block_size, request.num_tokens - block_size + 1, block_size)
        return [_hash_of(request, b"", f"{list(request.token_ids[start : start + block_size])}") for start in starts]

    return hasher


def _joined(block_size: int, *args: Any) -> RequestBlockHasher:
    def hasher(request: Request) -> list[BlockHash]:
        hashes = list(request.block_hashes)
        for start in range(len(hashes) * block_size, request.num_tokens - block_size + 1, block_size):
            tokens = request.token_ids[start : start + block_size]
            hashes.append(_hash_of(request, hashes[-1] if hashes else b"", "".join(map(str, tokens))))
        return hashes[len(request.block_hashes) :]

    return hasher


@dataclass(frozen=True, slots=True)
class Suspect:
    """A faulty manager."""

    check: str
    """The check whose part of the contract it breaks."""
    make: Callable[[int, int], Any]
    """Makes it, of `num_blocks` blocks of `block_size` tokens."""
    breaks: str
    """The sentence of the contract that it breaks."""
    seen: str = ""
    """The public report of such a fault, if there is one."""
    ask: str = ""
    """A question for a learner whose check misses it."""
    number: int = 0

    @property
    def name(self) -> str:
        """Its number of all, as a learner reads it."""
        return f"manager {self.number} of {len(SUSPECTS)}"


def _part(**parts: Any) -> Callable[[int, int], KVCacheManager]:
    return partial(make_manager, **parts)


_ALL = (
    Suspect(
        "check_sharing",
        _part(tables=HitsTheLastToken),
        "A hit has at most `num_tokens - 1` tokens, because the last token is always computed.",
        seen="nano-vllm #144",
        ask="which hit does your check assert for a cached prompt that ends with a full block?",
    ),
    Suspect(
        "check_sharing",
        _part(tables=CachesAtTheEnd),
        "A full block can be found as soon as `allocate_slots` has returned, while its request still runs.",
        ask="does your check look up a prompt while its first request still runs?",
    ),
    Suspect(
        "check_sharing",
        _part(tables=CopiesTheHit),
        "A request's table begins with the blocks of its hit: two requests have the same ids there.",
        ask="does your check compare the block ids of two requests?",
    ),
    Suspect(
        "check_slots",
        _part(tables=OneTokenLate),
        "Every computed token has a slot: a table has at least `num_tokens / block_size` blocks, rounded up.",
        seen="MinivLLM #75",
        ask="does your check fail if a table has a block too few, at the first token of a block?",
    ),
    Suspect(
        "check_slots",
        _part(tables=OneTokenEarly),
        "A table has no block more than its slots need: a new block is taken for its first token.",
        seen="nano-vllm #150",
        ask="does your check fail if a table has a block more than its slots need?",
    ),
    Suspect(
        "check_slots",
        _part(tables=CachesPartialBlocks),
        "A block can be found only if all its tokens are computed, or are computed in this step.",
        ask="does your check look up a prompt after only a part of it was computed?",
    ),
    Suspect(
        "check_slots",
        _part(make=IgnoresLookahead),
        "Lookahead tokens get slots.",
        ask="does your check pass `num_lookahead_tokens`?",
    ),
    Suspect(
        "check_refusals",
        _part(tables=RevivesForNothing, make_pool=GivesWhatThereIs),
        "A request is refused if too few blocks are free. Free blocks of its hit count as taken.",
        seen="ATOM #902",
        ask="does a request in your check have a hit on free blocks, and need one block more than are free?",
    ),
    Suspect(
        "check_refusals",
        _part(make=KeepsTheHit),
        "A refusal changes nothing: the blocks of the hit are as free as before.",
        ask="what does your check assert after a refusal of a request with a hit?",
    ),
    Suspect(
        "check_refusals",
        _part(make=KeepsNewBlocks),
        "A refusal changes nothing: the free blocks are as many as before.",
        ask="what does your check assert after a refusal?",
    ),
    Suspect(
        "check_refusals",
        _part(make=RefusesTheLastBlock),
        "A request is not refused if exactly enough blocks are free.",
        ask="does a request in your check need exactly as many blocks as are free?",
    ),
    Suspect(
        "check_freeing",
        _part(tables=FreesFullBlocks),
        "After `free` all blocks of the request that no other table has are free, also the partial one.",
        seen="imp #1115",
        ask="does your check count the free blocks after `free` of a request with a partial block?",
    ),
    Suspect(
        "check_freeing",
        _part(make_pool=OneHolder),
        "A block is free only if no table has it: the second holder keeps it when the first one leaves.",
        ask="what can a third request get while only one of two holders was freed?",
    ),
    Suspect(
        "check_freeing",
        _part(tables=KeepsSharedBlocks),
        "After `free` of the last holder a shared block is free.",
        ask="does your check count the free blocks after both holders of a block were freed?",
    ),
    Suspect(
        "check_freeing",
        _part(make_pool=HandsOutTheNullBlock),
        "Block 0 is in no table, and is never counted as free.",
        ask="do you assert the free blocks of an empty pool, by your own count?",
    ),
    Suspect(
        "check_eviction",
        _part(make_index=NeverForgets),
        "A block that was allocated again cannot be found by its old tokens.",
        seen="nano-vllm #163, vllm #4764",
        ask="does your check look up a prompt whose blocks others have taken since?",
    ),
    Suspect(
        "check_eviction",
        _part(make_queue=HeadFirst),
        "Of a freed request's cached blocks the last one is evicted first.",
        seen="llm-d-inference-sim #704",
        ask="does your check look up a prompt of which one block was evicted?",
    ),
    Suspect(
        "check_eviction",
        _part(make_queue=NewestFirst),
        "The cached blocks that were freed first are evicted first.",
        ask="are two prompts freed, one after the other, before a block is evicted?",
    ),
    Suspect(
        "check_eviction",
        _part(make_index=ForgetsTwins),
        "If two blocks have the same content and one is evicted, the other can still be found.",
        seen="kvcached #402",
        ask="are two blocks with the same content in your check, and is one of them evicted?",
    ),
    Suspect(
        "check_eviction",
        _part(make_queue=UselessLast),
        "Free blocks that are not cached are allocated before cached ones.",
        ask="is a block free that was never full, when another one is allocated?",
    ),
    Suspect(
        "check_eviction",
        _part(make_pool=KeepsItsOldHash),
        "A block that was allocated again can be found by its new tokens, once it is full.",
        seen="kvcached #362",
        ask="does your check look up the new content of a block that was evicted before?",
    ),
    Suspect(
        "check_identity",
        _part(make_block_hasher=partial(_ignoring, cache_salt=False)),
        "Requests with different salts share nothing.",
        seen="imp #1860",
        ask="does your check look up a prompt with another salt than the one that cached it?",
    ),
    Suspect(
        "check_identity",
        _part(make_block_hasher=partial(_ignoring, lora_request=False)),
        "Requests with different adapters share nothing.",
        ask="does your check look up a prompt with another adapter than the one that cached it?",
    ),
    Suspect(
        "check_identity",
        _part(make_block_hasher=_without_parent),
        "A block is found only after the same tokens: all tokens before it count.",
        ask="does your check look up a second block after another first block?",
    ),
    Suspect(
        "check_identity",
        _part(make_block_hasher=_joined),
        "Blocks with different tokens are different, however their tokens are written down.",
        ask="does your check look up other tokens that give the same text if they are joined?",
    ),
    Suspect(
        "check_identity",
        _part(make_block_hasher=partial(_ignoring, lora_path=False)),
        "Adapters with one name and different paths are different adapters.",
        ask="does your check look up a prompt with an adapter of the same name from another path?",
    ),
)
SUSPECTS = tuple(replace(suspect, number=number) for number, suspect in enumerate(_ALL, start=1))
"""All suspects, by area."""

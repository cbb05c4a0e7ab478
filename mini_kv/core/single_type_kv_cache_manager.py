"""The block tables of one group of layers, and the rules of its kind of attention.

The kinds differ in one number: the tokens so far that no later token reads. Whole blocks of such tokens are freed while
the request runs. A null block takes their place, so that the positions in the table are unchanged:

    window of 4, blocks of 2, 9 tokens computed     [ null  null  null  b3  b4 ]      tokens 6, 7, 8 are still read
                                                      0 1   2 3   4 5   6 7  8 .

The same number defines a hit: all blocks that the next token reads must be cached. Blocks to their left need not be.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from mini_kv.core.block import BlockHash, KVCacheBlock
from mini_kv.core.block_hash import make_block_hash_with_group_id, make_block_hashes_with_group_id
from mini_kv.core.block_hash_list import BlockHashListWithBlockSize
from mini_kv.core.block_pool import BlockPool
from mini_kv.core.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    KVCacheSpec,
    SlidingWindowSpec,
)
from mini_kv.core.request import Request


def cdiv(a: int, b: int) -> int:
    """Return `a / b` rounded up: the number of blocks of `b` tokens for `a` tokens."""
    return -(-a // b)


def num_blocks_to_revive(new_computed_blocks: Sequence[KVCacheBlock]) -> int:
    """Return the number of blocks of a hit that are in the free queue."""
    return sum(block.ref_cnt == 0 and not block.is_null for block in new_computed_blocks)


class SingleTypeKVCacheManager(ABC):
    """The block tables of one group: lookup, growth, freeing. Subclasses define the tokens that no later token reads.

    Source: vLLM `SingleTypeKVCacheManager` (v1/core/single_type_kv_cache_manager.py).
    """

    def __init__(
        self,
        kv_cache_spec: KVCacheSpec,
        block_pool: BlockPool,
        kv_cache_group_id: int,
        *,
        hash_block_size: int | None = None,
        cache_hit_alignment_tokens: int | None = None,
        retention_interval: int | None = None,
        promised: set[int] | None = None,
    ) -> None:
        """Start without tables.

        Args:
            kv_cache_spec: the layers' kind and the block size.
            block_pool: shared by all groups.
            kv_cache_group_id: index of the group, which is part of its entries in the index.
            hash_block_size: tokens per hash in `Request.block_hashes`. It is less than `block_size` if another group
                has smaller blocks.
            cache_hit_alignment_tokens: hits end on multiples of this. It is more than `block_size` if another group
                has larger blocks.
            retention_interval: see `KVCacheConfig.prefix_cache_retention_interval`.
            promised: see `KVCacheCoordinator.promised`. All groups share it.
        """
        self.kv_cache_spec = kv_cache_spec
        self.block_size = kv_cache_spec.block_size
        self.block_pool = block_pool
        self.kv_cache_group_id = kv_cache_group_id
        self.hash_block_size = hash_block_size or self.block_size
        self.cache_hit_alignment_tokens = cache_hit_alignment_tokens or self.block_size
        self.retention_interval = retention_interval
        self.promised = set() if promised is None else promised
        self.use_eagle = False
        """Whether a hit drops its last block: see `KVCacheGroupSpec.is_eagle_group`."""
        self.req_to_blocks: dict[str, list[KVCacheBlock]] = {}
        """The block table of each admitted request."""
        self.num_cached_block: dict[str, int] = {}
        """Number of blocks of each table, from its head, that have been entered in the index."""
        self.num_skipped_block: dict[str, int] = {}
        """Number of blocks of each table, from its head, that have been freed. Absent while there are none."""
        self.forked: dict[str, bool] = {}
        """Requests that share full blocks without a hash, as a fork or its parent. Each may cache these blocks."""

    @abstractmethod
    def get_num_skipped_tokens(self, num_computed_tokens: int) -> int:
        """Return the number of first tokens that no token from `num_computed_tokens` on reads."""

    @property
    def num_blocks_of_hit(self) -> int | None:
        """Number of blocks before its end that a hit needs. `None` means all, so that every block gets a hash."""
        return None

    @property
    def num_dropped_blocks(self) -> int:
        """Number of blocks at the end of a cached prefix that a hit leaves out: 1 for a drafter's layers, else 0.

        A drafter's KV of a token depends on the next token too. So the last block has to be computed again.
        """
        return int(self.use_eagle)

    @property
    def blocks_per_boundary(self) -> int:
        """Number of this group's blocks between two places where a hit can end."""
        return self.cache_hit_alignment_tokens // self.block_size

    def hashes_per_block(self, block_hashes: Sequence[BlockHash]) -> Sequence[BlockHash]:
        """Return the hashes at this group's block size: every k-th of these, k = block_size / hash_block_size."""
        if self.hash_block_size == self.block_size:
            return block_hashes
        return BlockHashListWithBlockSize(block_hashes, self.hash_block_size, self.block_size)

    def find_longest_cache_hit(self, block_hashes: Sequence[BlockHash], max_length: int) -> list[KVCacheBlock]:
        """Return the blocks of the longest hit of at most `max_length` tokens, nulls on the left. Changes nothing.

            window of 4, blocks of 2        a  b  c  d  e          hashes of the prompt's blocks
            cached                          a  -  c  d  -
            asked from the right            e: no.  d, c: yes.     returns null null c d: b is not read again

        Goes from right to left. A missing block rules out every hit whose end is after it and within a window of it.
        So the next hit to try ends before that block, and no block is looked up twice.
        """
        index = self.block_pool.cached_block_hash_to_block
        step = self.blocks_per_boundary
        num_dropped = self.num_dropped_blocks
        num_blocks = (min(max_length // self.block_size, len(block_hashes)) - num_dropped) // step * step
        while num_blocks > 0:
            first = self.get_num_skipped_tokens(num_blocks * self.block_size) // self.block_size
            hit: list[KVCacheBlock] = []
            for position in range(num_blocks + num_dropped - 1, first - 1, -1):
                key = make_block_hash_with_group_id(block_hashes[position], self.kv_cache_group_id)
                found = index.get_one_block(key)
                if found is None:
                    num_blocks = (position - num_dropped) // step * step
                    break
                hit.append(found)
            else:
                return [self.block_pool.null_block] * first + hit[num_dropped:][::-1]
        return []

    def get_num_blocks_to_allocate(
        self, request_id: str, num_tokens: int, new_computed_blocks: Sequence[KVCacheBlock]
    ) -> int | None:
        """Return the number of free blocks needed for the request's slots up to `num_tokens` tokens.

        A free block of the hit counts too: it needs no new memory, but it is removed from the free queue.
        `None` means "not in this step": the hit of a layer with states is still being computed (`MambaManager`).
        """
        num_held = len(self.req_to_blocks.get(request_id, ()))
        num_new = self.num_missing_blocks(num_tokens, num_held + len(new_computed_blocks))
        return max(num_new, 0) + num_blocks_to_revive(new_computed_blocks)

    def get_max_num_blocks_to_allocate(
        self, num_tokens: int, new_computed_blocks: Sequence[KVCacheBlock], max_in_flight_tokens: int
    ) -> int:
        """Return the most free blocks that a new request takes at any time until it has `num_tokens` tokens.

        A step computes at most `max_in_flight_tokens` of its tokens, and blocks that are no longer read are freed.
        So the result is the spec's bound minus the blocks of the hit.
        """
        bound = self.kv_cache_spec.max_admission_blocks_per_request(max_in_flight_tokens, num_tokens)
        num_missing = cdiv(num_tokens, self.block_size) - len(new_computed_blocks)
        num_new = min(num_missing, bound - sum(not block.is_null for block in new_computed_blocks))
        return max(num_new, 0) + num_blocks_to_revive(new_computed_blocks)

    def num_missing_blocks(self, num_tokens: int, num_held: int) -> int:
        """Return the number of blocks that a table of `num_held` lacks for `num_tokens` tokens, 0 or less if none."""
        return cdiv(num_tokens, self.block_size) - num_held

    def allocate_new_computed_blocks(self, request_id: str, new_computed_blocks: Sequence[KVCacheBlock]) -> None:
        """Start the request's table with the blocks of its hit, and add a reference to each."""
        self.block_pool.touch(new_computed_blocks)
        self.req_to_blocks[request_id] = list(new_computed_blocks)
        self.num_cached_block[request_id] = len(new_computed_blocks)

    def allocate_new_blocks(self, request_id: str, num_tokens: int) -> list[KVCacheBlock]:
        """Add the new blocks that the table needs for `num_tokens` tokens, and return them."""
        table = self.req_to_blocks[request_id]
        num_new = cdiv(num_tokens, self.block_size) - len(table)
        if num_new <= 0:
            return []
        new_blocks = self.block_pool.get_new_blocks(num_new)
        table += new_blocks
        return new_blocks

    def get_skipped_blocks(self, request_id: str, num_computed_tokens: int) -> list[KVCacheBlock]:
        """Return the blocks that the request can free now, the last first."""
        start = self.num_skipped_block.get(request_id, 0)
        end = self.get_num_skipped_tokens(num_computed_tokens) // self.block_size
        table = self.req_to_blocks.get(request_id, [])
        return [block for block in reversed(table[start:end]) if not block.is_null]

    def remove_skipped_blocks(self, request_id: str, num_computed_tokens: int) -> None:
        """Free the blocks that no later token reads, and put the null block in their places.

            window of 4, blocks of 2
            6 tokens computed       [ null  b1   b2  b3 ]       token 6 reads from token 3 on, which is in b1
            7 tokens computed       [ null null  b2  b3 ]       b1 is free; if it has a key, it can still be hit

        They are freed last first, as in `free`, because prompts share early blocks more often than late ones.
        """
        table = self.req_to_blocks.get(request_id, [])
        start = self.num_skipped_block.get(request_id, 0)
        end = min(self.get_num_skipped_tokens(num_computed_tokens) // self.block_size, len(table))
        if start < end:
            self.block_pool.free_blocks(self.get_skipped_blocks(request_id, num_computed_tokens))
            table[start:end] = [self.block_pool.null_block] * (end - start)
            self.num_skipped_block[request_id] = end

    def cache_blocks(self, request: Request, num_tokens: int) -> None:
        """Enter the blocks that the first `num_tokens` tokens fill in the index: a promise until their step has run.

        Stops at the last place where a hit can end: no lookup would find a block after it.
        """
        num_cached = self.num_cached_block[request.request_id]
        num_full = min(num_tokens // self.block_size, len(request.block_hashes))
        if num_full <= num_cached:
            return
        hashes = self.hashes_per_block(request.block_hashes)
        num_hashed = min(num_full, len(hashes))
        num_full = num_hashed // self.blocks_per_boundary * self.blocks_per_boundary
        if 0 < num_full < num_hashed:
            num_full += self.num_dropped_blocks  # found after a hit, and left out of it
        if num_full <= num_cached:
            return
        table = self.req_to_blocks[request.request_id]
        self.promised.update(block.block_id for block in table[num_cached:num_full] if block.block_hash is None)
        if self.retention_interval is None and request.request_id not in self.forked:
            self.block_pool.cache_full_blocks(table, hashes, num_cached, num_full, self.kv_cache_group_id)
        else:
            for position in range(num_cached, num_full):
                if self.is_retained(request, position) and not self._has_published(request, position):
                    self.block_pool.cache_full_blocks(table, hashes, position, position + 1, self.kv_cache_group_id)
        self.num_cached_block[request.request_id] = num_full

    def _has_published(self, request: Request, position: int) -> bool:
        """Return whether the request's block at `position` already has its key, from another request that shares it."""
        return (
            request.request_id in self.forked
            and self.req_to_blocks[request.request_id][position].block_hash is not None
        )

    def is_retained(self, request: Request, position: int) -> bool:
        """Return whether the request's block at `position` gets a key under the retention interval.

            window of 4, blocks of 2: a hit needs 2        position    0  1  2  3  4  5  6  7
            interval 0, prompt of 13 tokens                            -  -  -  -  k  k  -  -     before token 12
            interval 8                                                 -  -  k  k  k  k  k  k     and before each 8th

        The blocks that get a key are those of hits with these ends: the end of the prompt (minus its last token, which
        is always computed), the end of a prefix shared with other requests, a multiple of the interval.
        """
        num_needed = self.num_blocks_of_hit
        if num_needed is None or self.retention_interval is None:
            return True
        if self.retention_interval > 0:
            per_segment = self.retention_interval // self.block_size
            if position % per_segment >= per_segment - num_needed:
                return True
        alignment = self.cache_hit_alignment_tokens
        for boundary in (request.num_prompt_tokens - 1, request.shared_prefix_boundary):
            end = boundary // alignment * alignment // self.block_size
            if end - num_needed <= position < end:
                return True
        return False

    def fork(self, parent_id: str, child_id: str, num_computed_tokens: int) -> None:
        """Start the child's table with the parent's computed blocks, and add a reference to each, the last one too."""
        self.forked[parent_id] = self.forked[child_id] = True
        table = self.req_to_blocks[parent_id][: cdiv(num_computed_tokens, self.block_size)]
        self.block_pool.touch(table)
        self.req_to_blocks[child_id] = table
        self.num_cached_block[child_id] = min(self.num_cached_block[parent_id], num_computed_tokens // self.block_size)
        if parent_id in self.num_skipped_block:
            self.num_skipped_block[child_id] = self.num_skipped_block[parent_id]

    def partial_block(self, request_id: str, num_computed_tokens: int) -> KVCacheBlock | None:
        """Return the block of the next token's slot if it already has tokens, else `None`."""
        if num_computed_tokens % self.block_size == 0:
            return None
        return self.req_to_blocks[request_id][num_computed_tokens // self.block_size]

    def replace_partial_block(self, request_id: str, num_computed_tokens: int, block: KVCacheBlock) -> None:
        """Replace the block that contains the next token's slot."""
        self.req_to_blocks[request_id][num_computed_tokens // self.block_size] = block

    def withdraw_promises(self, request_id: str, num_computed_tokens: int) -> list[KVCacheBlock]:
        """Remove the keys of blocks that were entered in the index but are not computed. Return these blocks.

        table       [ computed          | promised          | without key ]
                    0    num_computed // block_size     num_cached_block
        """
        first = num_computed_tokens // self.block_size
        num_cached = self.num_cached_block[request_id]
        promised = [block for block in self.req_to_blocks[request_id][first:num_cached] if not block.is_null]
        self.block_pool.evict_blocks(block.block_id for block in promised)
        self.num_cached_block[request_id] = min(first, num_cached)
        return promised

    def free(self, request_id: str) -> None:
        """Delete the request's table and drop its references, tail first: its tail is reused before its head."""
        table = self.req_to_blocks[request_id]
        self.block_pool.free_blocks(reversed(table))
        del self.req_to_blocks[request_id]
        del self.num_cached_block[request_id]
        self.num_skipped_block.pop(request_id, None)
        self.forked.pop(request_id, None)

    def recover(self) -> None:
        """Remove all tables. The pool's counts are unchanged."""
        for kept in (self.req_to_blocks, self.num_cached_block, self.num_skipped_block, self.forked):
            kept.clear()


class FullAttentionManager(SingleTypeKVCacheManager):
    """Tables for layers in which every token attends to all tokens before it: no token is skipped.

    Source: vLLM `FullAttentionManager` (v1/core/single_type_kv_cache_manager.py).
    """

    def get_num_skipped_tokens(self, num_computed_tokens: int) -> int:
        """Return 0."""
        return 0

    def find_longest_cache_hit(self, block_hashes: Sequence[BlockHash], max_length: int) -> list[KVCacheBlock]:
        """Return the blocks of the longest cached prefix of at most `max_length` tokens. Changes nothing.

        Goes from left to right and stops at the first miss. A later block may be cached too, but the tokens before it
        would not be computed.
        """
        index = self.block_pool.cached_block_hash_to_block
        hit = []
        block_hashes = block_hashes[: max_length // self.block_size]
        for key in make_block_hashes_with_group_id(block_hashes, self.kv_cache_group_id):
            found = index.get_one_block(key)
            if found is None:
                break
            hit.append(found)
        return hit[:-1] if self.num_dropped_blocks else hit


class SlidingWindowManager(SingleTypeKVCacheManager):
    """Tables for layers in which a token attends to itself and the `sliding_window - 1` tokens before it.

    Source: vLLM `SlidingWindowManager`.
    """

    def __init__(self, kv_cache_spec: SlidingWindowSpec, *args: Any, **options: Any) -> None:
        super().__init__(kv_cache_spec, *args, **options)
        self.sliding_window = kv_cache_spec.sliding_window

    @property
    def num_blocks_of_hit(self) -> int:
        """Number of blocks before its end that a hit needs: those in the window of the first token after it."""
        return cdiv(self.sliding_window - 1, self.block_size)

    def get_num_skipped_tokens(self, num_computed_tokens: int) -> int:
        """Return the tokens left of the next token's window.

        window of 4     0 1 2 3 4 5 6 | 7        7 tokens are computed, token 7 is next
                                r r r   r        its window is itself and 3 more: 4 tokens are skipped
        """
        return max(0, num_computed_tokens - self.sliding_window + 1)


class ChunkedLocalAttentionManager(SingleTypeKVCacheManager):
    """Tables for layers in which a token attends to the tokens before it in its own chunk.

    Source: vLLM `ChunkedLocalAttentionManager`.
    """

    def __init__(self, kv_cache_spec: ChunkedLocalAttentionSpec, *args: Any, **options: Any) -> None:
        super().__init__(kv_cache_spec, *args, **options)
        self.attention_chunk_size = kv_cache_spec.attention_chunk_size

    def get_num_skipped_tokens(self, num_computed_tokens: int) -> int:
        """Return the tokens of all chunks before the next token's: with chunks of 8, 8 of 13 and 16 of 16."""
        return num_computed_tokens // self.attention_chunk_size * self.attention_chunk_size

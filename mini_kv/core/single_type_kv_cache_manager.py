"""The block tables of one group of layers, and the rules of its kind of attention."""

from collections.abc import Sequence

from mini_kv.core.block import BlockHash, KVCacheBlock
from mini_kv.core.block_hash import make_block_hash_with_group_id
from mini_kv.core.block_pool import BlockPool
from mini_kv.core.kv_cache_interface import FullAttentionSpec
from mini_kv.core.request import Request


def cdiv(a: int, b: int) -> int:
    """Return `a / b` rounded up: the number of blocks of `b` that hold `a` tokens."""
    return -(-a // b)


class FullAttentionManager:
    """Tables for layers in which every token attends to all tokens before it: nothing is ever skipped.

    Source: vLLM `SingleTypeKVCacheManager` and `FullAttentionManager` (v1/core/single_type_kv_cache_manager.py).
    """

    def __init__(self, kv_cache_spec: FullAttentionSpec, block_pool: BlockPool, kv_cache_group_id: int) -> None:
        self.block_size = kv_cache_spec.block_size
        self.block_pool = block_pool
        self.kv_cache_group_id = kv_cache_group_id
        self.req_to_blocks: dict[str, list[KVCacheBlock]] = {}
        """The block table of each admitted request."""
        self.num_cached_block: dict[str, int] = {}
        """How many blocks of each table, from its head, have been entered in the index."""

    def find_longest_cache_hit(self, block_hashes: Sequence[BlockHash], max_length: int) -> list[KVCacheBlock]:
        """Return the blocks of the longest cached prefix of at most `max_length` tokens. Changes nothing.

        Stops at the first miss: a later block may be cached too, but a request's progress is one number, and what
        stands before that block would be missing.
        """
        index = self.block_pool.cached_block_hash_to_block
        hit = []
        for block_hash in block_hashes[: max_length // self.block_size]:
            found = index.get_one_block(make_block_hash_with_group_id(block_hash, self.kv_cache_group_id))
            if found is None:
                break
            hit.append(found)
        return hit

    def get_num_blocks_to_allocate(
        self, request_id: str, num_tokens: int, new_computed_blocks: Sequence[KVCacheBlock]
    ) -> int:
        """Return how many free blocks it takes to give the request slots for `num_tokens` tokens.

        A hit that nobody holds counts too: it needs no new memory, but it leaves the free queue all the same.
        """
        num_held = len(self.req_to_blocks.get(request_id, ()))
        num_new = cdiv(num_tokens, self.block_size) - num_held - len(new_computed_blocks)
        num_revived = sum(block.ref_cnt == 0 and not block.is_null for block in new_computed_blocks)
        return max(num_new, 0) + num_revived

    def allocate_new_computed_blocks(self, request_id: str, new_computed_blocks: Sequence[KVCacheBlock]) -> None:
        """Start the request's table with the blocks of its hit, one reference more on each."""
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

    def cache_blocks(self, request: Request, num_tokens: int) -> None:
        """Enter the blocks that the first `num_tokens` tokens fill, and that have a name, in the index."""
        num_cached = self.num_cached_block[request.request_id]
        num_full = min(num_tokens // self.block_size, len(request.block_hashes))
        if num_full <= num_cached:
            return
        self.block_pool.cache_full_blocks(
            self.req_to_blocks[request.request_id],
            request.block_hashes,
            num_cached_blocks=num_cached,
            num_full_blocks=num_full,
            kv_cache_group_id=self.kv_cache_group_id,
        )
        self.num_cached_block[request.request_id] = num_full

    def withdraw_promises(self, request_id: str, num_computed_tokens: int) -> list[KVCacheBlock]:
        """Take back the keys of blocks that were published but are not computed; return these blocks.

        table       [ computed          | promised          | without key ]
                    0    num_computed // block_size     num_cached_block
        """
        first = num_computed_tokens // self.block_size
        num_cached = self.num_cached_block[request_id]
        promised = self.req_to_blocks[request_id][first:num_cached]
        self.block_pool.evict_blocks(block.block_id for block in promised)
        self.num_cached_block[request_id] = min(first, num_cached)
        return promised

    def free(self, request_id: str) -> None:
        """Forget the request's table and drop its references, tail first, so that its head outlives its tail."""
        table = self.req_to_blocks[request_id]
        self.block_pool.free_blocks(reversed(table))
        del self.req_to_blocks[request_id]
        del self.num_cached_block[request_id]

"""Parts of the engine with one fault each, in place of its own. Reading this file is reading answers of lab-15."""

from collections.abc import Sequence
from typing import Any

from mini_kv.core.block import BlockHash, KVCacheBlock
from mini_kv.core.block_hash import (
    HashFunction,
    RequestBlockHasher,
    generate_block_hash_extra_keys,
    get_request_block_hasher,
    hash_block_tokens,
    root_block_hash,
    sha256,
)
from mini_kv.core.free_queue import FreeKVCacheBlockQueue
from mini_kv.core.request import Request
from mini_kv.core.single_type_kv_cache_manager import FullAttentionManager


class TurnsTheList(FreeKVCacheBlockQueue):
    """The belief: a queue has to turn a list of freed blocks around. Then it is head first."""

    def append_n(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Append the blocks in reverse."""
        super().append_n(list(reversed(blocks)))


class AllOrNothing(FullAttentionManager):
    """The belief: a prompt that is cached only in part is a miss."""

    def find_longest_cache_hit(self, block_hashes: Sequence[BlockHash], max_length: int) -> list[KVCacheBlock]:
        """Return the hit if it is as long as it can be, else nothing."""
        hit = super().find_longest_cache_hit(block_hashes, max_length)
        is_whole = len(hit) == len(block_hashes[: max_length // self.block_size])
        return hit if is_whole else []


def hashes_without_parents(
    block_size: int, hash_function: HashFunction = sha256, *_namespace: Any
) -> RequestBlockHasher:
    """The belief: a block's own tokens determine its KV. Return a hasher that leaves the parent hash out."""

    def hasher(request: Request) -> list[BlockHash]:
        root = root_block_hash(hash_function, request.cache_salt)
        hashes = []
        for start in range(len(request.block_hashes) * block_size, request.num_tokens - block_size + 1, block_size):
            end = start + block_size
            extra_keys = generate_block_hash_extra_keys(request, start, end)
            hashes.append(hash_block_tokens(hash_function, root, request.token_ids[start:end], extra_keys))
        return hashes

    return hasher


def other_hashes(block_size: int, hash_function: HashFunction = sha256, *_namespace: Any) -> RequestBlockHasher:
    """Return a hasher that is right, and whose hashes are not the engine's: each digest is reversed."""
    return get_request_block_hasher(block_size, lambda data: hash_function(data)[::-1])

"""One physical block of the KV cache in the bookkeeping: an id, a reference count, a block hash."""

from collections.abc import Callable
from typing import NewType, TypeAlias

BlockHash = NewType("BlockHash", bytes)
"""Digest of a full block's tokens and of everything before them: equal digests mean equal KV."""

BlockHashWithGroupId = NewType("BlockHashWithGroupId", bytes)
"""A `BlockHash` followed by the number of its KV cache group: the key of the index."""


class KVCacheBlock:
    """Metadata of one block of KV memory. The KV itself is in a tensor, at index `block_id`.

    A block's life is the path of the pair `(ref_cnt, block_hash)`:

                      block_hash is None    block_hash is set
        ref_cnt > 0   in use, not cached    in use and cached: others may share it
        ref_cnt == 0  free, not cached      free but cached: "cached-free"

    Source: vLLM `KVCacheBlock` (v1/core/kv_cache_utils.py).
    """

    __slots__ = ("block_hash", "block_id", "is_null", "next_free_block", "prev_free_block", "ref_cnt")

    def __init__(self, block_id: int) -> None:
        self.block_id = block_id
        """Index of the block in the KV tensors, `0 <= block_id < num_blocks`. Never changes."""
        self.ref_cnt = 0
        """Number of block tables that contain this block."""
        self.block_hash: BlockHashWithGroupId | None = None
        """The block's key in the index. `None` if the block is not full or no longer cached."""
        self.is_null = False
        """True for block 0 only: a placeholder that is never allocated."""
        self.prev_free_block: KVCacheBlock | None = None
        self.next_free_block: KVCacheBlock | None = None
        """Neighbours in the free queue. Both are `None` while the block is not in the queue."""

    def __repr__(self) -> str:
        # Flat on purpose: the neighbours have neighbours too, and a repr that followed them would never end.
        key = self.block_hash.hex()[:8] if self.block_hash is not None else None
        return f"{type(self).__name__}(block_id={self.block_id}, ref_cnt={self.ref_cnt}, block_hash={key})"


BlockFactory: TypeAlias = Callable[[int], KVCacheBlock]
"""Returns a new block with the given id. `mini_kv.story` passes a factory whose blocks report their changes."""

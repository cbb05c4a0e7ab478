"""The operations that a pool needs of a free queue, independent of its order."""

from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

from mini_kv.core.block import KVCacheBlock


class FreeBlocks(Protocol):
    """The free blocks, from the next to be reused to the last. The engine's own class is `FreeKVCacheBlockQueue`."""

    @property
    def num_free_blocks(self) -> int:
        """Number of free blocks."""

    def popleft_n(self, n: int) -> list[KVCacheBlock]:
        """Remove and return the next `n` blocks to be reused, in order."""

    def remove(self, block: KVCacheBlock) -> None:
        """Remove `block`, because a hit uses it."""

    def append_n(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Add the blocks with a block hash that one call has freed, from a prompt's tail to its head."""

    def prepend_n(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Add blocks without a block hash. They are reused next, because no lookup can find them."""

    def get_all_free_blocks(self) -> list[KVCacheBlock]:
        """Return the blocks in the order of reuse, if no block is freed or hit in between."""


QueueFactory: TypeAlias = Callable[[Sequence[KVCacheBlock]], FreeBlocks]
"""Returns a free queue of these blocks. The first block is reused next."""

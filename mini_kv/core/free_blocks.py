"""The operations that a pool needs of a free queue, independent of its order."""

from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

from mini_kv.core.block import KVCacheBlock


class FreeBlocks(Protocol):
    """Blocks that no table holds, from the next to be reused to the last. The engine's own: `FreeKVCacheBlockQueue`."""

    @property
    def num_free_blocks(self) -> int:
        """Number of blocks that are waiting."""

    def popleft_n(self, n: int) -> list[KVCacheBlock]:
        """Take the `n` blocks that are to be reused next, the first of them in front."""

    def remove(self, block: KVCacheBlock) -> None:
        """Take `block` out: a hit has found it."""

    def append_n(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Take in blocks with a block hash: those that one call has freed, from a prompt's tail to its head."""

    def prepend_n(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Take in blocks without a block hash, which are worth nothing: they are reused next."""

    def get_all_free_blocks(self) -> list[KVCacheBlock]:
        """Return the blocks in the order in which they would be reused if nothing happened in between."""


QueueFactory: TypeAlias = Callable[[Sequence[KVCacheBlock]], FreeBlocks]
"""Makes a free queue of these blocks, the first of them the next to be reused."""

"""A view of the hashes of small blocks as hashes of larger blocks."""

from collections.abc import Sequence
from typing import overload

from mini_kv.core.block import BlockHash
from mini_kv.core.errors import ConfigError


class BlockHashListWithBlockSize(Sequence[BlockHash]):
    """A view of hashes of small blocks as hashes of blocks of `target_block_size` tokens. Nothing is copied or hashed.

        blocks of 16    A       B       C       D
        blocks of 32            B               D        a hash covers all tokens up to its block's end,
                                                         and both blocks end at the same token

    Source: vLLM, same name (v1/core/kv_cache_utils.py).
    """

    def __init__(self, block_hashes: Sequence[BlockHash], hash_block_size: int, target_block_size: int) -> None:
        """View `block_hashes`, the hashes of blocks of `hash_block_size` tokens.

        Raises `ConfigError` if `target_block_size` is not a multiple of `hash_block_size`.
        """
        if target_block_size % hash_block_size:
            raise ConfigError(f"blocks of {target_block_size} tokens do not end where blocks of {hash_block_size} do")
        self.block_hashes = block_hashes
        self.scale_factor = target_block_size // hash_block_size

    def __len__(self) -> int:
        """Return the number of larger blocks that have a hash."""
        return len(self.block_hashes) // self.scale_factor

    @overload
    def __getitem__(self, index: int) -> BlockHash: ...

    @overload
    def __getitem__(self, index: slice) -> list[BlockHash]: ...

    def __getitem__(self, index: int | slice) -> BlockHash | list[BlockHash]:
        """Return the hash of the larger block at `index`. For a slice return a list of hashes."""
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        return self.block_hashes[range(len(self))[index] * self.scale_factor + self.scale_factor - 1]

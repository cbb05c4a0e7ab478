"""A simple pool of blocks for a learner's policy: counts and hashes, a list as queue, a dict as index."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from mini_kv.story.frame import BlockView, Frame


@dataclass(slots=True)
class SmallBlock:
    """A block: the number of tables that contain it, and its block hash."""

    ref_cnt: int = 0
    block_hash: str | None = None
    """Hash of its tokens and all before them, or `None` until it is full."""


class SmallPool:
    """Blocks by their ids from 1, the queue of unreferenced ones, and the index from hashes to blocks.

    Three rules always hold. `ref_cnt` is the number of tables with the block. The queue has each block of `ref_cnt` 0
    once. A block with a hash is in the index under that hash only, referenced or not.
    """

    def __init__(self, num_blocks: int) -> None:
        """Make the blocks 1 to `num_blocks`, all of them free and without a hash."""
        self.blocks = {block_id: SmallBlock() for block_id in range(1, num_blocks + 1)}
        self.free_queue = list(self.blocks)
        """Ids, in order of their next allocation."""
        self.index: dict[str, list[int]] = {}
        """The ids of the blocks per hash, oldest first. A hash without a block is not in it."""

    def fill(self, table: Iterable[int], block_hashes: Iterable[str]) -> None:
        """Cache the first blocks of a table under these hashes. A block with a hash is unchanged."""
        for block_id, block_hash in zip(table, block_hashes, strict=False):
            if self.blocks[block_id].block_hash is None:
                self.blocks[block_id].block_hash = block_hash
                self.index.setdefault(block_hash, []).append(block_id)

    def frame(self, tables: Mapping[str, Sequence[int]]) -> Frame:
        """Return the state for a drawing, with these tables."""
        views = [BlockView(block_id, block.ref_cnt, block.block_hash) for block_id, block in self.blocks.items()]
        shown = {name: [list(table)] for name, table in tables.items()}
        return Frame((BlockView(0), *views), shown, list(self.free_queue))

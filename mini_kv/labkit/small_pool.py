"""A pool of blocks in plain sight, to write a policy on: counts and hashes, a list for a queue, a dict for an index."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from mini_kv.events.frame import BlockView, Frame


@dataclass(slots=True)
class SmallBlock:
    """A block: how many tables hold it, and the hash under which it can be found."""

    ref_cnt: int = 0
    block_hash: str | None = None
    """Stands for its tokens and all before them; `None` until it is full."""


class SmallPool:
    """Blocks by their ids, 1 and up; the queue of those that no table holds; the index from hashes to blocks.

    At any time: `ref_cnt` is the number of tables that hold a block; the queue holds the blocks of `ref_cnt` 0, each
    once; and a block stands in the index under its own hash and nowhere else, held or not.
    """

    def __init__(self, num_blocks: int) -> None:
        """Make the blocks 1 to `num_blocks`, all of them free and without a hash."""
        self.blocks = {block_id: SmallBlock() for block_id in range(1, num_blocks + 1)}
        self.free_queue = list(self.blocks)
        """Ids, the next to be handed out first."""
        self.index: dict[str, list[int]] = {}
        """The ids of the blocks with a hash, oldest first; a hash that no block has is not in it."""

    def fill(self, table: Iterable[int], block_hashes: Iterable[str]) -> None:
        """Give the first blocks of a table their hashes, as when they are full; one that has a hash stays as it is."""
        for block_id, block_hash in zip(table, block_hashes, strict=False):
            if self.blocks[block_id].block_hash is None:
                self.blocks[block_id].block_hash = block_hash
                self.index.setdefault(block_hash, []).append(block_id)

    def frame(self, tables: Mapping[str, Sequence[int]]) -> Frame:
        """Return the state to be drawn, with these tables."""
        views = [BlockView(block_id, block.ref_cnt, block.block_hash) for block_id, block in self.blocks.items()]
        shown = {name: [list(table)] for name, table in tables.items()}
        return Frame((BlockView(0), *views), shown, list(self.free_queue))

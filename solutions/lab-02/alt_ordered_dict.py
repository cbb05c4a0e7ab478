"""lab-02, another way: no links of our own. Python's OrderedDict is a dict with a linked list inside."""

from collections import OrderedDict
from collections.abc import Sequence

from mini_kv.core.block import KVCacheBlock
from mini_kv.core.errors import BlockStateError, OutOfBlocksError


class FreeKVCacheBlockQueue:
    def __init__(self, blocks: Sequence[KVCacheBlock]) -> None:
        self._blocks = OrderedDict((block.block_id, block) for block in blocks)

    @property
    def num_free_blocks(self) -> int:
        return len(self._blocks)

    def get_all_free_blocks(self) -> list[KVCacheBlock]:
        return list(self._blocks.values())

    def popleft(self) -> KVCacheBlock:
        return self.popleft_n(1)[0]

    def popleft_n(self, n: int) -> list[KVCacheBlock]:
        if n < 0 or n > len(self._blocks):
            raise OutOfBlocksError(n, len(self._blocks))
        return [self._blocks.popitem(last=False)[1] for _ in range(n)]

    def remove(self, block: KVCacheBlock) -> None:
        if self._blocks.pop(block.block_id, None) is None:
            raise BlockStateError("not in the free queue", [block.block_id])

    def append(self, block: KVCacheBlock) -> None:
        self.append_n([block])

    def append_n(self, blocks: Sequence[KVCacheBlock]) -> None:
        self._blocks.update(self._newcomers(blocks))

    def prepend_n(self, blocks: Sequence[KVCacheBlock]) -> None:
        self._blocks.update(self._newcomers(blocks))
        for block in reversed(blocks):
            self._blocks.move_to_end(block.block_id, last=False)

    def _newcomers(self, blocks: Sequence[KVCacheBlock]) -> dict[int, KVCacheBlock]:
        by_id = {block.block_id: block for block in blocks}
        if len(by_id) != len(blocks) or not by_id.keys().isdisjoint(self._blocks):
            raise BlockStateError("a block enters once", list(by_id))
        return by_id

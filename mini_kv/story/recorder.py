"""Blocks that record every change of their reference count and their key.

    recorder = Recorder()
    kv = KVCacheManager.for_full_attention(10, 4, new_block=recorder.new_block)

The engine makes no extra calls, and without a recorder there is no cost. It works for any pool that makes its blocks
with the factory, also for a student's pool.
"""

from typing import Any

from mini_kv.core.block import KVCacheBlock
from mini_kv.core.errors import BlockStateError
from mini_kv.story.edge import Edge, EdgeKind, block_hash_edge, ref_cnt_edge


class Recorder:
    """Collects the edges of the blocks that it made, in the order in which they happen.

    Strict (the default, for tests): an illegal edge raises `BlockStateError` at the faulty line, before the change.
    Otherwise (for demonstrations) it is recorded as `illegal`, and the engine continues.
    """

    def __init__(self, *, strict: bool = True) -> None:
        self.strict = strict
        self.edges: list[Edge] = []

    def new_block(self, block_id: int) -> "TracedBlock":
        """Return a block that reports to this recorder: a `BlockFactory`."""
        return TracedBlock(block_id, self)

    def take_edges(self) -> list[Edge]:
        """Return the edges since the last call, and start a new list."""
        edges, self.edges = self.edges, []
        return edges

    def report(self, edge: Edge, change: str) -> None:
        """Add an edge. In strict mode raise `BlockStateError` for an illegal one."""
        if edge.kind is EdgeKind.ILLEGAL and self.strict:
            raise BlockStateError(f"block {edge.block_id}: illegal change, {change}", [edge.block_id])
        self.edges.append(edge)


class TracedBlock(KVCacheBlock):
    """A `KVCacheBlock` that reports every change of `ref_cnt` and `block_hash`."""

    __slots__ = ("recorder",)
    recorder: Recorder

    def __init__(self, block_id: int, recorder: Recorder) -> None:
        super().__init__(block_id)
        object.__setattr__(self, "recorder", recorder)  # from here on, changes are reported

    def __setattr__(self, name: str, value: Any) -> None:
        if name in ("ref_cnt", "block_hash") and hasattr(self, "recorder"):
            self._report(name, value)
        object.__setattr__(self, name, value)

    def _report(self, name: str, value: Any) -> None:
        if name == "ref_cnt":
            kind: EdgeKind | None = ref_cnt_edge(self.ref_cnt, value, self.block_hash is not None)
            change, ref_cnt, key = f"ref_cnt {self.ref_cnt} -> {value}", value, self.block_hash
        else:
            kind = block_hash_edge(self.block_hash, value, self.ref_cnt)
            change, ref_cnt, key = "its key is replaced or set while idle", self.ref_cnt, value or self.block_hash
        if kind is not None:
            self.recorder.report(Edge(kind, self.block_id, ref_cnt, key.hex() if key is not None else None), change)

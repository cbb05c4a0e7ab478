"""The whole visible state at one moment: the data of a picture."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from mini_kv.core.block_pool import BlockPool
from mini_kv.core.kv_cache_manager import KVCacheManager
from mini_kv.story.edge import Edge, EdgeKind
from mini_kv.story.traced_manager import Span, free_order_of, tables_of


@dataclass(frozen=True, slots=True)
class BlockView:
    """A block's state in a picture."""

    block_id: int
    ref_cnt: int = 0
    block_hash: str | None = None
    """The key in hex, or `None` if the block is not cached."""


@dataclass(frozen=True, slots=True)
class Frame:
    """Blocks, tables and free queue at one moment."""

    blocks: tuple[BlockView, ...]
    """Every block of the pool by id, the null block first."""
    tables: dict[str, list[list[int]]]
    free_order: list[int]


def frame_of(kv: KVCacheManager) -> Frame:
    """Return the manager's state now. Costs O(pool)."""
    return frame_of_pool(kv.block_pool, tables_of(kv))


def frame_of_pool(pool: BlockPool, tables: dict[str, list[list[int]]]) -> Frame:
    """Return the state of a pool with these tables. Costs O(pool)."""
    blocks = tuple(
        BlockView(block.block_id, block.ref_cnt, block.block_hash.hex() if block.block_hash is not None else None)
        for block in pool.blocks
    )
    return Frame(blocks, tables, free_order_of(pool))


def _apply_edges(blocks: Sequence[BlockView], edges: Iterable[Edge]) -> tuple[BlockView, ...]:
    """Return the blocks after these edges."""
    after = list(blocks)
    for edge in edges:
        lost_key = edge.kind in (EdgeKind.EVICTED, EdgeKind.UNCACHED)
        after[edge.block_id] = BlockView(edge.block_id, edge.ref_cnt, None if lost_key else edge.block_hash)
    return tuple(after)


def frames(spans: Iterable[Span], num_blocks: int) -> list[Frame]:
    """Return the state after each span, folded from the edges. The spans must have snapshots.

    Starts from a new pool of `num_blocks` blocks. Raises `ValueError` for spans without snapshots, because edges alone
    do not determine a table or a queue.
    """
    blocks = tuple(BlockView(block_id) for block_id in range(num_blocks))
    result = []
    for span in spans:
        if span.tables is None or span.free_order is None:
            raise ValueError(f"span {span.call} has no snapshot: trace with snapshots=True to draw frames")
        blocks = _apply_edges(blocks, span.edges)
        result.append(Frame(blocks, span.tables, span.free_order))
    return result

"""lab-08, another way: hand everything on to the engine, which has it in two modules."""

from collections.abc import Sequence

from torch import Tensor

from mini_kv.attention import block_table as engine
from mini_kv.attention import kv_cache


class BlockTable(engine.BlockTable):
    """The engine's."""

    def __init__(self, max_num_reqs: int, max_num_blocks_per_req: int, block_size: int) -> None:
        super().__init__(max_num_reqs, max_num_blocks_per_req, block_size)

    def append_row(self, block_ids: Sequence[int], row: int) -> None:
        """Add blocks at the end of a row: its request has grown."""
        super().append_row(block_ids, row)

    def add_row(self, block_ids: Sequence[int], row: int) -> None:
        """Begin a row anew: another request takes it over, with these blocks."""
        super().add_row(block_ids, row)


def compute_slot_mapping(query_start_loc: Tensor, positions: Tensor, block_table: Tensor, block_size: int) -> Tensor:
    """Return the slot of each token of a step."""
    return engine.compute_slot_mapping(query_start_loc, positions, block_table, block_size)


def reshape_and_cache(key: Tensor, value: Tensor, k_cache: Tensor, v_cache: Tensor, slot_mapping: Tensor) -> None:
    """Write each token's key and value to its slot."""
    kv_cache.reshape_and_cache(key, value, k_cache, v_cache, slot_mapping)


def gather_kv(cache: Tensor, block_ids: Tensor, num_tokens: int) -> Tensor:
    """Return a request's keys (or values), in the order of its tokens."""
    return kv_cache.gather_kv(cache, block_ids, num_tokens)

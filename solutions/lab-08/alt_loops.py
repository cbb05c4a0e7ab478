"""lab-08, another way: one token at a time, in plain Python. Nothing is easier to check, and nothing is slower."""

from collections.abc import Sequence

import torch
from torch import Tensor

from mini_kv.core.errors import ConfigError


class BlockTable:
    """The block ids of a batch: a row for each request, in memory that is allocated once."""

    def __init__(self, max_num_reqs: int, max_num_blocks_per_req: int, block_size: int) -> None:
        self.block_size = block_size
        self.block_table = torch.zeros((max_num_reqs, max_num_blocks_per_req), dtype=torch.int32)
        self.num_blocks_per_row = [0] * max_num_reqs

    def append_row(self, block_ids: Sequence[int], row: int) -> None:
        """Add blocks at the end of a row: its request has grown."""
        room = self.block_table.size(1) - self.num_blocks_per_row[row]
        if len(block_ids) > room:
            raise ConfigError(f"{len(block_ids)} more blocks for row {row}, which has room for {room}")
        for block_id in block_ids:
            self.block_table[row, self.num_blocks_per_row[row]] = block_id
            self.num_blocks_per_row[row] += 1

    def add_row(self, block_ids: Sequence[int], row: int) -> None:
        """Begin a row anew: another request takes it over, with these blocks."""
        before = self.num_blocks_per_row[row]
        self.num_blocks_per_row[row] = 0
        try:
            self.append_row(block_ids, row)
        except ConfigError:
            self.num_blocks_per_row[row] = before
            raise


def compute_slot_mapping(query_start_loc: Tensor, positions: Tensor, block_table: Tensor, block_size: int) -> Tensor:
    """Return the slot of each token of a step."""
    starts, where, table = query_start_loc.tolist(), positions.tolist(), block_table.tolist()
    slots = []
    for row in range(len(starts) - 1):
        for token in range(starts[row], starts[row + 1]):
            entry, place = divmod(where[token], block_size)
            slots.append(table[row][entry] * block_size + place)
    return torch.tensor(slots, dtype=torch.int64)


def reshape_and_cache(key: Tensor, value: Tensor, k_cache: Tensor, v_cache: Tensor, slot_mapping: Tensor) -> None:
    """Write each token's key and value to its slot."""
    for token, slot in enumerate(slot_mapping.tolist()):
        if slot != -1:
            block, place = divmod(slot, k_cache.size(1))
            k_cache[block, place] = key[token]
            v_cache[block, place] = value[token]


def gather_kv(cache: Tensor, block_ids: Tensor, num_tokens: int) -> Tensor:
    """Return a request's keys (or values), in the order of its tokens."""
    block_size = cache.size(1)
    gathered = torch.empty((num_tokens, *cache.shape[2:]), dtype=cache.dtype)
    for position in range(num_tokens):
        gathered[position] = cache[int(block_ids[position // block_size]), position % block_size]
    return gathered

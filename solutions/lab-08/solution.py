"""lab-08: the reference solution."""

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
        start = self.num_blocks_per_row[row]
        end = start + len(block_ids)
        if end > self.block_table.shape[1]:
            raise ConfigError(f"row {row} would have {end} blocks")
        self.block_table[row, start:end] = torch.tensor(block_ids, dtype=torch.int32)
        self.num_blocks_per_row[row] = end

    def add_row(self, block_ids: Sequence[int], row: int) -> None:
        """Begin a row anew: another request takes it over, with these blocks."""
        if len(block_ids) > self.block_table.shape[1]:
            raise ConfigError(f"row {row} would have {len(block_ids)} blocks")
        self.num_blocks_per_row[row] = 0
        self.append_row(block_ids, row)


def compute_slot_mapping(query_start_loc: Tensor, positions: Tensor, block_table: Tensor, block_size: int) -> Tensor:
    """Return the slot of each token of a step."""
    num_tokens = query_start_loc[1:] - query_start_loc[:-1]
    requests = torch.repeat_interleave(torch.arange(len(num_tokens)), num_tokens)
    block_ids = block_table[requests, positions // block_size].to(torch.int64)
    return block_ids * block_size + positions % block_size


def reshape_and_cache(key: Tensor, value: Tensor, k_cache: Tensor, v_cache: Tensor, slot_mapping: Tensor) -> None:
    """Write each token's key and value to its slot."""
    written = slot_mapping >= 0
    slots = slot_mapping[written]
    block_size = k_cache.shape[1]
    blocks, places = slots // block_size, slots % block_size
    k_cache[blocks, places] = key[written].to(k_cache.dtype)
    v_cache[blocks, places] = value[written].to(v_cache.dtype)


def gather_kv(cache: Tensor, block_ids: Tensor, num_tokens: int) -> Tensor:
    """Return a request's keys (or values), in the order of its tokens."""
    block_size = cache.shape[1]
    num_blocks = (num_tokens + block_size - 1) // block_size
    return cache[block_ids[:num_blocks]].flatten(0, 1)[:num_tokens]

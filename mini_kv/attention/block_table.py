"""Block tables as a tensor, and the slots of tokens."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from mini_kv.core.errors import ConfigError

SlotMapping = Callable[[Tensor, Tensor, Tensor, int], Tensor]
"""A function that is called as `compute_slot_mapping` is."""


class BlockTable:
    """A row of block ids per request, in memory that is allocated once.

        row 0    7  3  9  .  .        the third block of request 0 is physical block 9
        row 1    4  .  .  .  .        entries after a request's last block are not used

    Source: vLLM `BlockTable` (v1/worker/block_table.py).
    """

    def __init__(
        self, max_num_reqs: int, max_num_blocks_per_req: int, block_size: int, device: torch.device | str = "cpu"
    ) -> None:
        """Allocate the rows, `[max_num_reqs, max_num_blocks_per_req]`, int32."""
        for name, value in (
            ("max_num_reqs", max_num_reqs),
            ("max_num_blocks_per_req", max_num_blocks_per_req),
            ("block_size", block_size),
        ):
            if value < 1:
                raise ConfigError(f"{name} is {value}, it must be at least 1")
        self.block_size = block_size
        self.block_table = torch.zeros((max_num_reqs, max_num_blocks_per_req), dtype=torch.int32, device=device)
        self.num_blocks_per_row = [0] * max_num_reqs

    def add_row(self, block_ids: Sequence[int], row: int) -> None:
        """Replace the row's blocks by these."""
        self._check_room(row, len(block_ids))
        self.num_blocks_per_row[row] = 0
        self.append_row(block_ids, row)

    def append_row(self, block_ids: Sequence[int], row: int) -> None:
        """Add blocks at the end of the row. Raises `ConfigError`, and adds none, if they do not fit."""
        start = self.num_blocks_per_row[row]
        self._check_room(row, start + len(block_ids))
        if block_ids:
            new = torch.tensor(block_ids, dtype=torch.int32)
            self.block_table[row, start : start + len(block_ids)] = new
            self.num_blocks_per_row[row] = start + len(block_ids)

    def move_row(self, source: int, target: int) -> None:
        """Copy a row over another, for example to fill the row of a finished request."""
        num_blocks = self.num_blocks_per_row[source]
        self.block_table[target, :num_blocks] = self.block_table[source, :num_blocks]
        self.num_blocks_per_row[target] = num_blocks

    def _check_room(self, row: int, num_blocks: int) -> None:
        if num_blocks > self.block_table.shape[1]:
            message = f"row {row} would have {num_blocks} blocks; the table is {self.block_table.shape[1]} wide"
            raise ConfigError(message)


def compute_slot_mapping(query_start_loc: Tensor, positions: Tensor, block_table: Tensor, block_size: int) -> Tensor:
    """Return the slot of each token: the place of its key and value in the cache.

        slot = block_table[request, position // block_size] * block_size + position % block_size

    Args:
        query_start_loc: `[num_reqs + 1]`, int32: the tokens of request i are `[start_loc[i], start_loc[i + 1])`.
        positions: `[num_tokens]`: each token's place in its own request.
        block_table: `[num_reqs, max_num_blocks]`, int32.
        block_size: tokens per block.

    Returns:
        `[num_tokens]`, int64: a cache of 4 GB has more slots times elements than 32 bits can count.
    """
    rows = torch.repeat_interleave(query_start_loc.diff())  # 0 as often as request 0 has tokens, then 1, ...
    positions = positions.to(torch.int64)
    block_ids = block_table[rows, positions // block_size].to(torch.int64)
    return block_ids * block_size + positions % block_size

"""The data of a step for every layer: the tokens of each request, their slots, and the visible tokens."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from mini_kv.attention.block_table import SlotMapping, compute_slot_mapping
from mini_kv.core.errors import ConfigError


@dataclass(frozen=True, slots=True)
class AttentionMetadata:
    """One step's batch, shared by all layers. Prefill, chunked prefill and decode need no distinction here.

        request     0              1        2
        tokens      |q q q q q q|  |q|      |q q q|         packed one after the other: [num_tokens, ...]
        start_loc    0              6        7      10
        seq_lens    6              41       19              in the cache once this step has written

    Query i of request r is at position `seq_lens[r] - q_len + i` and sees all positions up to its own.
    """

    slot_mapping: Tensor
    """`[num_tokens]`, int64: the slot of each new key and value. -1: not written."""
    block_tables: Tensor
    """`[num_reqs, max_num_blocks]`, int32. Entries after a request's last block are never read."""
    seq_lens: Tensor
    """`[num_reqs]`, int32, the new tokens included."""
    query_start_loc: Tensor
    """`[num_reqs + 1]`, int32."""
    max_query_len: int
    max_seq_len: int
    """The largest of `seq_lens`, as a number on the host, so that planning a kernel does not wait for the device."""
    plans: dict[Any, Any] = field(default_factory=dict, repr=False, compare=False)
    """Plans that a backend made in its first layer, reused in the other layers. So the fields above must not change."""

    @property
    def num_reqs(self) -> int:
        """Requests in the batch."""
        return len(self.seq_lens)


def build_metadata(
    query_lens: Sequence[int],
    seq_lens: Sequence[int],
    block_tables: Tensor,
    block_size: int,
    compute_slot_mapping: SlotMapping = compute_slot_mapping,
) -> AttentionMetadata:
    """Return the metadata of a batch, from each request's number of new tokens and its length with them.

    Raises `ConfigError` if a request has more new tokens than tokens, or its row of the table is too short.
    """
    for index, (query_len, seq_len) in enumerate(zip(query_lens, seq_lens, strict=True)):
        if not 0 <= query_len <= seq_len:
            raise ConfigError(f"request {index} has {query_len} new tokens and is {seq_len} long")
        if seq_len > block_tables.shape[1] * block_size:
            room = block_tables.shape[1] * block_size
            raise ConfigError(f"request {index} is {seq_len} tokens long; its row has room for {room}")
    device = block_tables.device
    starts = [0]
    positions: list[int] = []
    for query_len, seq_len in zip(query_lens, seq_lens, strict=True):
        starts.append(starts[-1] + query_len)
        positions += range(seq_len - query_len, seq_len)
    query_start_loc = torch.tensor(starts, dtype=torch.int32, device=device)
    slot_mapping = compute_slot_mapping(
        query_start_loc, torch.tensor(positions, dtype=torch.int64, device=device), block_tables, block_size
    )
    return AttentionMetadata(
        slot_mapping=slot_mapping,
        block_tables=block_tables,
        seq_lens=torch.tensor(seq_lens, dtype=torch.int32, device=device),
        query_start_loc=query_start_loc,
        max_query_len=max(query_lens, default=0),
        max_seq_len=max(seq_lens, default=0),
    )

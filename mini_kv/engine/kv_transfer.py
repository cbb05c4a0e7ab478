"""The worker's half of the connector: moves blocks between KV memory and tiers, as the scheduler's half has planned.

A block's bytes are its rows in the tensors of its group, one after the other and unchanged. So a reloaded block is
equal bit for bit. Source: vLLM `KVConnectorBase_V1`, worker side: `start_load_kv`, `wait_for_save`.
"""

import ctypes
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from mini_kv.core.kv_cache_interface import KVCacheConfig
from mini_kv.core.kv_cache_planning import get_kv_cache_tensors
from mini_kv.tiers.connector import KVConnectorMetadata
from mini_kv.tiers.tiered_cache import TieredCache


class KVTransfer:
    """Reads and writes whole blocks of the KV memory."""

    def __init__(self, tensors: Sequence[Tensor], kv_cache_config: KVCacheConfig, tiers: TieredCache) -> None:
        """Take the runner's tensors, `[num_blocks, elements of a page]`, and the tiers."""
        self.tiers = tiers
        self._tensors = [
            [
                tensor
                for tensor, users in zip(tensors, get_kv_cache_tensors(kv_cache_config.kv_cache_groups), strict=True)
                if users[group_id]
            ]
            for group_id in range(len(kv_cache_config.kv_cache_groups))
        ]
        """The tensors of each group."""

    @property
    def payload_bytes(self) -> list[int]:
        """Bytes of a block, per group."""
        return [sum(tensor[0].nbytes for tensor in tensors) for tensors in self._tensors]

    def rescue(self, metadata: KVConnectorMetadata) -> None:
        """Store the blocks that are about to be reused in the tiers. Call it before anything is written."""
        self._send(metadata.stores, self.tiers.store)

    def fill(self, metadata: KVConnectorMetadata) -> int:
        """Write the tiers' bytes to the blocks that were allocated for them. Return the number of bytes."""
        for key, block_id, payload in metadata.loads:
            self._write(_group_of(key), block_id, payload)
        return sum(len(payload) for _, _, payload in metadata.loads)

    def after_the_step(self, metadata: KVConnectorMetadata) -> None:
        """Send copies of the blocks that the step has computed to the server."""
        self._send(metadata.saves, self.tiers.share)

    def _send(self, blocks: Sequence[tuple[bytes, int]], receive: Callable[[bytes, bytes], None]) -> None:
        for key, block_id in blocks:
            rows = [tensor[block_id] for tensor in self._tensors[_group_of(key)]]
            receive(key, b"".join(_bytes_of(row) for row in rows))

    def _write(self, group_id: int, block_id: int, payload: memoryview) -> None:
        start = 0
        for tensor in self._tensors[group_id]:
            row = tensor[block_id]
            values = torch.frombuffer(bytearray(payload[start : start + row.nbytes]), dtype=torch.uint8)
            row.copy_(values.view(row.dtype))
            start += row.nbytes


def _group_of(key: bytes) -> int:
    """Return the group whose block has this key: its last four bytes, as in the pool's index."""
    return int.from_bytes(key[-4:], "big")


def _bytes_of(row: Tensor) -> bytes:
    values = row.contiguous().cpu().view(torch.uint8)
    return ctypes.string_at(values.data_ptr(), values.numel())  # without numpy, the fast way to a tensor's bytes

"""Debug mode: memory that no request may read is filled with NaN, so that a wrong read is an error.

A freed block still contains the numbers of its last request. A request that reads it by mistake gets plausible numbers.
Then the text is slightly wrong, and only sometimes. So before each step all memory that no request may read is filled
with NaN. Every result that uses a NaN is NaN:

    block     held, written     held, just handed out     free, with a key     free, no key     the null block
    filled    no                yes                       no: it can be hit    yes              yes

In each layer, and at the logits, the first NaN is an error that names the request that read it.
"""

import torch
from torch import Tensor

from mini_kv.attention.options import AttentionOptions
from mini_kv.core.block_pool import BlockPool
from mini_kv.core.errors import KVCacheError
from mini_kv.core.sched.output import SchedulerOutput
from mini_kv.engine.interface import Attend
from mini_kv.engine.model_runner import Batch, ModelRunner


class PoisonedKVError(KVCacheError):
    """A request read memory without KV of its own, or its model computes NaN or infinity."""

    def __init__(self, request_id: str, where: str) -> None:
        super().__init__(f"request {request_id!r}: NaN or infinity {where}: it read memory that was never written")
        self.request_id = request_id


class KVPoison:
    """Fills memory that no request may read with NaN, before each step. Costs O(pool) per step."""

    def __init__(self, block_pool: BlockPool, runner: ModelRunner) -> None:
        self.block_pool = block_pool
        self.runner = runner

    def spread(self, output: SchedulerOutput) -> None:
        """Fill the free blocks without a key, the blocks that this step allocates, and the null block."""
        unreadable = [block.block_id for block in self.block_pool.blocks if block.ref_cnt == 0 and not block.block_hash]
        block_ids = [self.block_pool.null_block.block_id, *unreadable, *self._handed_out(output)]
        for tensor in self.runner.kv_cache_tensors:  # 255 in all bytes is NaN, too: in fp8, and in the scales of int8
            tensor[block_ids] = torch.nan if tensor.is_floating_point() else 255

    def _handed_out(self, output: SchedulerOutput) -> list[int]:
        """Return the blocks that are new in this step. The step's tokens are the first in them."""
        block_ids = [i for new in output.scheduled_cached_reqs.new_block_ids if new for ids in new for i in ids]
        for request in output.scheduled_new_reqs:
            for table, ids in zip(self.runner.block_tables, request.block_ids, strict=True):
                num_computed_blocks = -(-request.num_computed_tokens // table.block_size)
                block_ids += ids[num_computed_blocks:]
        return block_ids


class FiniteAttend:
    """Returns the result of another `Attend`, and raises if it has NaN or infinity."""

    def __init__(self, attend: Attend, batch: Batch) -> None:
        self.attend = attend
        self.batch = batch

    def __call__(self, layer: int, query: Tensor, key: Tensor, value: Tensor, options: AttentionOptions) -> Tensor:
        """See `Attend`. Raises `PoisonedKVError`."""
        found = self.attend(layer, query, key, value, options)
        row = _first_bad_row(found.flatten(1))
        if row is not None:
            where = f"in layer {layer}, at its token {self.batch.positions[row]}"
            raise PoisonedKVError(self._request_of(row), where)
        return found

    def _request_of(self, row: int) -> str:
        for request_id, query_len in zip(self.batch.request_ids, self.batch.query_lens, strict=True):
            row -= query_len
            if row < 0:
                return request_id
        raise IndexError(row)


def check_logits(request_ids: list[str], logits: Tensor) -> None:
    """Raise `PoisonedKVError` for the first request with NaN or infinity in its logits."""
    row = _first_bad_row(logits)
    if row is not None:
        raise PoisonedKVError(request_ids[row], "in its logits")


def _first_bad_row(x: Tensor) -> int | None:
    """Return the first row, of `[rows, n]`, with a value that is NaN or infinite, or `None` if there is no such row."""
    bad = (~x.isfinite().all(dim=1)).nonzero()
    return int(bad[0]) if len(bad) else None

"""lab-08: from block table to slot. Your work goes here.

Run it from the repository's root:

    LAB_IMPL=starter pytest labs/lab-08
    $env:LAB_IMPL="starter"; pytest labs/lab-08          (Windows, PowerShell)

Three numbers describe the place of a token's keys and values, and they are easily confused:

    position    the token's place in its own request, counted from 0
    block id    which block of the cache (a request's blocks have any ids, in any order)
    slot        block id * block_size + place in the block: the number of a place for one token in the whole cache
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from mini_kv.core.errors import ConfigError  # noqa: F401  # you raise it
from mini_kv.course import todo


class BlockTable:
    """The block ids of a batch: a row for each request, in memory that is allocated once.

        row 0    7  3  9  .  .        request 0: tokens 0 to 3 are in block 7, 4 to 7 in block 3, the rest in block 9
        row 1    4  .  .  .  .        a dot may be any id, such as one of the row's previous request

    - `self.block_table`           `[max_num_reqs, max_num_blocks_per_req]`, int32. A kernel stores its address:
                                   write into it, and never replace it.
    - `self.num_blocks_per_row`    the number of valid entries of each row, a list
    """

    def __init__(self, max_num_reqs: int, max_num_blocks_per_req: int, block_size: int) -> None:
        """Allocate the rows. Given."""
        self.block_size = block_size
        self.block_table = torch.zeros((max_num_reqs, max_num_blocks_per_req), dtype=torch.int32)
        self.num_blocks_per_row = [0] * max_num_reqs

    def append_row(self, block_ids: Sequence[int], row: int) -> None:
        """Add blocks after the valid entries of a row. There may be none to add.

        Raises `ConfigError(message)`, with nothing changed, if the row is too narrow for all of them.

        Example, rows 4 wide: row 0 has 7 3. `append_row([9], 0)` makes it 7 3 9. `append_row([2, 5], 0)` then raises.
        """
        todo("lab-08", "BlockTable.append_row", "where does the first new id go, and do all fit?")

    def add_row(self, block_ids: Sequence[int], row: int) -> None:
        """Give a row to another request, which has these blocks. The row's old entries are not valid any more.

        Raises `ConfigError`, with nothing changed, if the blocks do not fit.

        Example: row 0 has 7 3 9. After `add_row([4], 0)` it has one block, 4, and `append_row([6], 0)` makes it 4 6.
        """
        todo("lab-08", "BlockTable.add_row", "what of the old request must change, and what may stay?")


def compute_slot_mapping(query_start_loc: Tensor, positions: Tensor, block_table: Tensor, block_size: int) -> Tensor:
    """Return the slot of each token of a step, `[num_tokens]`, int64.

    The tokens are in order, request after request. A request may have none in this step.

    Args:
        query_start_loc: `[num_reqs + 1]`, int32. Request r's tokens are number `query_start_loc[r]` up to, but not
            including, `query_start_loc[r + 1]`. The last entry is `num_tokens`.
        positions: `[num_tokens]`, int64, each token's place in its own request. They need not begin at 0: the tokens
            before were computed in earlier steps, or by another request.
        block_table: `[num_reqs, max_num_blocks_per_req]`, int32. Row r is request r's.
        block_size: tokens per block.

    Example, block size 4: rows 7 3 and 5 2, `query_start_loc` 0 2 4, positions 3 4 0 1. The slots are 31 12 20 21.
    """
    todo("lab-08", "compute_slot_mapping", "whose token is it, and where is it there?")


def reshape_and_cache(key: Tensor, value: Tensor, k_cache: Tensor, v_cache: Tensor, slot_mapping: Tensor) -> None:
    """Write each token's key and value to its slot. Nothing else in the caches changes.

    A token whose slot is -1 is padding: it is not written. 0 is a valid slot. The caches may be views of a larger
    memory, and their numbers may have fewer bits than those of `key` and `value`.

    Args:
        key: `[num_tokens, num_kv_heads, head_size]`.
        value: the same shape.
        k_cache: `[num_blocks, block_size, num_kv_heads, head_size]`.
        v_cache: the same shape.
        slot_mapping: `[num_tokens]`, int64. No slot occurs twice, -1 aside.

    Example, block size 4: three tokens have the slots 31 -1 12. The first goes to block 7, place 3. The second is not
    written. The third goes to block 3, place 0.
    """
    todo("lab-08", "reshape_and_cache", "what does an index of -1 mean, and is the cache changed or a copy?")


def gather_kv(cache: Tensor, block_ids: Tensor, num_tokens: int) -> Tensor:
    """Return a request's keys (or values), in the order of its tokens: `[num_tokens, num_kv_heads, head_size]`.

    Uses only the blocks that these tokens are in. The entries of the row after them may be invalid.

    Args:
        cache: `[num_blocks, block_size, num_kv_heads, head_size]`: the keys of all requests, or the values.
        block_ids: the request's row of the block table, int32.
        num_tokens: the request's number of tokens in the cache, maybe 0.

    Example, block size 4: `gather_kv(k_cache, row, 6)` with the row 7 3 9 returns the four keys of block 7, then the
    first two of block 3.
    """
    todo("lab-08", "gather_kv", "which blocks are the tokens in, and how many of the last one?")

"""lab-06: slots for the next token. Your work goes here.

Run it from the repository's root:

    LAB_IMPL=starter pytest labs/lab-06
    $env:LAB_IMPL="starter"; pytest labs/lab-06          (Windows, PowerShell)
"""

from collections.abc import Sequence
from typing import Any

from mini_kv.core import kv_cache_manager as engine
from mini_kv.core.block import KVCacheBlock
from mini_kv.core.errors import AllocationError, RepeatedRequestError, UnknownRequestError  # noqa: F401  # you raise them
from mini_kv.core.kv_cache_interface import KVCacheConfig
from mini_kv.core.kv_cache_manager import KVCacheBlocks
from mini_kv.core.request import Request
from mini_kv.core.single_type_kv_cache_manager import cdiv  # noqa: F401  # cdiv(17, 16) is 2: division, rounded up
from mini_kv.course import todo


class KVCacheManager(engine.KVCacheManager):
    """The engine's manager. How its block tables grow and end is yours.

    Everything that you need to know is in three dicts, each with one entry for every admitted request, under its id:

    - `self.requests`           the request itself
    - `self.req_to_blocks`      its block table, a list: block number k holds tokens k * block_size and following
    - `self.num_cached_block`   how many blocks of the table, from its head, are cached (in the index)

    Beside these there are `self.block_size` and `self.block_pool`, which you call: `num_free_blocks`,
    `get_new_blocks(n)`, `touch(blocks)`, `free_blocks(blocks)`, `cache_full_blocks(...)`. Keep no state elsewhere: the
    engine, the ledger of invariants and the drawings read these dicts. Other bookkeeping of the engine, such as
    `prefix_cache_stats`, is not yours. Do not call `super()`, which would do the work for you.
    """

    def __init__(self, kv_cache_config: KVCacheConfig, **options: Any) -> None:
        """Build the pool and the empty tables. Given."""
        super().__init__(kv_cache_config, **options)
        (group,) = self.coordinator.single_type_managers
        self.req_to_blocks = group.req_to_blocks
        self.num_cached_block = group.num_cached_block

    def get_num_blocks_to_allocate(
        self, request_id: str, num_tokens: int, new_computed_blocks: Sequence[KVCacheBlock]
    ) -> int:
        """Return how many blocks leave the free queue until the request has slots for `num_tokens` tokens.

        The blocks in its table are there already (it has none before it is admitted), and so are those of its hit,
        `new_computed_blocks`. But a block of the hit may be in no table, and then it is in the free queue. The result
        is never negative: a table that is longer than needed frees nothing. Changes nothing.

        Example, block size 4: A's table has 1 block. For 4 tokens it needs 0 more, for 5 tokens 1. B is not admitted
        and has a hit of 2 blocks, one of them in A's table, the other free. For 9 tokens B needs 2: one to revive, one
        new.
        """
        todo("lab-06", "KVCacheManager.get_num_blocks_to_allocate", "which blocks will leave the free queue?")

    def allocate_slots(  # type: ignore[override]  # the engine's has three more, for a scheduler's admission
        self,
        request: Request,
        num_new_tokens: int,
        num_new_computed_tokens: int = 0,
        new_computed_blocks: KVCacheBlocks | None = None,
        num_lookahead_tokens: int = 0,
    ) -> KVCacheBlocks | None:
        """Give the request slots for the tokens of its next step. Return the new blocks, or `None` if too few are free.

            tokens    | computed       | new computed  | new                   | lookahead          |
                      | has KV         | its hit       | KV after this step    | perhaps, later     |
            slots     | yes            | in the hit    | yes                   | yes                |
            cached    | yes            | yes           | full, known tokens    | never              |

        The first two columns are `request.num_computed_tokens + num_new_computed_tokens` tokens. Some callers have
        added the hit to the first number already, others pass it as the second. The sum is right in both cases. The
        hit's blocks are `new_computed_blocks.blocks[0]`. The caller passes a hit only if the request is not admitted.

        Afterwards:

        - The request is admitted, with its three entries. Of its table, the blocks of the hit are cached already.
        - Its table has blocks for all four columns. First comes the hit, with one more reference on each of its blocks,
          and at the end as many new ones as are missing. A table that is long enough is unchanged.
        - The blocks that this step fills are cached (`cache_blocks`).

        Returns the new blocks, often none: `KVCacheBlocks(([...],))`. The hit is not new.

        Otherwise nothing has changed. The result is `None` if too few blocks are free. Raises
        `AllocationError(request_id, message)` if there is no new token, and `RepeatedRequestError(request_id)` if
        another admitted request has this id.

        Example, block size 4: A has 4 tokens, all computed, in block 1. Token 4 has just been sampled (the fifth).
        `allocate_slots(A, 1)` returns block 2, because 5 tokens need slots. A's table is 1 2 then. The next three
        calls, for tokens 5, 6 and 7, return no block. The last of them caches block 2.
        """
        todo("lab-06", "KVCacheManager.allocate_slots", "what must be checked before anything changes?")

    def cache_blocks(self, request: Request, num_computed_tokens: int) -> None:
        """Cache the blocks that the first `num_computed_tokens` tokens of an admitted request fill.

        A block is cached once, when it is full of known tokens, because a block that is not full still changes.
        `num_computed_tokens` may count drafts, which the request does not contain. `request.block_hashes` has one hash
        for each full block of known tokens, in order, from the first block on. With caching off there are none at all.

        `block_pool.cache_full_blocks(table, request.block_hashes, num_cached_blocks, num_full_blocks)` enters the
        blocks between the two numbers in the index. Afterwards `num_cached_block` counts them too.

        Example, block size 4, nothing cached yet: A knows 9 tokens. `cache_blocks(A, 6)` caches its first block,
        `cache_blocks(A, 8)` then its second, and `cache_blocks(A, 12)`, three of these being drafts, none.
        """
        todo("lab-06", "KVCacheManager.cache_blocks", "which blocks are full, known and not cached yet?")

    def free(self, request: Request) -> None:
        """Drop the request's references to its blocks. Cached blocks stay cached until they are used again.

        The last block of the table is the first to be reused. The request has none of its three entries any more.

        Raises `UnknownRequestError(request_id)`, with nothing changed, unless this very request is admitted. A second
        free is a mistake, and so is one of a request that only has the same id.

        Example: A's table is 1 2 3, all cached, and the free queue is 4. `free(A)` leaves the queue 4 3 2 1. A second
        `free(A)` raises.
        """
        todo("lab-06", "KVCacheManager.free", "which block is freed first, and what is left of the request?")

"""lab-07: hits and evictions. Your work goes here.

Run it from the repository's root:

    LAB_IMPL=starter pytest labs/lab-07
    $env:LAB_IMPL="starter"; pytest labs/lab-07          (Windows, PowerShell)

Five small classes, in which the methods that this lab is about are missing. Write them in any order: where a test looks
at one of your classes, the engine's stand in for the others.

A block hash (`BlockHash`) says which tokens are in a block and which are before it. A request brings the hashes of its
full blocks, in order, in `request.block_hashes`. A key of the index is a block hash with the number of a group of
layers appended (here there is one group, number 0). A cached block has its key in `block.block_hash`. In a block that
is not cached this is None.
"""

from collections.abc import Iterable, Sequence

from mini_kv.core import block_pool, kv_cache_manager, single_type_kv_cache_manager, stats
from mini_kv.core.block import BlockHash, BlockHashWithGroupId, KVCacheBlock
from mini_kv.core.block_hash import make_block_hash_with_group_id  # noqa: F401  # for cache_full_blocks
from mini_kv.core.errors import BlockStateError  # noqa: F401  # cache_full_blocks raises it
from mini_kv.core.kv_cache_manager import KVCacheBlocks
from mini_kv.core.request import Request
from mini_kv.course import todo


class BlockHashToBlockMap:
    """The index: which blocks carry a key, the oldest first. Usually there is one; there may be more.

    `self._blocks[key]` is a dict of these blocks by their number, `block_id`; a Python dict keeps the order in which
    its items came. A key that no block carries any more is not in `self._blocks`.

    Example, used below: block 8 was entered under the key K, then block 9, then block 5.
    """

    def __init__(self) -> None:
        """Make an empty index. Given, as are `clear`, `items` and `__len__`."""
        self._blocks: dict[BlockHashWithGroupId, dict[int, KVCacheBlock]] = {}

    def get_one_block(self, key: BlockHashWithGroupId) -> KVCacheBlock | None:
        """Return the oldest block under `key`; None if there is none. Changes nothing.

        Example: for K, block 8, however often one asks. For a key that was never entered, None.
        """
        todo("lab-07", "BlockHashToBlockMap.get_one_block", "look the key up")

    def insert(self, key: BlockHashWithGroupId, block: KVCacheBlock) -> None:
        """Enter `block` under `key`, as the youngest there. The others stay. One that is there already keeps its place.

        Example: after block 4 is entered under K, its blocks are 8 9 5 4. After block 8 once more, still 8 9 5 4.
        """
        todo("lab-07", "BlockHashToBlockMap.insert", "a key may have blocks already")

    def pop(self, key: BlockHashWithGroupId, block_id: int) -> KVCacheBlock | None:
        """Take the block with this number out from under `key`, and return it. None, and no change, if it is not there.

        The other blocks of the key stay. A key without blocks does not: the index must not grow with every prompt that
        ever came.

        Example: `pop(K, 9)` returns block 9 and leaves 8 5. Then `pop(K, 9)` returns None, and so does `pop(L, 8)`, for
        a key L that was never entered.
        """
        todo("lab-07", "BlockHashToBlockMap.pop", "this block, and no other")

    def clear(self) -> None:
        """Forget every key. Given."""
        self._blocks.clear()

    def items(self) -> list[tuple[BlockHashWithGroupId, list[KVCacheBlock]]]:
        """Return every key with its blocks, oldest first: for drawings and checks. Given."""
        return [(key, list(blocks.values())) for key, blocks in self._blocks.items()]

    def __len__(self) -> int:
        """Return the number of keys. Given."""
        return len(self._blocks)


class BlockPool(block_pool.BlockPool):
    """The engine's pool; how its blocks are cached, kept and evicted is yours.

    You need `self.cached_block_hash_to_block`, the index, and `self.free_block_queue`, whose front is handed out next.
    On a block, `ref_cnt` and `block_hash` are yours to set; `prepend_n` and `append_n` keep the order of their list.
    """

    def cache_full_blocks(
        self,
        blocks: Sequence[KVCacheBlock],
        block_hashes: Sequence[BlockHash],
        num_cached_blocks: int,
        num_full_blocks: int,
        kv_cache_group_id: int = 0,
    ) -> None:
        """Give the blocks of a table that have just become full their hashes, and enter them in the index.

            table     | cached before     | just full        | not full, or not computed yet |
                      0                   num_cached_blocks  num_full_blocks

        `blocks` is the whole table, and `block_hashes` are the hashes of its full blocks, from the first one on; there
        are at least `num_full_blocks` of them. Only the middle part is changed. It may be empty.

        Afterwards each block of the middle part has its key in `block.block_hash`, and is in the index under it. The
        key is `make_block_hash_with_group_id(its hash, kv_cache_group_id)`. A hash is given once: raises
        `BlockStateError(message)`, with nothing changed, if a block of the middle part has one already.

        Another block may carry the same key: two requests have computed the same thing. Both keep their blocks, and
        both blocks are entered.

        Example: table 1 2 3 4 and hashes a b c d, `cache_full_blocks(table, hashes, 1, 3)`: block 2 is entered as b,
        block 3 as c. Block 1 has its hash from an earlier call; block 4 gets its own in a later one.
        """
        todo("lab-07", "BlockPool.cache_full_blocks", "the middle part of the table is cached")

    def _maybe_evict_cached_block(self, block: KVCacheBlock) -> bool:
        """Take the block's hash away, so that no lookup finds it any more; return whether it had one.

        The engine calls this in `get_new_blocks`, for each block that it hands out, and in `evict_blocks`, for blocks
        held or free; nowhere else. References and the free queue are not its business.

        Afterwards the hash is neither on the block nor, for this block, in the index. Another block with the same key
        stays there.

        Example: 8 and 9 carry the same key, 8 is the older. Evict 9: a lookup finds 8, as before, and 9 has no hash.
        """
        todo("lab-07", "BlockPool._maybe_evict_cached_block", "no lookup finds this block any more")

    def free_blocks(self, ordered_blocks: Iterable[KVCacheBlock]) -> None:
        """Drop one reference from each block; those that no table holds any more join the free queue.

            queue before   [ a  b  c ]
            given          p  x  q  y        no table holds them any more; x and y are not cached
            queue after    [ x  y  a  b  c  p  q ]

        The uncached ones are at the front, the cached ones at the back, both in the order given (`prepend_n`,
        `append_n`). The cached ones stay cached: free is not gone.

        Callers pass a table from its tail to its head, `reversed(table)`, which can be walked through once. Unlike in
        lab-03, check nothing: the list has no null block, no block twice, and only held blocks.

        Example: A's table is 1 2 3, cached, and 4, not full; B holds 1 as well. The queue is 5 6. `free_blocks` on
        4 3 2 1 leaves 4 5 6 3 2.
        """
        todo("lab-07", "BlockPool.free_blocks", "some are worth keeping")


class FullAttentionManager(single_type_kv_cache_manager.FullAttentionManager):
    """The engine's manager of one group of layers; the lookup is yours."""

    def find_longest_cache_hit(self, block_hashes: Sequence[BlockHash], max_length: int) -> list[KVCacheBlock]:
        """Return the blocks of the longest cached prefix of at most `max_length` tokens, first block first.

        `block_hashes` are those of the request's full blocks, first block first; a block has `self.block_size` tokens.
        `self.block_pool.get_cached_block(block_hash, [self.kv_cache_group_id])` returns a list of one block, or None.
        Held or free, a cached block can be hit. A request's progress is one number, a count of tokens from the first
        on. A lookup is a question: no reference, no move in the free queue.

        How to get there is for you to find. Cost: at most one `get_cached_block` for each block of the hit, and one for
        the miss that ends it.

        Example, block size 4, hashes a b c d, of which a b d are in the index: 2 blocks for `max_length` 16, 1 for 7,
        none for 3.
        """
        todo("lab-07", "FullAttentionManager.find_longest_cache_hit", "the goal is given, the steps are yours")


class KVCacheManager(kv_cache_manager.KVCacheManager):
    """The engine's manager; what it answers to a scheduler is yours."""

    def get_computed_blocks(self, request: Request) -> tuple[KVCacheBlocks, int]:
        """Return the longest cached prefix of the request: its blocks, and its length in tokens.

        The last token is always computed, because its result is wanted and the cache does not keep results.
        `request.num_tokens` counts the prompt and the tokens generated so far.
        `self.coordinator.find_longest_cache_hit(request.block_hashes, limit)` asks all groups (here there is one) for a
        hit of at most `limit` tokens. It returns two values: the blocks of each group, to be passed to
        `KVCacheBlocks(...)` as they are, and the length of the hit in tokens.

        Nothing changes, `self.prefix_cache_stats` neither: the request may yet be refused.

        Example, block size 4, 8 tokens that are all in the cache: one block and the number 4. With a ninth token: two
        blocks and 8.
        """
        todo("lab-07", "KVCacheManager.get_computed_blocks", "how many tokens may be hit?")


class PrefixCacheStats(stats.PrefixCacheStats):
    """Three counters that start at 0: `requests`, `queries` and `hits`; the rate is `hits / queries`."""

    def record(self, num_tokens: int, num_hits: int) -> None:
        """Count one request of `num_tokens` tokens, of which `num_hits` were in the cache. Called when it is admitted.

        `requests` counts requests. `queries` and `hits` count tokens: all of the request's, and those that were hit.

        Example: `record(32, 0)` and `record(32, 28)` give 2 requests, 64 queries, 28 hits.
        """
        todo("lab-07", "PrefixCacheStats.record", "three counters")

"""lab-07: hits and evictions. Your work goes here.

Run it from the repository's root:

    LAB_IMPL=starter pytest labs/lab-07
    $env:LAB_IMPL="starter"; pytest labs/lab-07          (Windows, PowerShell)

Five small classes, in which the methods of this lab are missing. Write them in any order: a test of one of your classes
uses the engine's versions of the others.

A block hash (`BlockHash`) is a digest of the tokens in a block and of all tokens before it. A request has the hashes of
its full blocks, in order, in `request.block_hashes`. A key of the index is a block hash with the number of a group of
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
    """The index: the blocks of each key, the oldest first. Usually there is one, but there may be more.

    `self._blocks[key]` is a dict of these blocks by their number, `block_id`. A Python dict keeps the order in which its
    items were added. A key without blocks is not in `self._blocks`.

    Example, used below: block 8 was inserted under the key K, then block 9, then block 5.
    """

    def __init__(self) -> None:
        """Make an empty index. Given, as are `clear`, `items` and `__len__`."""
        self._blocks: dict[BlockHashWithGroupId, dict[int, KVCacheBlock]] = {}

    def get_one_block(self, key: BlockHashWithGroupId) -> KVCacheBlock | None:
        """Return the oldest block under `key`, or None if there is none. Changes nothing.

        Example: for K, block 8, at every call. For a key that was never inserted, None.
        """
        todo("lab-07", "BlockHashToBlockMap.get_one_block", "which block of a key is the oldest?")

    def insert(self, key: BlockHashWithGroupId, block: KVCacheBlock) -> None:
        """Add `block` under `key`, as the youngest there. The others stay. One that is there already keeps its place.

        Example: after block 4 is inserted under K, its blocks are 8 9 5 4. After block 8 once more, still 8 9 5 4.
        """
        todo("lab-07", "BlockHashToBlockMap.insert", "what if the key has blocks already?")

    def pop(self, key: BlockHashWithGroupId, block_id: int) -> KVCacheBlock | None:
        """Take out the block with this number under `key`, and return it. If it is not there, return None.

        The other blocks of the key stay. A key without blocks is removed, so that the index does not grow forever.

        Example: `pop(K, 9)` returns block 9 and leaves 8 5. Then `pop(K, 9)` returns None, and so does `pop(L, 8)`, for
        a key L that was never inserted.
        """
        todo("lab-07", "BlockHashToBlockMap.pop", "which block goes, and when does the key go?")

    def clear(self) -> None:
        """Remove every key. Given."""
        self._blocks.clear()

    def items(self) -> list[tuple[BlockHashWithGroupId, list[KVCacheBlock]]]:
        """Return every key with its blocks, oldest first, for drawings and checks. Given."""
        return [(key, list(blocks.values())) for key, blocks in self._blocks.items()]

    def __len__(self) -> int:
        """Return the number of keys. Given."""
        return len(self._blocks)


class BlockPool(block_pool.BlockPool):
    """The engine's pool. How its blocks are cached, freed and evicted is yours.

    You need `self.cached_block_hash_to_block`, the index, and `self.free_block_queue`, whose front is allocated next. Set
    `ref_cnt` and `block_hash` on the blocks. `prepend_n` and `append_n` of the queue keep the order of their list.
    """

    def cache_full_blocks(
        self,
        blocks: Sequence[KVCacheBlock],
        block_hashes: Sequence[BlockHash],
        num_cached_blocks: int,
        num_full_blocks: int,
        kv_cache_group_id: int = 0,
    ) -> None:
        """Give the blocks of a table that have just become full their hashes, and insert them in the index.

            table     | cached before     | just full        | not full, or not computed yet |
                      0                   num_cached_blocks  num_full_blocks

        `blocks` is the whole table, and `block_hashes` has the hashes of its full blocks, from the first one on. It has
        at least `num_full_blocks` of them. Only the middle part is changed. It may be empty.

        Afterwards each block of the middle part has its key in `block.block_hash`, and is in the index under it. The
        key is `make_block_hash_with_group_id(its hash, kv_cache_group_id)`. A hash is given once: raises
        `BlockStateError(message)`, with nothing changed, if a block of the middle part has one already.

        Another block may have the same key, if two requests have computed the same tokens. Both keep their blocks, and
        both blocks are inserted.

        Example: table 1 2 3 4 and hashes a b c d, `cache_full_blocks(table, hashes, 1, 3)`: block 2 is inserted as b,
        block 3 as c. Block 1 has its hash from an earlier call. Block 4 gets its own in a later one.
        """
        todo("lab-07", "BlockPool.cache_full_blocks", "which blocks of the table are cached now?")

    def _maybe_evict_cached_block(self, block: KVCacheBlock) -> bool:
        """Remove the block's hash, so that no lookup finds it any more. Return whether it had one.

        The engine calls this in `get_new_blocks`, for each block that it allocates, and in `evict_blocks`, for blocks in
        use or free. References and the free queue are unchanged.

        Afterwards the hash is neither on the block nor, for this block, in the index. Another block with the same key
        stays there.

        Example: 8 and 9 have the same key, 8 is the older. After 9 is evicted a lookup finds 8, as before, and 9 has no
        hash.
        """
        todo("lab-07", "BlockPool._maybe_evict_cached_block", "in which two places is the hash?")

    def free_blocks(self, ordered_blocks: Iterable[KVCacheBlock]) -> None:
        """Drop one reference from each block. Those that no table contains any more are added to the free queue.

            queue before   [ a  b  c ]
            given          p  x  q  y        no table contains them any more, and x and y are not cached
            queue after    [ x  y  a  b  c  p  q ]

        The uncached ones are at the front, the cached ones at the back, both in the order given (`prepend_n`,
        `append_n`). The cached ones stay cached.

        Callers pass a table from its tail to its head, `reversed(table)`, an iterator, which can be read only once.
        Unlike in lab-03, check nothing: the list has no null block, no block twice, and only blocks in use.

        Example: A's table is 1 2 3, cached, and 4, not full. B's table contains 1 as well. The queue is 5 6.
        `free_blocks` on 4 3 2 1 leaves 4 5 6 3 2.
        """
        todo("lab-07", "BlockPool.free_blocks", "which blocks go to the front, and which to the back?")


class FullAttentionManager(single_type_kv_cache_manager.FullAttentionManager):
    """The engine's manager of one group of layers. The lookup is yours."""

    def find_longest_cache_hit(self, block_hashes: Sequence[BlockHash], max_length: int) -> list[KVCacheBlock]:
        """Return the blocks of the longest cached prefix of at most `max_length` tokens, first block first.

        `block_hashes` are those of the request's full blocks, first block first. A block has `self.block_size` tokens.
        `self.block_pool.get_cached_block(block_hash, [self.kv_cache_group_id])` returns a list of one block, or None. A
        cached block can be hit, in use or free. A request's progress is one number, a count of tokens from the first
        on. A lookup changes nothing: no reference and no place in the free queue.

        The steps are for you to find. Cost: at most one `get_cached_block` for each block of the hit, and one for the
        miss that ends it.

        Example, block size 4, hashes a b c d, of which a b d are in the index: 2 blocks for `max_length` 16, 1 for 7,
        none for 3.
        """
        todo("lab-07", "FullAttentionManager.find_longest_cache_hit", "where does a hit end?")


class KVCacheManager(kv_cache_manager.KVCacheManager):
    """The engine's manager. The lookup that a scheduler calls is yours."""

    def get_computed_blocks(self, request: Request) -> tuple[KVCacheBlocks, int]:
        """Return the longest cached prefix of the request: its blocks, and its length in tokens.

        The last token is always computed, because its result is wanted and the cache does not keep results.
        `request.num_tokens` counts the prompt and the tokens generated so far.
        `self.coordinator.find_longest_cache_hit(request.block_hashes, limit)` asks all groups (here there is one) for a
        hit of at most `limit` tokens. It returns two values: the blocks of each group, to be passed to
        `KVCacheBlocks(...)` as they are, and the length of the hit in tokens.

        Nothing changes, not even `self.prefix_cache_stats`, because the request may be refused.

        Example, block size 4, 8 tokens that are all in the cache: one block and the number 4. With a ninth token: two
        blocks and 8.
        """
        todo("lab-07", "KVCacheManager.get_computed_blocks", "how many tokens may be hit?")


class PrefixCacheStats(stats.PrefixCacheStats):
    """Three counters that start at 0: `requests`, `queries` and `hits`. The rate is `hits / queries`."""

    def record(self, num_tokens: int, num_hits: int) -> None:
        """Count one request of `num_tokens` tokens, of which `num_hits` were in the cache. Called when it is admitted.

        `requests` counts requests. `queries` counts all tokens of the request, `hits` the tokens that were hit.

        Example: `record(32, 0)` and `record(32, 28)` give 2 requests, 64 queries, 28 hits.
        """
        todo("lab-07", "PrefixCacheStats.record", "what does each counter count?")

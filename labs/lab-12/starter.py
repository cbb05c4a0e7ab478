"""lab-12: windows and groups. Your work goes here.

Run it from the repository's root:

    LAB_IMPL=starter pytest labs/lab-12
    $env:LAB_IMPL="starter"; pytest labs/lab-12          (Windows, PowerShell)

Write the parts in any order: the test of one part uses the engine's for the others.

Tokens are counted from 0, so when 5 tokens are computed, token 5 is next. Block number k of a table holds tokens
k * block_size and following. In this lab the blocks of all groups have the same number of tokens.
"""

from collections.abc import Mapping, Sequence

from mini_kv.core import kv_cache_coordinator, single_type_kv_cache_manager
from mini_kv.core.block import BlockHash, KVCacheBlock
from mini_kv.core.kv_cache_interface import KVCacheGroupSpec, KVCacheSpec
from mini_kv.core.single_type_kv_cache_manager import cdiv  # noqa: F401  # cdiv(17, 16) is 2: division, rounded up
from mini_kv.course import todo


class SlidingWindowManager(single_type_kv_cache_manager.SlidingWindowManager):
    """The engine's manager of one group of layers with a window. Three methods are yours.

    You need `self.sliding_window` and `self.block_size` (both in tokens), `self.req_to_blocks` (the block table of each
    request, a list, under its id), `self.kv_cache_group_id` and `self.block_pool`, with its `null_block`.
    """

    def get_num_skipped_tokens(self, num_computed_tokens: int) -> int:
        """Return the number of tokens, from the first, that neither the next token nor any later one reads.

        The next token is number `num_computed_tokens`. It reads itself and the `self.sliding_window - 1` tokens before
        it. The result is never negative.

        Example, window 4, 6 tokens computed: token 6 reads tokens 3, 4, 5 and itself, so 3 tokens are skipped.
        """
        todo("lab-12", "SlidingWindowManager.get_num_skipped_tokens", "which tokens does the next one read?")

    def remove_skipped_blocks(self, request_id: str, num_computed_tokens: int) -> None:
        """Free the blocks that no token reads any more, and put the null block in their places.

            before      [ null  b1   b2   b3 ]          blocks of 2, window 4, 7 tokens computed: 4 are skipped
            after       [ null null  b2   b3 ]          b1 is freed, and the table keeps its length

        A block is freed when all of its tokens are skipped, and not before. Its place gets
        `self.block_pool.null_block`. One call of `self.block_pool.free_blocks` gets all these blocks, the last one
        first, and never a null block. The list may be empty. That call updates references, block hashes and the free
        queue. A request that is not admitted yet has no table: then there is nothing to do.

        Example, blocks of 2, window 4, table 5 6 7 8. With 4 tokens computed, 1 is skipped, and no block is freed. With
        5, block 5 is freed, and the table is 0 6 7 8. With 8 instead, `free_blocks` gets 6 5.
        """
        todo("lab-12", "SlidingWindowManager.remove_skipped_blocks", "which blocks does no token read any more?")

    def find_longest_cache_hit(self, block_hashes: Sequence[BlockHash], max_length: int) -> list[KVCacheBlock]:
        """Return the longest hit of at most `max_length` tokens: a block for each place, null blocks on its left.

            hashes    a   b   c   d   e         window 4, blocks of 2: the token after a block's end reads the last
            cached    a   -   c   d   -         3 tokens before it, so the last 2 blocks
            hit      null null c   d            8 tokens: b is missing, and the next token does not read it

        A hit has whole blocks, at most one per hash, and every block that the next token reads is cached. Near the
        beginning these are fewer: the first block alone is a hit if it is cached. The longest counts. To the left of
        these blocks the hit has null blocks, also where a block is cached. Without a hit, return an empty list.

        `self.block_pool.get_cached_block(block_hash, [self.kv_cache_group_id])` returns a list of one block, or None.
        No block is looked up twice, and none to the left of the hit's window. References and the free queue do not
        change.

        Example, as drawn: 8 tokens for `max_length` 8, 9, 10 and 11. For 7 there is only `[a]`. In a window of 1 the
        next token reads no block, so any length is a hit, of null blocks alone.
        """
        todo("lab-12", "SlidingWindowManager.find_longest_cache_hit", "which blocks does the next token read?")


class HybridKVCacheCoordinator(kv_cache_coordinator.HybridKVCacheCoordinator):
    """The engine's coordinator of several groups. Their common hit is yours.

    You need `self.single_type_managers` (one per group, in the groups' order), `self.full_attention_first` (the same
    managers, full attention first), `self.skipping_managers` (all but full attention), and
    `self.scheduler_block_size`, here the block size of every group. A manager has its `kv_cache_group_id`.
    """

    def find_longest_cache_hit(
        self, block_hashes: Sequence[BlockHash], max_cache_hit_length: int
    ) -> tuple[tuple[list[KVCacheBlock], ...], int]:
        """Return the longest hit of all groups: blocks, one list per group, and its length in tokens.

        `manager.find_longest_cache_hit(block_hashes, max_length)` returns the longest hit of one group alone, of at
        most `max_length` tokens. Any beginning of a full-attention hit is a hit. A beginning of another group's hit may
        not be, since the next token at another end reads other blocks.

        The lists are in the order of the groups, and each has the blocks of the common length. If the groups agree on
        no length, return an empty list for each, and 0. No state changes. A full-attention group is asked once.

        Example, blocks of 2, group 0 a window of 3, group 1 full attention, max_cache_hit_length 9. Full attention has
        blocks 1 2 3 4, so 8 tokens. The window lacks its fourth block but has its third, 7: together 6 tokens,
        `(([0, 0, 7], [1, 2, 3]), 6)` in numbers of blocks.
        """
        todo("lab-12", "HybridKVCacheCoordinator.find_longest_cache_hit", "on which length do all groups agree?")


def group_layers(kv_cache_spec: Mapping[str, KVCacheSpec]) -> tuple[KVCacheGroupSpec, ...]:
    """Return the groups of layers that share a block table.

    `kv_cache_spec` has the spec of each layer by its name, in the model's order. Blocks of all specs have equal bytes.

    - Layers are of one kind if their specs are equal. Only layers of one kind share a table.
    - All groups have room for the same number of layers, since a block has the same bytes for each. `least` is the
      number of layers of the rarest kind, `most` that of the most frequent kind. The room is `most` if
      `most < 1.5 * least`, else `least`. For 14 and 10 layers it is 14, for 15 and 10 it is 10.
    - A kind has as few groups as possible. Its layers are dealt out to them like cards, so the empty places are spread.
    - A group is `KVCacheGroupSpec(names, spec)`: a tuple of names, and their common spec. The kinds are in the order of
      their first layers.

    Example: the layers w0 f0 w1 w2 w3, where w are windows and f full attention. The rarest kind has 1, so there are
    five groups of one layer. The layers w0 f0 w1 w2 w3 f1 have the groups (w0, w2), (w1, w3), (f0, f1).
    """
    todo("lab-12", "group_layers", "which layers share a block table?")

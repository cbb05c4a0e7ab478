"""lab-12: windows and groups. Your work goes here.

Run it from the repository's root:

    LAB_IMPL=starter pytest labs/lab-12
    $env:LAB_IMPL="starter"; pytest labs/lab-12          (Windows, PowerShell)

Write the parts in any order: where a test looks at one of them, the engine's stand in for the others.

Tokens are counted from 0, so when 5 tokens are computed, token 5 is next. Block number k of a table holds tokens
k * block_size and following. In this lab the blocks of all groups have the same number of tokens.
"""

from collections.abc import Mapping, Sequence

from mini_kv.core import kv_cache_coordinator, single_type_kv_cache_manager
from mini_kv.core.block import BlockHash, KVCacheBlock
from mini_kv.core.kv_cache_interface import KVCacheGroupSpec, KVCacheSpec
from mini_kv.core.single_type_kv_cache_manager import cdiv  # noqa: F401  # cdiv(17, 16) is 2: division, rounded up
from mini_kv.labkit import todo


class SlidingWindowManager(single_type_kv_cache_manager.SlidingWindowManager):
    """The engine's manager of one group of layers with a window; the window is yours.

    You need `self.sliding_window` and `self.block_size` (both in tokens), `self.req_to_blocks` (the block table of each
    request, a list, under its id), `self.kv_cache_group_id` and `self.block_pool`, with its `null_block`.
    """

    def get_num_skipped_tokens(self, num_computed_tokens: int) -> int:
        """Return how many tokens, from the first, are read neither by the next token nor by any later one.

        The next token is number `num_computed_tokens`. It reads itself and the `self.sliding_window - 1` tokens before
        it. The answer is never negative.

        Example, window 4, 6 tokens computed: token 6 reads tokens 3, 4, 5 and itself, so 3 tokens are skipped.
        """
        todo("lab-12", "SlidingWindowManager.get_num_skipped_tokens", "which tokens does the next one read?")

    def remove_skipped_blocks(self, request_id: str, num_computed_tokens: int) -> None:
        """Give back the blocks that no token reads any more, and put the null block in their places.

            before      [ null  b1   b2   b3 ]          blocks of 2, window 4, 7 tokens computed: 4 are skipped
            after       [ null null  b2   b3 ]          b1 is given back; the table is as long as before

        1. A block goes when all of its tokens are skipped (`self.get_num_skipped_tokens`), and not before.
        2. Those that went in earlier calls are null blocks by now, in one row from the head of the table. They stay.
        3. Put `self.block_pool.null_block` in the place of each that goes, and give the blocks to
           `self.block_pool.free_blocks`, all in one call, the last one first. It updates references, block hashes
           and the free queue. No request holds null blocks, so give it none.

        A request that is not admitted yet has no table: then there is nothing to do.

        Example, blocks of 2, window 4, table 5 6 7 8, nothing given back so far. With 4 tokens computed, 1 is skipped,
        no block goes. With 5: block 5 goes, and the table is 0 6 7 8. With 8, instead: `free_blocks` gets 6 5.
        """
        todo("lab-12", "SlidingWindowManager.remove_skipped_blocks", "step 1, how many whole blocks are skipped?")

    def find_longest_cache_hit(self, block_hashes: Sequence[BlockHash], max_length: int) -> list[KVCacheBlock]:
        """Return the longest hit of at most `max_length` tokens: a block for each place, null blocks on its left.

            hashes    a   b   c   d   e         window 4, blocks of 2: the token behind a block's end reads the last
            cached    a   -   c   d   -         3 tokens before it, so the last 2 blocks
            hit      null null c   d            8 tokens; b is missing, and the next token does not read it

        1. Whole blocks only: not more than `max_length` has room for, nor more than there are hashes.
        2. A hit that ends behind a block is good when every block is cached of which the next token reads something.
           Near the beginning these are fewer: the first block alone is a hit if it is cached.
        3. Of all good ones take the longest. So look from the right: the first that is good will do.
        4. `self.block_pool.get_cached_block(block_hash, [self.kv_cache_group_id])` returns a list of one block, or
           None. Cost: no block is looked up twice, and none is looked up that lies left of the hit's window.

        Changes nothing: no reference, no move in the free queue.

        Example, as drawn: 8 tokens for `max_length` 8, 9, 10 and 11; for 7 there is only `[a]`. With a window of 1
        nothing is read, so any length is a hit, of null blocks alone.
        """
        todo("lab-12", "SlidingWindowManager.find_longest_cache_hit", "step 1, where may a hit end at most?")


class HybridKVCacheCoordinator(kv_cache_coordinator.HybridKVCacheCoordinator):
    """The engine's coordinator of several groups; what a hit of all of them is, is yours.

    You need `self.single_type_managers` (one per group, in the groups' order), `self.full_attention_first` (the same
    managers, those of full attention in front), `self.skipping_managers` (all but those of full attention), and
    `self.scheduler_block_size`, here the block size of every group. A manager knows its `kv_cache_group_id`.
    """

    def find_longest_cache_hit(
        self, block_hashes: Sequence[BlockHash], max_cache_hit_length: int
    ) -> tuple[tuple[list[KVCacheBlock], ...], int]:
        """Return the longest hit that is one for every group: blocks, one list per group, and its length in tokens.

        1. `manager.find_longest_cache_hit(block_hashes, max_length)` returns the longest hit of this group alone, of at
           most `max_length` tokens. Start with all whole blocks that `max_cache_hit_length` has room for.
        2. A group that answers with less shortens the hit for all. Then the others must say whether it is a hit for
           them at that length, and may shorten it further; until none does.
        3. Any beginning of a hit of full attention is a hit, so these need to be asked only once, and their answers can
           be cut. No other group's can: at another end another window is read.
        4. In the end each list has as many blocks as the length has. They stand in the order of the groups. If the
           groups agree on nothing: empty lists and 0. Changes nothing.

        Example, blocks of 2, group 0 a window of 3, group 1 full attention, max_cache_hit_length 9. Full attention has
        blocks 1 2 3 4, so 8 tokens. The window lacks its fourth block but has its third, 7: together 6 tokens,
        `(([0, 0, 7], [1, 2, 3]), 6)` in numbers of blocks.
        """
        todo("lab-12", "HybridKVCacheCoordinator.find_longest_cache_hit", "step 1, how long may it be at most?")


def group_layers(kv_cache_spec: Mapping[str, KVCacheSpec]) -> tuple[KVCacheGroupSpec, ...]:
    """Return the groups of layers that share a block table.

    `kv_cache_spec` has the spec of each layer by its name, in the model's order; blocks have equal bytes in all specs.

    1. Layers are of one kind if their specs are equal. Only layers of one kind can share a table.
    2. A block must have the same bytes for every group, so all groups get room for the same number of layers: as many
       as there are of the rarest kind. But if there are fewer than 1.5 times as many of the most frequent kind, then as
       many as of that.
    3. Each kind is dealt out, like cards, to as few groups as it needs: a layer to the first group, one to the second,
       and round again. So empty places are spread over its groups.
    4. A group is `KVCacheGroupSpec(layer_names, kv_cache_spec)`, with a tuple of names. The kinds come in the order of
       their first layers.

    Example: layers w0 f0 w1 w2 w3, where w are windows and f full attention, and the rarest kind has 1: five groups of
    one layer. With f1 as a sixth layer: (w0, w2), (w1, w3), (f0, f1).
    """
    todo("lab-12", "group_layers", "step 1, which layers are of one kind?")

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
from mini_kv.course import todo


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

        A block goes when all of its tokens are skipped, and not before; `self.block_pool.null_block` has its place. The
        call gives the blocks to `self.block_pool.free_blocks` in one go, the last one first, and never a null block,
        which no request holds. That updates references, block hashes and the free queue. A request that is not admitted
        yet has no table: then there is nothing to do.

        Example, blocks of 2, window 4, table 5 6 7 8, nothing given back so far. With 4 tokens computed, 1 is skipped,
        no block goes. With 5: block 5 goes, and the table is 0 6 7 8. With 8, instead: `free_blocks` gets 6 5.
        """
        todo("lab-12", "SlidingWindowManager.remove_skipped_blocks", "which blocks does no token read any more?")

    def find_longest_cache_hit(self, block_hashes: Sequence[BlockHash], max_length: int) -> list[KVCacheBlock]:
        """Return the longest hit of at most `max_length` tokens: a block for each place, null blocks on its left.

            hashes    a   b   c   d   e         window 4, blocks of 2: the token behind a block's end reads the last
            cached    a   -   c   d   -         3 tokens before it, so the last 2 blocks
            hit      null null c   d            8 tokens; b is missing, and the next token does not read it

        A hit is whole blocks, not more than there are hashes, and every block is cached that the next token reads. Near
        the beginning these are fewer: the first block alone is a hit if it is cached. The longest counts. To the left
        of what is read the hit has null blocks, also where a block is cached. No hit: an empty list.

        `self.block_pool.get_cached_block(block_hash, [self.kv_cache_group_id])` returns a list of one block, or None.
        Cost: no block is looked up twice, and none is looked up that lies left of the hit's window. Changes nothing: no
        reference, no move in the free queue.

        Example, as drawn: 8 tokens for `max_length` 8, 9, 10 and 11; for 7 there is only `[a]`. With a window of 1
        nothing is read, so any length is a hit, of null blocks alone.
        """
        todo("lab-12", "SlidingWindowManager.find_longest_cache_hit", "which blocks does the next token read?")


class HybridKVCacheCoordinator(kv_cache_coordinator.HybridKVCacheCoordinator):
    """The engine's coordinator of several groups; the hit that they have in common is yours.

    You need `self.single_type_managers` (one per group, in the groups' order), `self.full_attention_first` (the same
    managers, those of full attention in front), `self.skipping_managers` (all but those of full attention), and
    `self.scheduler_block_size`, here the block size of every group. A manager knows its `kv_cache_group_id`.
    """

    def find_longest_cache_hit(
        self, block_hashes: Sequence[BlockHash], max_cache_hit_length: int
    ) -> tuple[tuple[list[KVCacheBlock], ...], int]:
        """Return the longest hit that is one for every group: blocks, one list per group, and its length in tokens.

        `manager.find_longest_cache_hit(block_hashes, max_length)` returns the longest hit of one group alone, of at
        most `max_length` tokens. A beginning of a hit of full attention is a hit; a beginning of another group's need
        not be, since at another end another window is read.

        Each list has as many blocks as the hit has, in the order of the groups. If the groups agree on nothing: an
        empty list for each, and 0. Changes nothing. Cost: a group of full attention is asked once.

        Example, blocks of 2, group 0 a window of 3, group 1 full attention, max_cache_hit_length 9. Full attention has
        blocks 1 2 3 4, so 8 tokens. The window lacks its fourth block but has its third, 7: together 6 tokens,
        `(([0, 0, 7], [1, 2, 3]), 6)` in numbers of blocks.
        """
        todo("lab-12", "HybridKVCacheCoordinator.find_longest_cache_hit", "on which length do all groups agree?")


def group_layers(kv_cache_spec: Mapping[str, KVCacheSpec]) -> tuple[KVCacheGroupSpec, ...]:
    """Return the groups of layers that share a block table.

    `kv_cache_spec` has the spec of each layer by its name, in the model's order; blocks have equal bytes in all specs.

    - Layers are of one kind if their specs are equal. Only layers of one kind share a table.
    - All groups have room for the same number of layers, since a block has the same bytes for each: as many as there
      are of the rarest kind, `least`. But if `most < 1.5 * least`, where `most` are the layers of the most frequent
      kind, it is `most`.
    - A kind has as few groups as it needs, and its empty places are spread over them: its layers are dealt out like
      cards.
    - A group is `KVCacheGroupSpec(names, spec)`: a tuple of names, and the spec that they have in common. The kinds
      come in the order of their first layers.

    Example: layers w0 f0 w1 w2 w3, where w are windows and f full attention, and the rarest kind has 1: five groups of
    one layer. With f1 as a sixth layer: (w0, w2), (w1, w3), (f0, f1).
    """
    todo("lab-12", "group_layers", "which layers share a block table?")

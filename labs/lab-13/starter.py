"""lab-13: policy arena. Your work goes here.

Run it from the repository's root:

    LAB_IMPL=starter pytest labs/lab-13
    $env:LAB_IMPL="starter"; pytest labs/lab-13          (Windows, PowerShell)

A policy is asked for one block at a time. It hears of everything that it may decide by:

    record_miss    blocks were computed: they have a hash now, and what stood in them before is gone
    record_hit     blocks were found by a request, which holds them from now on
    enter          no request holds this block any more: it waits, and may be chosen
    leave          a waiting block is held again
    victim         give up a waiting block: it will be overwritten

The calls for a block that two prompts use, one after the other, in this order:

    record_miss, enter                computed by the first, which ends
    record_hit, leave, enter          found by the second: the hit is recorded while the block still waits
    record_hit, enter                 found by the second while the first still holds it: no `leave`
    victim                            overwritten; the next `record_miss` of this block is for another content

What a call frees comes to `enter` one block after another, the tail of a prompt first. `EvictionPolicy` does the rest:
blocks without a hash, mistakes of the caller, the free queue's other verbs. Only waiting blocks can be chosen.
`in_order`, which its docstring names too, is for drawings and need not be written.
"""

from collections.abc import Sequence

from mini_kv.core.block import KVCacheBlock
from mini_kv.course import todo
from mini_kv.policy.eviction import EvictionPolicy


class LFU(EvictionPolicy):
    """Least frequently used, with ageing: an exact contract, so every victim can be predicted.

    A block is worth its uses, on top of the age that the cache had at the last of them. The age begins at 0, and is the
    worth of the last victim. The block that is worth least goes first; of several, the one that came to wait first.

    Example: a and b are computed and leave (worth 1 each); b is found again (worth 2) and leaves. The victim is a, and
    the age is 1. A block that is computed now is worth 2: level with b.
    """

    def __init__(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Begin without knowledge. Put what you want to remember before the call of `super`, which may use it."""
        super().__init__(blocks)

    def record_miss(self, blocks: Sequence[KVCacheBlock], position: int) -> None:
        """Note that each of these blocks has been used once: what stood in it before, and how often, is over.

        `position`: the first block's place in its prompt, counted from 0. Not needed here.
        """
        todo("lab-13", "LFU.record_miss", "uses, and what the block is worth at this age")

    def record_hit(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Note that each of these blocks, waiting or held, has been used once more: it is worth all its uses, now."""
        todo("lab-13", "LFU.record_hit", "one use more, and the worth anew")

    def enter(self, block: KVCacheBlock) -> None:
        """Let a block wait, with what it is worth: behind those that came before it and are worth the same."""
        todo("lab-13", "LFU.enter", "where would you look for the smallest, and what if it has left by then?")

    def leave(self, block: KVCacheBlock) -> None:
        """Let a waiting block go: it is held again. What is known of its uses stays."""
        todo("lab-13", "LFU.leave", "it must not be a victim while it is held")

    def victim(self) -> KVCacheBlock:
        """Give up the waiting block that is worth least, and return it. Its worth is the age now, even if that is less.

        At least one block waits. Cost: O(log n) on average; the board shows what yours takes.
        """
        todo("lab-13", "LFU.victim", "the smallest worth, and of equals the first that came")


class Hybrid(EvictionPolicy):
    """Yours: any rule that keeps to what an `EvictionPolicy` may do and finds more than LRU on two of six workloads.

    What you may use: the calls, their order, counters, the size of the pool (`self.num_blocks`), and what a block's
    `block_hash` says about equality. What you may not: the order of hashes or of a set, a clock, chance without a fixed
    seed, a look into the future. The same calls must give the same victims.
    """

    def __init__(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Begin without knowledge."""
        super().__init__(blocks)

    def enter(self, block: KVCacheBlock) -> None:
        """Let a block wait. `record_miss` and `record_hit` may be written beside it, if your rule needs them."""
        todo("lab-13", "Hybrid.victim", "begin with LRU: the blocks in the order in which they came")

    def leave(self, block: KVCacheBlock) -> None:
        """Let a waiting block go: it is held again."""
        todo("lab-13", "Hybrid.victim", "with LRU, it leaves from wherever it stands")

    def victim(self) -> KVCacheBlock:
        """Give up a waiting block, and return it. At least one waits."""
        todo("lab-13", "Hybrid.victim", "with LRU, the one that has waited longest; then look at the board")

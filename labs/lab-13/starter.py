"""lab-13: policy arena. Your work goes here.

Run it from the repository's root:

    LAB_IMPL=starter pytest labs/lab-13
    $env:LAB_IMPL="starter"; pytest labs/lab-13          (Windows, PowerShell)

A policy chooses one block at a time. It may use what these calls tell it:

    record_miss    blocks were computed: they have a hash now, and their old content is gone
    record_hit     blocks were found by a request, which holds them from now on
    enter          no request holds this block any more: it waits, and may be chosen
    leave          a waiting block was found: a request holds it again
    victim         choose a waiting block: it will be overwritten

The calls for a block that two prompts use, one after the other, in this order:

    record_miss, enter                computed by the first, which ends
    record_hit, leave, enter          found by the second: the hit is recorded while the block still waits
    record_hit, enter                 found by the second while the first still holds it: no `leave`
    victim                            overwritten: the next `record_miss` of this block is for other content

When a request ends, `enter` is called for one block after another, the tail of its prompt first. `EvictionPolicy` does
the rest: blocks without a hash, mistakes of the caller, the other methods of the free queue. Its `in_order` is for
drawings and need not be written.
"""

from collections.abc import Sequence

from mini_kv.core.block import KVCacheBlock
from mini_kv.course import todo
from mini_kv.policy.eviction import EvictionPolicy


class LFU(EvictionPolicy):
    """Least frequently used, with ageing: an exact contract, so every victim can be predicted.

    A block's worth is the number of its uses plus the age of the cache at the last of them. The age is 0 at first, then
    the worth of the last victim. The victim is the block with the smallest worth. Of equals it is the one that entered
    first.

    Example: a and b are computed and freed, with the worth 1 each. b is found again, which makes its worth 2, and is
    freed. The victim is a, and the age is 1. A block that is computed now has the worth 2, as b has.
    """

    def __init__(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Set up your state here, above the call of `super`: from that call on your methods may be called."""
        super().__init__(blocks)

    def record_miss(self, blocks: Sequence[KVCacheBlock], position: int) -> None:
        """Give each of these blocks one use. Uses of its old content are deleted.

        `position`: the first block's place in its prompt, counted from 0. Not needed here.
        """
        todo("lab-13", "LFU.record_miss", "how many uses has the block, and which worth at this age?")

    def record_hit(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Give each of these blocks, waiting or held, one use more. Its worth is the age now plus all its uses."""
        todo("lab-13", "LFU.record_hit", "which of its numbers change, and from which age?")

    def enter(self, block: KVCacheBlock) -> None:
        """Let a block wait with its worth, after the blocks of the same worth that entered before it."""
        todo("lab-13", "LFU.enter", "where would you look for the smallest, and what if it has left by then?")

    def leave(self, block: KVCacheBlock) -> None:
        """Make a waiting block one that is held. Its uses and its worth are unchanged."""
        todo("lab-13", "LFU.leave", "how will `victim` know that this block is held?")

    def victim(self) -> KVCacheBlock:
        """Return the waiting block with the smallest worth. It does not wait any more, and the age is its worth now.

        At least one block waits. The worth may be less than the age before. Cost: O(log n) on average.
        """
        todo("lab-13", "LFU.victim", "which is the smallest worth, and does its block still wait?")


class Hybrid(EvictionPolicy):
    """Your own rule, which finds more than LRU on two of the six workloads.

    It may use the calls, their order, counters, the size of the pool (`self.num_blocks`), and the equality of block
    hashes. It may not use the order of hashes or of a set, a clock, random numbers without a fixed seed, or future
    calls. The same calls must give the same victims.
    """

    def __init__(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Set up your state here, above the call of `super`."""
        super().__init__(blocks)

    def enter(self, block: KVCacheBlock) -> None:
        """Let a block wait. You may write `record_miss` and `record_hit` as well, if your rule needs them."""
        todo("lab-13", "Hybrid.victim", "for LRU: in which order do the blocks wait?")

    def leave(self, block: KVCacheBlock) -> None:
        """Make a waiting block one that is held."""
        todo("lab-13", "Hybrid.victim", "for LRU: where in the order is this block?")

    def victim(self) -> KVCacheBlock:
        """Return a waiting block, which does not wait any more. At least one waits."""
        todo("lab-13", "Hybrid.victim", "for LRU: which block has waited longest?")

"""The seam for admission strategies: how much must stay free while a newcomer enters.

Admitting everybody who fits is tempting: but those who run grow by a token a step, and if the newcomer took the last
block, somebody is thrown out a moment later and pays for all of its tokens again. Blocks kept back prevent that, and
are of no use otherwise. `mini_kv.policy.admission` holds the strategies; the scheduler's own is the first of them.
"""

from typing import Protocol

from mini_kv.core.block_pool import BlockPool


class AdmissionPolicy(Protocol):
    """Says when a waiting request may enter. Asked only while somebody runs: an idle engine admits whoever fits.

    That rule is the scheduler's and not the strategy's, so that no strategy can bring the engine to a halt.
    """

    @property
    def may_jump(self) -> bool:
        """Whether those behind a request that does not fit may be tried."""

    def reserved_blocks(self, block_pool: BlockPool) -> int | None:
        """Return how many blocks must stay free after the newcomer has its own; `None`: nobody may enter now."""


class Greedy:
    """Whoever fits enters, in the order of the queue: vLLM's rule, whose watermark is 0.0 by default."""

    may_jump = False

    def reserved_blocks(self, block_pool: BlockPool) -> int | None:
        """Keep nothing back."""
        return 0

"""The seam for admission strategies: how many blocks must stay free while a newcomer enters.

A newcomer that fits now may still be let in too early: running requests grow by a token per step, and if it took the
last block, one of them is preempted a moment later and pays for all of its tokens again. Blocks kept back prevent that,
and are of no use otherwise. `mini_kv.policy.admission_strategies` holds more strategies.
"""

from dataclasses import dataclass
from typing import Protocol

from mini_kv.core.block_pool import BlockPool
from mini_kv.core.request import Request


class AdmissionPolicy(Protocol):
    """Says when a waiting request may enter. Asked only while others run: an idle engine admits what fits.

    That rule is the scheduler's and not the strategy's, so that no strategy can bring the engine to a halt.
    """

    @property
    def may_jump(self) -> bool:
        """Whether requests after one that does not fit may be admitted before it."""

    def reserved_blocks(self, block_pool: BlockPool, request: Request) -> int | None:
        """Return how many blocks must be free after this request has its own, or `None` if it may not enter now."""


@dataclass(frozen=True)
class Greedy:
    """Admits requests that fit, in the order of the queue. With `may_jump` also those after one that does not fit."""

    may_jump: bool = False

    def reserved_blocks(self, block_pool: BlockPool, request: Request) -> int | None:
        """Return 0."""
        return 0

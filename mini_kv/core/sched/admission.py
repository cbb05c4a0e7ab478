"""Interface of admission strategies: the number of blocks that must stay free when a new request is admitted.

A new request that fits now may still be admitted too early. Running requests grow by a token per step. If it took
the last block, a request is soon preempted and computes all of its tokens again. Reserved blocks prevent that.
They have no other use. `mini_kv.policy.admission_strategies` has more strategies.
"""

from dataclasses import dataclass
from typing import Protocol

from mini_kv.core.block_pool import BlockPool
from mini_kv.core.request import Request


class AdmissionPolicy(Protocol):
    """Decides when a waiting request may enter. An idle engine does not use it and admits any request that fits.

    The rule for an idle engine is in the scheduler, so that no strategy can stop the engine forever.
    """

    @property
    def may_jump(self) -> bool:
        """Whether requests after one that does not fit may be admitted before it."""

    def reserved_blocks(self, block_pool: BlockPool, request: Request) -> int | None:
        """Return the number of blocks that must be free after its admission, or `None` if it may not enter now."""


@dataclass(frozen=True)
class Greedy:
    """Admits requests that fit, in queue order. With `may_jump` also requests after one that does not fit."""

    may_jump: bool = False

    def reserved_blocks(self, block_pool: BlockPool, request: Request) -> int | None:
        """Return 0."""
        return 0

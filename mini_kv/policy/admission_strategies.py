"""Admission strategies: whether a waiting request that fits may enter.

    greedy              yes                                     a running request that grows may find no block
    greedy, jumping     yes, and so may those after it          a large request can be overtaken without end
    reserved blocks     if a number of blocks stays free        steady growth is paid for in advance
    hysteresis          until too much is held, then none       few changes of state, long waits
    with small ones     then small requests alone               shorter waits, more tokens computed twice

Besides greedy, vLLM has one more rule: a share of the pool stays free. It is an argument of the cache manager,
`KVCacheManager(watermark=...)`. A block is held if a table contains it. A cached-free block is not held, because it
can be reused at any time. A strategy that counted it would soon admit no more requests.
"""

from dataclasses import dataclass, field

from mini_kv.core.block_pool import BlockPool
from mini_kv.core.errors import ConfigError
from mini_kv.core.request import Request
from mini_kv.core.sched.admission import AdmissionPolicy, Greedy

__all__ = ["Greedy", "Hysteresis", "ReservedBlocks", "Strategy", "strategies"]


@dataclass(frozen=True)
class ReservedBlocks:
    """Keeps a fixed number of blocks free for running requests."""

    num_blocks: int
    may_jump: bool = False

    def __post_init__(self) -> None:
        if self.num_blocks < 0:
            raise ConfigError(f"num_blocks is {self.num_blocks}, it must not be negative")

    def reserved_blocks(self, block_pool: BlockPool, request: Request) -> int | None:
        """Return the fixed number."""
        return self.num_blocks


@dataclass
class Hysteresis:
    """Stops admission when more than `high` of the pool is held, and starts it again when less than `low` is.

        held      0 ........... low ................. high ........... 1
        door      open         | as it was           | closed, but for small requests

    With two limits instead of one, admission does not change with every block. A request is small if it never has more
    than `small` tokens, its output included. With 0 no request is small.
    """

    high: float = 0.9
    low: float = 0.5
    small: int = 0
    may_jump: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.low <= self.high <= 1:
            raise ConfigError(f"low is {self.low} and high {self.high}: they must be 0 < low <= high <= 1")
        self._open = True

    def reserved_blocks(self, block_pool: BlockPool, request: Request) -> int | None:
        """Return 0 for requests that may enter, else `None`."""
        if block_pool.usage > self.high:
            self._open = False
        elif block_pool.usage < self.low:
            self._open = True
        return 0 if self._open or request.max_slots <= self.small else None


@dataclass(frozen=True, slots=True)
class Strategy:
    """Decides when a new request may enter: a policy, or a share of the pool that the cache manager keeps free."""

    admission: AdmissionPolicy = field(default_factory=Greedy)
    watermark: float = 0.0


def strategies() -> dict[str, Strategy]:
    """Return new strategies by name. They are new because a strategy with state must not keep it for another run."""
    return {
        "greedy": Strategy(),
        "jumping": Strategy(Greedy(may_jump=True)),
        "reserved-8": Strategy(ReservedBlocks(8)),
        "watermark-10": Strategy(watermark=0.1),
        "hysteresis-90-50": Strategy(Hysteresis(0.9, 0.5)),
        "small-90-50": Strategy(Hysteresis(0.9, 0.5, small=4096, may_jump=True)),
    }

"""Four answers to one question: the newcomer fits, may it enter?

    greedy              yes                                     whoever grows next may find nothing, and throw it out
    greedy, jumping     yes, and so may those behind it         a large request can be overtaken for ever
    reserved blocks     if so many blocks stay free for each    steady growth is paid for in advance
    watermark           if a share of the pool stays free       upstream's rule
    hysteresis          until too much is held, then nobody     few changes of mind, long waits

"Held" is what somebody needs. A block that is free but remembered is not held, since it can be taken at any moment: a
strategy that counted it would close its doors on an idle engine and never open them again.
"""

from dataclasses import dataclass

from mini_kv.core.block_pool import BlockPool
from mini_kv.core.errors import ConfigError


@dataclass(frozen=True)
class Greedy:
    """Whoever fits enters; `may_jump` lets those behind a request that does not fit try as well."""

    may_jump: bool = False

    def reserved_blocks(self, block_pool: BlockPool) -> int | None:
        """Keep nothing back."""
        return 0


@dataclass(frozen=True)
class ReservedBlocks:
    """Keep a fixed number of blocks for those who run."""

    num_blocks: int
    may_jump: bool = False

    def __post_init__(self) -> None:
        if self.num_blocks < 0:
            raise ConfigError(f"num_blocks is {self.num_blocks}, it must not be negative")

    def reserved_blocks(self, block_pool: BlockPool) -> int | None:
        """Keep these blocks back."""
        return self.num_blocks


@dataclass(frozen=True)
class Watermark:
    """Keep a share of all blocks free.

    Source: vLLM `SchedulerConfig.watermark`, 0.0 by default in 0.33.
    """

    fraction: float
    may_jump: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.fraction < 1:
            raise ConfigError(f"fraction is {self.fraction}, it must be in 0 <= fraction < 1")

    def reserved_blocks(self, block_pool: BlockPool) -> int | None:
        """Keep the share back, rounded down to whole blocks."""
        return int(self.fraction * (len(block_pool.blocks) - 1))


@dataclass
class Hysteresis:
    """Close the door when more than `high` of the pool is held, and open it again when less than `low` is.

        held      0 ........... low ................. high ........... 1
        door      open         | as it was           | closed

    Two marks instead of one, so that the door does not swing with every block.
    """

    high: float = 0.9
    low: float = 0.5
    may_jump: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.low <= self.high <= 1:
            raise ConfigError(f"low is {self.low} and high {self.high}: they must be 0 < low <= high <= 1")
        self._open = True

    def reserved_blocks(self, block_pool: BlockPool) -> int | None:
        """Keep nothing back while the door is open."""
        if block_pool.usage > self.high:
            self._open = False
        elif block_pool.usage < self.low:
            self._open = True
        return 0 if self._open else None

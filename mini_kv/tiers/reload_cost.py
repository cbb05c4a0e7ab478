"""The cost of getting an evicted block back: by computing it again, or by reloading it.

    seconds to compute    tokens x seconds per token                          without the fixed cost of each step
    seconds to reload     seconds at once + bytes x seconds per byte          "at once": request, wait, planning

Reloading costs time before the first byte. So computing is faster for short prefixes, and reloading for long ones. The
crossover is the length at which both cost the same. It depends on the model, the machine and the tier: measure it.
"""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from mini_kv.core.errors import ConfigError


@dataclass(frozen=True, slots=True)
class ReloadCost:
    """The costs on one machine. Pass `is_worth_it` to `TieringConnector`."""

    seconds_per_token: float
    """Seconds to compute one token of a prompt."""
    seconds_per_byte: float
    """Seconds to reload one byte."""
    seconds_at_once: float = 0.0
    """Seconds per reload, independent of its size."""

    def __post_init__(self) -> None:
        if self.seconds_per_token <= 0:
            raise ConfigError(f"seconds_per_token is {self.seconds_per_token}, it must be more than 0")
        if self.seconds_per_byte < 0 or self.seconds_at_once < 0:
            raise ConfigError("seconds_per_byte and seconds_at_once must not be negative")

    def is_worth_it(self, num_tokens: int, num_bytes: int) -> bool:
        """Return whether reloading these bytes takes less time than computing these tokens."""
        return self.seconds_at_once + num_bytes * self.seconds_per_byte < num_tokens * self.seconds_per_token

    def crossover_tokens(self, bytes_per_token: int) -> int | None:
        """Return the length of the shortest prefix that is faster to reload, or `None` if there is none."""
        gain = self.seconds_per_token - bytes_per_token * self.seconds_per_byte
        return math.floor(self.seconds_at_once / gain) + 1 if gain > 0 else None


class LearnedCost:
    """Costs that an engine learns from its own steps, and from the bytes that it reloaded before them.

    Both costs are straight lines. Until each has measurements of two lengths, every hit is reloaded. The time of disk
    and server does not count: they are read while other requests are computed, before the decision.
    """

    def __init__(self, num_remembered: int = 64, one_in: int = 16) -> None:
        """Start without measurements. After `one_in - 1` refusals in a row reload once: costs may have changed."""
        self._steps = deque[tuple[float, float]](maxlen=num_remembered)
        self._copies = deque[tuple[float, float]](maxlen=num_remembered)
        self._one_in, self._num_refused = one_in, 0

    def computed(self, num_tokens: int, seconds: float) -> None:
        """Record the time of a step with this many tokens."""
        self._steps.append((num_tokens, seconds))

    def copied(self, num_bytes: int, seconds: float) -> None:
        """Record the time of reloading these bytes."""
        self._copies.append((num_bytes, seconds))

    @property
    def prices(self) -> ReloadCost | None:
        """The costs measured so far, or `None` if there are too few measurements."""
        if min(len({length for length, _ in seen}) for seen in (self._steps, self._copies)) < 2:
            return None
        (_, per_token), (at_once, per_byte) = line_through(self._steps), line_through(self._copies)
        return ReloadCost(per_token, max(per_byte, 0.0), max(at_once, 0.0)) if per_token > 0 else None

    def is_worth_it(self, num_tokens: int, num_bytes: int) -> bool:
        """Return whether reloading these bytes takes less time than computing these tokens, as far as is known."""
        prices = self.prices
        if prices is None or prices.is_worth_it(num_tokens, num_bytes) or self._num_refused == self._one_in - 1:
            self._num_refused = 0
            return True
        self._num_refused += 1
        return False


def line_through(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return the intercept and the slope of the line nearest to the points: the fixed cost, and the cost per unit.

    Uses least squares. Raises `ConfigError` for fewer than two different x values.
    """
    mean_x = sum(x for x, _ in points) / max(len(points), 1)
    mean_y = sum(y for _, y in points) / max(len(points), 1)
    width = sum((x - mean_x) ** 2 for x, _ in points)
    if width == 0:
        raise ConfigError("a line needs measurements at two lengths at least")
    slope = sum((x - mean_x) * (y - mean_y) for x, y in points) / width
    return mean_y - slope * mean_x, slope

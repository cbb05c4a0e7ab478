"""Recompute or reload: what a block that has left the pool costs to have back, either way.

    seconds to compute    tokens x seconds per token                          a prompt's, without what each step costs
    seconds to reload     seconds at once + bytes x seconds per byte          "at once": asking, waiting, planning

Reloading has a price before the first byte, so short prefixes are computed and long ones reloaded. Where the lines meet
is the crossover: a property of the model, of the machine and of the tier, and so a thing to be measured.
"""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from mini_kv.core.errors import ConfigError


@dataclass(frozen=True, slots=True)
class ReloadCost:
    """A machine's prices. `is_worth_it` can be given to `TieringConnector`."""

    seconds_per_token: float
    """To compute one token of a prompt."""
    seconds_per_byte: float
    """To bring up one byte."""
    seconds_at_once: float = 0.0
    """To bring up anything at all."""

    def __post_init__(self) -> None:
        if self.seconds_per_token <= 0:
            raise ConfigError(f"seconds_per_token is {self.seconds_per_token}, it must be more than 0")
        if self.seconds_per_byte < 0 or self.seconds_at_once < 0:
            raise ConfigError("bringing up a byte, or anything at all, cannot take less than 0 seconds")

    def is_worth_it(self, num_tokens: int, num_bytes: int) -> bool:
        """Return whether reloading these bytes takes less time than computing these tokens."""
        return self.seconds_at_once + num_bytes * self.seconds_per_byte < num_tokens * self.seconds_per_token

    def crossover_tokens(self, bytes_per_token: int) -> int | None:
        """Return the length of the shortest prefix that is quicker to reload, or `None` if no prefix is."""
        gain = self.seconds_per_token - bytes_per_token * self.seconds_per_byte
        return math.floor(self.seconds_at_once / gain) + 1 if gain > 0 else None


class LearnedCost:
    """Prices that an engine learns from its own steps, and from the bytes that it copied up before them.

    Both are lines, and until each has two lengths to go through, everything is reloaded. What a disk or a server takes
    is not in the price: their bytes come while other requests are computed, and have come when the choice is made.
    """

    def __init__(self, num_remembered: int = 64, one_in: int = 16) -> None:
        """Know no price. After `one_in - 1` refusals in a row one is reloaded anyway: a price may have changed."""
        self._steps = deque[tuple[float, float]](maxlen=num_remembered)
        self._copies = deque[tuple[float, float]](maxlen=num_remembered)
        self._one_in, self._num_refused = one_in, 0

    def computed(self, num_tokens: int, seconds: float) -> None:
        """Note how long a step of this many tokens took."""
        self._steps.append((num_tokens, seconds))

    def copied(self, num_bytes: int, seconds: float) -> None:
        """Note that it took that long to bring up these bytes."""
        self._copies.append((num_bytes, seconds))

    @property
    def prices(self) -> ReloadCost | None:
        """The prices measured so far, or `None` if there are too few measurements."""
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
    """Return where the line nearest to the points meets the axis, and its slope: what is paid at once, and per unit.

    By least squares. Raises `ConfigError` for fewer than two different places.
    """
    mean_x = sum(x for x, _ in points) / max(len(points), 1)
    mean_y = sum(y for _, y in points) / max(len(points), 1)
    width = sum((x - mean_x) ** 2 for x, _ in points)
    if width == 0:
        raise ConfigError("a line needs measurements at two lengths at least")
    slope = sum((x - mean_x) * (y - mean_y) for x, y in points) / width
    return mean_y - slope * mean_x, slope

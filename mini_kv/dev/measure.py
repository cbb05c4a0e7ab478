"""Measurement on a machine with other load: CPU time of one thread, many short runs, taken in turns."""

import gc
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import TypeAlias

Run: TypeAlias = Callable[[], dict[str, float]]
"""Does the work once and returns its figures by name."""


@dataclass(frozen=True, slots=True)
class Spread:
    """Median and quartiles of one figure over the runs."""

    median: float
    q1: float
    q3: float

    @property
    def relative_iqr(self) -> float:
        """Distance between the quartiles as a share of the median."""
        return (self.q3 - self.q1) / self.median if self.median else 0.0


def spread(values: Sequence[float]) -> Spread:
    """Return median and quartiles of `values`. For a single value all three are that value."""
    if len(values) == 1:
        return Spread(values[0], values[0], values[0])
    q1, median, q3 = statistics.quantiles(values, n=4, method="inclusive")
    return Spread(median, q1, q3)


class Stopwatch:
    """CPU time of this thread, in ns, booked on named phases.

        watch.start() ... watch.lap("admit") ... watch.lap("finish")
                      |== "admit" ========|== "finish" ===========|

    The kernel's thread clock costs nearly a microsecond per reading, which matters for calls of ten. Its cost is
    measured once and subtracted from every lap.
    """

    def __init__(self) -> None:
        self.ns: dict[str, int] = {}
        """Time booked so far, by phase."""
        self._lap_cost = lap_cost()
        self._last = 0

    def start(self) -> None:
        """Begin a lap here."""
        self._last = time.thread_time_ns()

    def lap(self, phase: str) -> None:
        """Book the time since the last lap on `phase`, and begin the next lap."""
        now = time.thread_time_ns()
        self.ns[phase] = self.ns.get(phase, 0) + now - self._last - self._lap_cost
        self._last = now


@cache
def lap_cost() -> int:
    """Return the time of an empty lap in ns: the median of many."""
    readings = [time.thread_time_ns() for _ in range(2001)]
    return int(statistics.median(b - a for a, b in pairwise(readings)))


@contextmanager
def _production_gc() -> Iterator[None]:
    """Collect garbage as a server does: automatically, except for objects from before the start.

    vLLM's engine also freezes its heap once it is up (`freeze_gc_heap`), so its GC never walks the pool.
    """
    was_enabled = gc.isenabled()
    gc.enable()
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
        if not was_enabled:
            gc.disable()


def take_turns(runs: Mapping[str, Run], repeats: int, warmups: int = 1) -> dict[str, dict[str, list[float]]]:
    """Run each runner `repeats` times in turns, A B A B, and return the values by runner and figure.

    In turns, so that a busy minute on the machine slows all of them equally. Every other round is reversed, so that no
    runner always follows the same other one. The first `warmups` rounds are not counted.
    """
    values: dict[str, dict[str, list[float]]] = {name: {} for name in runs}
    with _production_gc():
        for turn in range(warmups + repeats):
            order = list(runs) if turn % 2 == 0 else list(runs)[::-1]
            for name in order:
                figures = runs[name]()
                if turn < warmups:
                    continue
                for figure, value in figures.items():
                    values[name].setdefault(figure, []).append(value)
    return values

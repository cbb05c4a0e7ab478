"""Helpers for the tests of lab-14: a home and a pool in a given state, their visible state, plain twins."""

import math
import random
from collections.abc import Mapping, Sequence

from mini_kv.course.given.second_home import Block, Entry, Pool, SecondHome, digest_of
from mini_kv.course.labkit.fixture import InWords, LabUnderTest

Quantized = tuple[list[int], float]


def rounded(values: object, digits: int = 6) -> object:
    """Return a list of floats with this many digits, so that two ways to add them agree. Anything else is unchanged."""
    if not isinstance(values, list) or not all(isinstance(value, (int, float)) for value in values):
        return values
    return [round(value, digits) + 0.0 if math.isfinite(value) else value for value in values]


def as_floats(vector: Quantized) -> list[float]:
    """Return the numbers that a vector in int8 stands for."""
    numbers, scale = vector
    return [number * scale for number in numbers]


def read(query: Sequence[float], keys: Sequence[Quantized], values: Sequence[Quantized]) -> list[float]:
    """Attention by the book, on the numbers that the vectors stand for."""
    scores = [sum(q * k for q, k in zip(query, as_floats(key), strict=True)) / math.sqrt(len(query)) for key in keys]
    weights = [math.exp(score - max(scores)) for score in scores]
    columns = list(zip(*map(as_floats, values), strict=True))
    return [sum(w * v for w, v in zip(weights, column, strict=True)) / sum(weights) for column in columns]


def vectors(rng: random.Random, num: int, size: int, spread: float = 1.0) -> list[list[float]]:
    """Return random vectors. `spread` is the standard deviation of their numbers."""
    return [[rng.gauss(0, spread) for _ in range(size)] for _ in range(num)]


class Desk:
    """A second home and a pool, put into a state, and the calls of the learner's functions on them."""

    def __init__(
        self,
        lab: LabUnderTest,
        capacity: int = 4,
        home: str = "",
        leases: Mapping[str, int] | None = None,
        blocks: Mapping[int, str] | None = None,
        free: Sequence[int] = (),
    ) -> None:
        """Fill the home with contents by their letters, least recently used first, and the blocks of the pool.

        The payload of "a" is b"A". `blocks`: what each holds, "" for nothing.
        """
        self.lab, self.home = lab, SecondHome(capacity)
        for key in home:
            self.home.entries[key] = Entry(payload(key), digest_of(key, payload(key)), (leases or {}).get(key, 0))
        held = {number: Block(key, payload(key)) if key else Block() for number, key in (blocks or {}).items()}
        self.pool = Pool(held, list(free))

    def damage(self, key: str, what: bytes = b"?") -> None:
        """Change the payload of a key without updating its digest."""
        self.home.entries[key].payload = what

    def store(self, key: str) -> object:
        """Call the learner's `store`."""
        return self.lab.store(self.home, key, payload(key))

    def lease(self, key: str) -> object:
        """Call the learner's `lease`."""
        return self.lab.lease(self.home, key)

    def release(self, key: str) -> InWords:
        """Call the learner's `release`. Say whether it raised an error."""
        try:
            self.lab.release(self.home, key)
        except ValueError:
            return InWords("ValueError raised")
        return InWords("nothing raised")

    def promote(self, keys: str) -> object:
        """Call the learner's `promote`. Its list of keys must not have changed."""
        given = list(keys)
        table = self.lab.promote(self.home, self.pool, given)
        self.lab.expect("the keys that promote was given", list(keys), given, "the list is the caller's")
        return table

    def leased(self) -> dict[str, int]:
        """Return the keys that have leases, with how many."""
        return {key: entry.num_leases for key, entry in self.home.entries.items() if entry.num_leases}

    def sees(
        self,
        what: str,
        returned: tuple[object, object],
        *,
        home: str,
        leases: Mapping[str, int] | None = None,
        why: str = "",
        blocks: Mapping[int, str] | None = None,
        free: Sequence[int] | None = None,
    ) -> None:
        """Compare all visible state after a call. `returned` is the expected and the actual result."""
        rows: list[tuple[str, object, object, str]] = [
            (f"what came of {what}", *returned, why),
            (f"home after {what}, least recently used first", list(home), list(self.home.entries), why),
            (f"leases after {what}", dict(leases or {}), self.leased(), "a lease lasts until it is released"),
        ]
        if blocks is not None:
            held = {number: block.key or "" for number, block in self.pool.blocks.items()}
            right = [number for number, block in self.pool.blocks.items() if block.payload != payload(block.key or "")]
            rows += [
                (f"what the blocks hold after {what}", dict(blocks), held, why),
                (f"blocks whose bytes are another content's after {what}", [], right, "key and bytes move together"),
            ]
        if free is not None:
            rows.append((f"free queue after {what}", list(free), list(self.pool.free_queue), why))
        self.lab.expect_all(rows)


def payload(key: str) -> bytes:
    """Return the bytes of a content: those of "a" are b"A"."""
    return key.upper().encode()


class Twin:
    """A second home as it should be: plain, and compared with the learner's after each call."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.order: list[str] = []
        self.leases: dict[str, int] = {}

    def store(self, key: str) -> bool:
        """Store a content."""
        if key not in self.order and len(self.order) == self.capacity:
            idle = [old for old in self.order if not self.leases.get(old)]
            if not idle:
                return False
            self.order.remove(idle[0])
        self.order = [old for old in self.order if old != key] + [key]
        return True

    def lease(self, key: str) -> bytes | None:
        """Take a lease on a content."""
        if key not in self.order:
            return None
        self.leases[key] = self.leases.get(key, 0) + 1
        self.order = [old for old in self.order if old != key] + [key]
        return payload(key)

    def release(self, key: str) -> None:
        """End one lease."""
        self.leases[key] -= 1
        if not self.leases[key]:
            del self.leases[key]

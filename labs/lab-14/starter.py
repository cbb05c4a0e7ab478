"""lab-14: a cache in eight bits, and a second home for what it forgets. Your work goes here.

Run it from the repository's root:

    LAB_IMPL=starter pytest labs/lab-14
    $env:LAB_IMPL="starter"; pytest labs/lab-14          (Windows, PowerShell)

`SecondHome`, its `Entry`, `Pool` and `digest_of` are in mini_kv/course/given/second_home.py, fifty lines.
"""

from collections.abc import Sequence

from mini_kv.course import todo
from mini_kv.course.given.second_home import Pool, SecondHome

Quantized = tuple[list[int], float]
"""A vector in int8 and its scale."""


def quantize(values: Sequence[float]) -> Quantized:
    """Return a vector as whole numbers from -127 to 127 and the scale that undoes it.

    The number farthest from zero becomes 127 or -127; each comes back within half a scale. A vector of zeros has the
    scale 0.0. (-128 has no opposite, so it is not used.)
    """
    todo("lab-14", "quantize", "what is one step worth, and how many steps is each number")


def attend(query: Sequence[float], keys: Sequence[Quantized], values: Sequence[Quantized]) -> list[float]:
    """Return what a query reads from tokens whose keys and values are in int8, each with a scale of its own.

    The score of a token is query times key, divided by the square root of their length; its weight is the softmax of
    the scores, which must not overflow; the result is the weighted sum of the values.
    """
    todo("lab-14", "attend", "a whole number stands for itself times its scale")


def store(home: SecondHome, key: str, payload: bytes) -> bool:
    """Take a content in, as the most recently used; return whether it is there now.

    What is there already stays as it is, and counts as used. If the home is full, the least recently used entry leaves
    that has no lease; if all have one, nothing changes and the answer is no.
    """
    todo("lab-14", "store", "who is first in the order of use, and may it go")


def lease(home: SecondHome, key: str) -> bytes | None:
    """Return a content that is there, as the most recently used, and keep it from leaving until `release`.

    `None` if it is not there. If its digest is not that of its key and payload, it is not there either: forget it and
    count it in `num_damaged`. Whatever its bytes are, they are not used.
    """
    todo("lab-14", "lease", "is it there, is it what it should be, and who must know that you rely on it")


def release(home: SecondHome, key: str) -> None:
    """End one lease. Raises `ValueError`, and changes nothing, if there is none on this key."""
    todo("lab-14", "release", "one lease fewer")


def promote(home: SecondHome, pool: Pool, keys: Sequence[str]) -> list[int]:
    """Bring the longest beginning of these contents up, into free blocks; return the blocks, first content first.

    Only as many as there are free blocks, and only up to the first that is not in the home or is damaged. Each goes
    into the next free block and is no longer in the home: a content has one owner. What that block held goes down in
    its place, if the home has room: the first block's content first. Contents that are on their way up are not pushed
    out for those that go down, and in the end no lease is left.
    """
    todo("lab-14", "promote", "first make sure of all that you will bring, then move")


def crossover(
    seconds_per_token: float, seconds_per_byte: float, seconds_at_once: float, bytes_per_token: int
) -> int | None:
    """Return the least number of tokens that take less time to reload than to compute; `None` if there is none.

    Computing takes `seconds_per_token` each; reloading takes `seconds_at_once` and `seconds_per_byte` for each byte.
    """
    todo("lab-14", "crossover", "where do two lines meet")

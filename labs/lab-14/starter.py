"""lab-14: a cache in eight bits, and a second home for evicted contents. Your work goes here.

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

    The number farthest from zero becomes 127 or -127. Each is restored to within half a scale. A vector of zeros has
    the scale 0.0. A vector has at least one number. (-128 has no opposite, so it is not used.)
    """
    todo("lab-14", "quantize", "what is one step worth, and how many steps is each number?")


def attend(query: Sequence[float], keys: Sequence[Quantized], values: Sequence[Quantized]) -> list[float]:
    """Return what a query reads from tokens whose keys and values are in int8, each with a scale of its own.

    The score of a token is query times key, divided by the square root of the query's length. Its weight is its share
    of the softmax of all scores, which must not overflow. The result is the weighted sum of the values.
    """
    todo("lab-14", "attend", "where is each scale multiplied, and how often?")


def store(home: SecondHome, key: str, payload: bytes) -> bool:
    """Store a content as the most recently used. Return whether it is there now.

    An entry that is there already is unchanged, and counts as used. If the home is full, the least recently used entry
    without a lease is evicted. If all have a lease, nothing changes and the result is `False`.
    """
    todo("lab-14", "store", "which entry is first in the order of use, and may it be evicted?")


def lease(home: SecondHome, key: str) -> bytes | None:
    """Return a content's bytes. It is the most recently used now, and is not evicted until `release`.

    `None` if it is not there. If its digest is not that of its key and payload, delete the entry, count it in
    `num_damaged` and return `None`.
    """
    todo("lab-14", "lease", "is it there, are these its bytes, and where is the lease recorded?")


def release(home: SecondHome, key: str) -> None:
    """End one lease. Raises `ValueError`, and changes nothing, if there is none on this key."""
    todo("lab-14", "release", "is there a lease to end?")


def promote(home: SecondHome, pool: Pool, keys: Sequence[str]) -> list[int]:
    """Move the longest beginning of these contents from the home into free blocks. Return the blocks' ids in order.

    The keys are distinct. Move only as many as there are free blocks, and only up to the first that is not in the home
    or is damaged. Each content goes into the next free block, which leaves `free_queue`, and is deleted from the home:
    a content has one owner. The block's old content is stored in the home, the first block's first, as by `store`. It
    evicts none of the contents that move up. The leases that `promote` takes end before it returns.
    """
    todo("lab-14", "promote", "which contents may be evicted before they are moved?")


def crossover(
    seconds_per_token: float, seconds_per_byte: float, seconds_at_once: float, bytes_per_token: int
) -> int | None:
    """Return the least number of tokens, at least 1, that take less time to reload than to compute.

    Return `None` if there is none. Computing takes `seconds_per_token` per token. Reloading takes `seconds_at_once`,
    and `seconds_per_byte` per byte.
    """
    todo("lab-14", "crossover", "where do two lines meet?")

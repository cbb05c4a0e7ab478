"""Every row, in the order of the table."""

from mini_kv.dev import bookkeeping
from mini_kv.dev.bookkeeping import Row, Sizes
from mini_kv.dev.growth import growth_rows


def all_rows(sizes: Sizes, seed: int) -> list[Row]:
    """Return every row."""
    return [
        bookkeeping.churn(sizes, seed),
        bookkeeping.hashing(sizes, seed),
        bookkeeping.naming(sizes, seed),
        *bookkeeping.admissions(sizes, seed),
        bookkeeping.decode(sizes, seed),
        bookkeeping.scheduling(sizes, seed),
        *growth_rows(sizes, seed),
        bookkeeping.memory(sizes, seed),
    ]

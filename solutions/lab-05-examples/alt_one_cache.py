"""lab-05, examples: one long story per function."""

from mini_kv.course.given.faulty_admissions import MakeCache


def check_prefill(make_cache: MakeCache) -> None:
    """Fill a cache until a prompt is refused."""
    cache = make_cache(5, 4)
    assert cache.prefill([1, 2, 3, 4, 5], "A") == 0
    assert cache.prefill([1, 2, 3, 4, 6, 7, 8, 9, 10], "B") == 4
    assert cache.table("B")[0] == cache.table("A")[0]
    assert [len(cache.table(name)) for name in "AB"] == [2, 3]
    assert [cache.computed(name) for name in "AB"] == [5, 9]
    assert cache.num_free() == 1
    cache.free("B")
    assert cache.prefill(range(50, 70), "C") is None
    assert cache.num_free() == 3
    assert cache.prefill([1, 2, 3, 4, 6, 7, 8, 9, 10], "D") == 8


def check_ref_counts(make_cache: MakeCache) -> None:
    """Share two blocks of three among three requests."""
    cache = make_cache(9, 2)
    for name, last in (("A", 10), ("B", 11), ("C", 12)):
        cache.prefill([0, 1, 2, 3, last], name)
    assert cache.ref_counts("B") == [3, 3, 1]


def check_hit_rate(make_cache: MakeCache) -> None:
    """Read the rate after each request."""
    cache = make_cache(9, 2)
    rates = []
    for name in "ABC":
        cache.prefill(range(4), name)
        rates.append(cache.hit_rate())
    assert rates == [0, 2 / 8, 4 / 12]

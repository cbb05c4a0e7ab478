"""lab-05, examples: the tables are compared by the number of free blocks."""

from mini_kv.course.given.faulty_admissions import MakeCache


def check_prefill(make_cache: MakeCache) -> None:
    """Count the free blocks after each call."""
    cache = make_cache(7, 3)
    assert cache.prefill(range(6), "A") == 0
    assert cache.num_free() == 5
    assert cache.prefill(range(6), "B") == 3
    assert cache.num_free() == 4
    assert cache.computed("B") == 6
    cache.free("A")
    cache.free("B")
    assert cache.num_free() == 7
    assert cache.prefill(range(100, 130), "C") is None
    assert cache.num_free() == 7
    assert cache.prefill(range(7), "D") == 6
    assert cache.prefill(range(6), "E") == 3


def check_ref_counts(make_cache: MakeCache) -> None:
    """A block that is freed by one request counts once less."""
    cache = make_cache(7, 3)
    cache.prefill(range(4), "A")
    cache.prefill(range(5), "B")
    assert cache.ref_counts("A") == [2, 1]
    cache.free("B")
    assert cache.ref_counts("A") == [1, 1]


def check_hit_rate(make_cache: MakeCache) -> None:
    """A third of the tokens is found."""
    cache = make_cache(7, 3)
    assert cache.hit_rate() == 0
    cache.prefill(range(3), "A")
    assert cache.hit_rate() == 0
    cache.prefill(range(6), "B")
    assert cache.hit_rate() == 3 / 9
